// SPDX-License-Identifier: Apache-2.0
// Bags in device memory. Finds pool rows as they find them, with a tile per bag. Other kernels
// compute the gradients of the bags' keys from the gradients of pooled rows. Sums are in the order
// of a bag's keys, as in cc/core/pooling/pooled_find.h.
#ifndef TF_EMBED_CC_STORES_DEVICE_POOLED_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_POOLED_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/pooling/bags.h"
#include "cc/core/rows/quantized_row.h"
#include "cc/core/table/shard_split.h"
#include "cc/stores/device/bags_view.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

// A shard of a batch's table, reduced to what a find needs: a launch carries many of them.
struct ShardView {
  ShardView(const StoreView& store, const DefaultsView& defaults)
      : index(store.index),
        stride(store.layout.stride),
        statistics_offset(store.layout.statistics_offset),
        mark_offset(store.layout.statistics_offset + store.layout.statistics * sizeof(uint64_t)),
        tick(store.tick),
        statistics(store.statistics),
        defaults(defaults) {
    for (uint32_t i = 0; i < RowSlabs::kMax; ++i) slabs[i] = store.rows.slabs[i];
  }

  IndexView index;
  char* slabs[RowSlabs::kMax];  // RowSlabs::slabs
  size_t stride;
  size_t statistics_offset;
  size_t mark_offset;  // in a cache
  uint8_t tick;
  StatisticSet statistics;
  DefaultsView defaults;

  TF_EMBED_DEVICE char* Row(uint32_t row) const {
    const RowSlabs::Place place = RowSlabs::PlaceOf(row);
    return slabs[place.slab] + place.offset * stride;
  }
  template <class Tile>
  TF_EMBED_DEVICE DeviceStatistics<Tile> StatisticsOf(char* row) const {
    return {statistics, reinterpret_cast<uint64_t*>(row + statistics_offset)};
  }
  template <class Tile>
  TF_EMBED_DEVICE DeviceMark<Tile> MarkOf(char* row) const {
    return {reinterpret_cast<uint64_t*>(row + mark_offset)};
  }
};

// A batch of a pooled find.
struct PoolView {
  PoolView(const BagsView& bags, const ShardView& shard) : bags(bags), shard(shard) {}

  BagsView bags;
  ShardView shard;                    // the first
  const ShardView* shards = nullptr;  // all, if there are several
  size_t num_shards = 1;
  const int32_t* owners = nullptr;  // ShardedKeys
  bool unsigned_keys = false;
  DataType type = DataType::kFloat;
  size_t dim = 0;
  StoreTallies* tallies = nullptr;  // of the first shard, which counts for all shards
  Expiry expiry;                    // expired rows are absent
  Moment now;                       // of the uses
  bool uses = false;                // whether it counts as a use in statistics
  bool marks = false;               // the same in marks
  void* pooled = nullptr;
  size_t pooled_stride = 0;  // in values
  void* found = nullptr;     // PooledFind
  bool quantized = false;

  TF_EMBED_DEVICE const ShardView& ShardOf(int64_t key, size_t position) const {
    if (num_shards == 1) return shard;
    return shards[owners != nullptr ? static_cast<size_t>(owners[position])
                                    : DefaultShard(key, num_shards, unsigned_keys)];
  }
};

// WideRow (quantized_row.h) for a row whose stored values are value_of(j).
template <typename T>
struct PooledRow {
  using Compute = typename Number<T>::Compute;
  static constexpr size_t kTail = 0;

  template <typename ValueOf>
  TF_EMBED_DEVICE PooledRow(const ValueOf&, size_t /*dim*/) {}
  TF_EMBED_DEVICE Compute Wide(T value) const { return Number<T>::Load(value); }
};

template <>
struct PooledRow<int8_t> {
  using Compute = float;
  static constexpr size_t kTail = kQuantizedTail;

  template <typename ValueOf>
  TF_EMBED_DEVICE PooledRow(const ValueOf& value_of, size_t dim) {
    int8_t tail[kTail];
    for (size_t i = 0; i < kTail; ++i) tail[i] = value_of(dim + i);
    memcpy(&scale, tail, sizeof(scale));
    memcpy(&bias, tail + sizeof(scale), sizeof(bias));
  }
  TF_EMBED_DEVICE float Wide(int8_t value) const {
    return static_cast<float>(static_cast<uint8_t>(value)) * scale + bias;
  }

  float scale;
  float bias;
};

// For each bag of a batch.
struct PoolKernel {
  PoolView batch;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t bag) const {
    if (batch.quantized) return Pool<int8_t>(tile, batch, bag);
    switch (batch.type) {
      case DataType::kHalf:
        return Pool<Half>(tile, batch, bag);
      case DataType::kBFloat16:
        return Pool<BFloat16>(tile, batch, bag);
      case DataType::kDouble:
        return Pool<double>(tile, batch, bag);
      default:
        return Pool<float>(tile, batch, bag);
    }
  }

 private:
  // Columns summed in registers at a time. A wider row takes several passes over the bag.
  static constexpr size_t kColumns = 128;

  template <typename T, class Tile>
  TF_EMBED_DEVICE void Pool(const Tile& tile, const PoolView& batch, size_t bag) const {
    using Compute = typename PooledRow<T>::Compute;
    static_assert(kColumns % Tile::kLanes == 0, "a lane has whole columns");
    constexpr size_t kOwn = kColumns / Tile::kLanes;
    const size_t dim = batch.dim - PooledRow<T>::kTail;
    const size_t begin = batch.bags.Begin(bag);
    const size_t end = batch.bags.Begin(bag + 1);
    uint64_t padding = 0;
    const Compute divisor = batch.bags.Divisor<Compute>(begin, end, &padding);
    if (padding > 0 && tile.lane() == 0) Tile::Add(&batch.tallies->padding, padding);
    Compute* const pooled = static_cast<Compute*>(batch.pooled) + bag * batch.pooled_stride;
    for (size_t first = 0; first < dim; first += kColumns) {
      Compute sums[kOwn] = {};
      // One key after another, in the order of the bag, so a sum has the same bits as on the host.
      for (size_t place = begin; place < end; ++place) {
        Add<T>(tile, batch, batch.bags.Position(place), dim, first, sums);
      }
      for (size_t k = 0; k < kOwn; ++k) {
        const size_t j = first + k * Tile::kLanes + tile.lane();
        if (j >= dim) continue;
        if (Divides(batch.bags.combiner)) {
          // A bag whose weights sum to 0 pools to 0, not to NaN.
          sums[k] = divisor == Compute{0} ? Compute{0} : sums[k] / divisor;
        }
        pooled[j] = sums[k];
      }
    }
  }

  // Adds the columns, from `first` on, of the row of the key at a position, and writes them to
  // `found`.
  template <typename T, typename Compute, class Tile>
  TF_EMBED_DEVICE void Add(const Tile& tile, const PoolView& batch, size_t position, size_t dim,
                           size_t first, Compute* sums) const {
    const int64_t key = batch.bags.keys[position];
    Compute* const found =
        batch.found == nullptr ? nullptr : static_cast<Compute*>(batch.found) + position * dim;
    if (batch.bags.IsPadding(key)) {
      for (size_t j = first + tile.lane(); found != nullptr && j < dim && j < first + kColumns;
           j += Tile::kLanes) {
        found[j] = Compute{0};
      }
      return;
    }
    const ShardView& shard = batch.ShardOf(key, position);
    const Compute weight = batch.bags.Weight<Compute>(position);
    const auto add = [&](const auto& value_of) {
      const PooledRow<T> row(value_of, dim);
      for (size_t k = 0; k < kColumns / Tile::kLanes; ++k) {
        const size_t j = first + k * Tile::kLanes + tile.lane();
        if (j >= dim) continue;
        const Compute value = row.Wide(value_of(j));
        sums[k] += weight * value;
        if (found != nullptr) found[j] = value;
      }
    };
    const uint32_t number = shard.index.FindRow(tile, key);
    char* row = number == kNoRow ? nullptr : shard.Row(number);
    if (row != nullptr && batch.expiry.Has(tile, shard.StatisticsOf<Tile>(row))) row = nullptr;
    if (row == nullptr) {
      // A wide row is visited once for each kColumns columns; only the first visit counts.
      if (first == 0 && tile.lane() == 0) CountMisses<Tile>(batch.tallies, key, 1);
      return shard.defaults.template UseRow<T>(key, position, add);
    }
    const T* const values = reinterpret_cast<const T*>(row);
    add([values](size_t j) { return values[j]; });
    if (first != 0 || tile.lane() != 0) return;
    if (batch.uses) shard.StatisticsOf<Tile>(row).Use(batch.now);
    if (batch.marks) shard.MarkOf<Tile>(row).Use(shard.tick);
  }
};

// For each bag of a batch: writes the offset and the factor of each key's gradient, in the form of
// Gradients.
struct SpreadGradientsKernel {
  BagGradients of;
  size_t first_key;  // of the batch, in the arrays
  bool divides;      // by the number of keys in the bag
  int64_t* keys;     // may be null
  size_t* begins;
  float* factors;  // may be null

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t bag) const {
    const size_t begin = Within(of.splits[bag] - of.splits[0]);
    const size_t end = Within(of.splits[bag + 1] - of.splits[0]);
    // Also guards against splits that fall.
    if (end <= begin) return;
    const float scale = divides ? 1.0f / static_cast<float>(end - begin) : 1.0f;
    ForEachLane(tile, end - begin, [&](size_t k) {
      const size_t from = begin + k;
      const size_t to = first_key + from;
      begins[to] = of.begin + bag * of.stride;
      if (keys != nullptr) keys[to] = of.keys[from];
      if (factors != nullptr)
        factors[to] = of.weights == nullptr ? scale : scale * of.weights[from];
    });
  }

 private:
  // Splits in device memory are not validated by the host, so clamp them to the keys.
  TF_EMBED_DEVICE size_t Within(int64_t key) const {
    if (key < 0) return 0;
    return static_cast<uint64_t>(key) < of.num_keys ? static_cast<size_t>(key) : of.num_keys;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_POOLED_KERNELS_H_
