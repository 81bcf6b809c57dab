// SPDX-License-Identifier: Apache-2.0
// The views that kernels have of a batch: its keys, its distinct keys, and the rows of absent keys.
#ifndef TF_EMBED_CC_STORES_DEVICE_BATCH_VIEW_H_
#define TF_EMBED_CC_STORES_DEVICE_BATCH_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/data_type.h"
#include "cc/core/rows/initializer.h"
#include "cc/core/store/store.h"
#include "cc/stores/device/device_rows.h"

namespace tf_embed {

// A key of a batch, and its positions in the batch.
struct DeviceGroup {
  int64_t key;
  const uint32_t* members;  // positions, rising; perhaps only the first (DeviceGroups)
  uint32_t count;           // of members; 0: no group
  uint32_t slot = 0;        // in the verb's scratch memory; WriteKernel sets it
};

// A key with more positions is frequent. A tile would take long for all of them.
inline constexpr uint32_t kFrequentCount = 128;

// Counters of a batch.
struct BatchCounters {
  uint64_t repeated;  // keys with several positions, and all their positions: Repeated
  uint64_t frequent;  // frequent keys
  uint64_t new_keys;  // keys that get rows

  TF_EMBED_DEVICE static uint64_t Repeated(uint64_t groups, uint64_t members) {
    return groups << 32 | members;
  }
  TF_EMBED_DEVICE static uint64_t GroupsOf(uint64_t repeated) { return repeated >> 32; }
  TF_EMBED_DEVICE static uint32_t MembersOf(uint64_t repeated) {
    return static_cast<uint32_t>(repeated);
  }
};

// The distinct keys of a batch. The group of a key has the number of the key's first position, so
// the groups are in the order of the batch, with gaps.
struct GroupsView {
  const DeviceGroup* groups = nullptr;
  size_t size = 0;                     // of the batch
  const uint32_t* numbers = nullptr;   // the group of each position
  const uint32_t* repeated = nullptr;  // the groups with several members, in any order
  const uint32_t* frequent = nullptr;  // the groups of frequent keys, in any order
  BatchCounters* counters = nullptr;

  TF_EMBED_DEVICE bool Has(size_t i) const { return i < size && groups[i].count > 0; }
  TF_EMBED_DEVICE uint64_t NumRepeated() const {
    return BatchCounters::GroupsOf(counters->repeated);
  }
  // The group with a number in a launch that begins at `first`.
  TF_EMBED_DEVICE DeviceGroup Get(size_t first, size_t number) const {
    DeviceGroup group = groups[first + number];
    group.slot = static_cast<uint32_t>(number);
    return group;
  }
};

// KeyBatch, as kernels need it.
struct BatchView {
  explicit BatchView(const KeyBatch& batch)
      : keys(batch.keys),
        size(batch.size),
        positions(batch.positions),
        scores(batch.scores),
        absent(batch.absent) {}
  TF_EMBED_DEVICE size_t Position(size_t i) const {
    return positions == nullptr ? i : positions[i];
  }
  TF_EMBED_DEVICE size_t First(const DeviceGroup& group) const {
    return Position(group.members[0]);
  }
  TF_EMBED_DEVICE size_t Last(const DeviceGroup& group) const {
    return Position(group.members[group.count - 1]);
  }
  // Gives each of the first kKeysOfTile lanes its key in tile `i` of a launch. Returns false for a
  // lane without a key.
  template <class Tile>
  TF_EMBED_DEVICE bool Take(const Tile& tile, size_t i, int64_t* key, size_t* position) const {
    const size_t own = i * kKeysOfTile<Tile> + tile.lane();
    const bool has = tile.lane() < kKeysOfTile<Tile> && own < size;
    *key = has ? keys[own] : 0;
    *position = has ? Position(own) : 0;
    return has;
  }
  // Leaves a key without a row to the caller, if the caller has asked for such keys.
  template <class Tile>
  TF_EMBED_DEVICE void LeaveAbsent(const Tile& tile, const DeviceGroup& group) const {
    if (absent == nullptr) return;
    ForEachLane(tile, group.count, [&](size_t k) { absent[Position(group.members[k])] = true; });
  }

  const int64_t* keys;
  size_t size;
  const uint32_t* positions;
  const int64_t* scores;
  bool* absent;  // KeyBatch::absent
};

// The weights of absent keys.
struct DefaultsView {
  DefaultRows::Kind kind;
  const char* rows;  // DefaultRows::rows
  DataType type;
  size_t dim;
  size_t bytes;
  // The store's initializer. If it is not random, all initial rows are `row`.
  InitializerKind initializer;
  double a;
  double b;
  uint64_t seed;
  uint64_t table_id;
  const char* row;

  template <class Tile>
  TF_EMBED_DEVICE void Write(const Tile& tile, int64_t key, size_t position, char* weights) const {
    if (kind == DefaultRows::Kind::kInitializer) return WriteInitial(tile, key, weights);
    CopyBytes(tile, RowAt(position), bytes, weights);
  }

  // Whether the row of each absent key is computed from the key.
  TF_EMBED_HOST_DEVICE bool AreRandom() const {
    return kind == DefaultRows::Kind::kInitializer && HasRandomInitializer();
  }
  // REQUIRES: !AreRandom().
  TF_EMBED_DEVICE const char* RowAt(size_t position) const {
    if (kind == DefaultRows::Kind::kInitializer) return row;
    return kind == DefaultRows::Kind::kOneEach ? rows + position * bytes : rows;
  }

  // The row of an absent key, of values T, without memory for the row: calls use(value_of), where
  // value_of(j) returns the value of column j.
  template <typename T, typename Use>
  TF_EMBED_DEVICE void UseRow(int64_t key, size_t position, const Use& use) const {
    // A pooled find has no memory for a row of each absent key, so random values are computed
    // column by column.
    if (AreRandom()) {
      const uint64_t state = InitialState(seed, table_id, key);
      return use(
          [&](size_t j) { return Number<T>::FromDouble(RandomLane(initializer, a, b, state, j)); });
    }
    const T* const values = reinterpret_cast<const T*>(RowAt(position));
    use([values](size_t j) { return values[j]; });
  }

  template <class Tile>
  TF_EMBED_DEVICE void WriteInitial(const Tile& tile, int64_t key, char* weights) const {
    if (!HasRandomInitializer()) return CopyBytes(tile, row, bytes, weights);
    switch (type) {
      case DataType::kFloat:
        return WriteRandom<float>(tile, key, weights);
      case DataType::kHalf:
        return WriteRandom<Half>(tile, key, weights);
      case DataType::kBFloat16:
        return WriteRandom<BFloat16>(tile, key, weights);
      case DataType::kDouble:
        return WriteRandom<double>(tile, key, weights);
      case DataType::kInt8:
        return WriteRandom<int8_t>(tile, key, weights);
      case DataType::kInt32:
        return WriteRandom<int32_t>(tile, key, weights);
      case DataType::kInt64:
        return WriteRandom<int64_t>(tile, key, weights);
      case DataType::kBool:
        return WriteRandom<bool>(tile, key, weights);
    }
  }

 private:
  TF_EMBED_HOST_DEVICE bool HasRandomInitializer() const {
    return initializer != InitializerKind::kConstant && initializer != InitializerKind::kRow;
  }
  template <typename T, class Tile>
  TF_EMBED_DEVICE void WriteRandom(const Tile& tile, int64_t key, char* weights) const {
    const uint64_t state = InitialState(seed, table_id, key);
    T* const to = reinterpret_cast<T*>(weights);
    ForEachLane(tile, dim, [&](size_t j) {
      to[j] = Number<T>::FromDouble(RandomLane(initializer, a, b, state, j));
    });
  }
};

template <class Tile>
TF_EMBED_DEVICE void CountMisses(StoreTallies* tallies, int64_t key, uint64_t number) {
  // Spread over several counters, so that atomics do not contend for a cache line.
  Tile::Add(&tallies->misses[HashKey(key) % StoreTallies::kMissCounters].count, number);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_BATCH_VIEW_H_
