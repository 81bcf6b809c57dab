// SPDX-License-Identifier: Apache-2.0
#include "cc/core/pooling/pooled_find.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/core/base/data_type.h"
#include "cc/core/base/first_failure.h"
#include "cc/core/loops/table_loops.h"
#include "cc/core/rows/quantized_row.h"
#include "cc/core/rows/row_copy.h"
#include "cc/core/store/store_locks.h"
#include "cc/core/table/shard_split.h"

namespace tf_embed {
namespace {

// Bytes of rows that are found together, few enough to stay in the second cache, and the least and
// most keys they may belong to.
constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kMinBlock = 16;
constexpr size_t kMaxBlock = 1024;
// Rough costs in nanoseconds, by which a thread pool splits work.
constexpr size_t kKeyCost = 50;
constexpr size_t kBytesOfNanosecond = 8;

// sum[j] += factor * rows[0][j], then rows[1] and so on, from 0 if the sum begins. Without factors
// each is 1.
template <typename T, typename Compute>
void AddRows(const TableLoops& loops, const T* rows, size_t count, size_t dim,
             const Compute* factors, bool begins, Compute* __restrict sum) {
  if constexpr (std::is_same_v<T, Compute>) {
    return loops.Pool<T>()(rows, count, dim, factors, begins, sum);
  }
  if (begins) std::fill_n(sum, dim, Compute{0});
  for (size_t i = 0; i < count; ++i) {
    const WideRow<T> row(rows + i * (dim + WideRow<T>::kTail), dim);
    if (factors == nullptr) {
      for (size_t j = 0; j < dim; ++j) sum[j] += row[j];
    } else {
      const Compute factor = factors[i];
      for (size_t j = 0; j < dim; ++j) sum[j] += factor * row[j];
    }
  }
}

const StoreOptions& OptionsOf(const PooledFind& find) { return find.keys.shards[0]->options(); }

// The scratch memory of one thread that pools some bags.
template <typename T>
class BagPooler {
  using Compute = typename WideRow<T>::Compute;

 public:
  BagPooler(const PooledFind& find, const ExecContext& serial)
      : BagPooler(find, serial, OptionsOf(find).allocator) {}

  // Pools bags `begin` up to `end`.
  Status Run(size_t begin, size_t end) {
    if (AreRows(begin, end)) return FindRows(begin, end);
    TF_EMBED_RETURN_IF_ERROR(Allocate());
    block_begin_ = bags_.begin(begin);
    for (size_t bag = begin; bag < end; ++bag) {
      const size_t bag_begin = bags_.begin(bag);
      const size_t bag_end = bags_.begin(bag + 1);
      if (bag_begin == bag_end) std::fill_n(Pooled(bag), dim_, Compute{0});
      for (size_t place = bag_begin; place < bag_end;) {
        const size_t taken = std::min(bag_end - place, block_size_ - places_in_block_);
        const size_t first = keys_in_block_;
        const bool begins_bag = place == bag_begin;
        Take(place, taken);
        place += taken;
        pieces_[num_pieces_++] = Piece{bag, first, keys_in_block_, begins_bag, place == bag_end};
        if (places_in_block_ == block_size_) TF_EMBED_RETURN_IF_ERROR(PoolBlock(place));
      }
    }
    return PoolBlock(0);
  }

 private:
  BagPooler(const PooledFind& find, const ExecContext& serial, Allocator* allocator)
      : keys_(find.keys),
        bags_(*find.bags),
        pooling_(find.pooling),
        defaults_(find.defaults),
        weights_(static_cast<const Compute*>(find.pooling.weights)),
        pooled_(static_cast<Compute*>(find.pooled)),
        found_(static_cast<Compute*>(find.found)),
        stride_(find.stride),
        loops_(LoopsOf(OptionsOf(find).instruction_set)),
        width_(OptionsOf(find).dim),
        dim_(width_ - WideRow<T>::kTail),
        block_size_(std::clamp(kBlockBytes / (width_ * sizeof(T)), kMinBlock, kMaxBlock)),
        // Otherwise keys are looked up in place.
        gathers_(!bags_.in_order() || pooling_.padding != nullptr),
        serial_(serial),
        rows_(allocator),
        pieces_(allocator),
        block_keys_(allocator),
        block_owners_(allocator),
        block_positions_(allocator),
        block_weights_(allocator),
        block_defaults_(allocator),
        split_(allocator) {}

  // The keys of one bag in a block.
  struct Piece {
    size_t bag;
    size_t begin;
    size_t end;
    bool begins_bag;
    bool ends_bag;
  };

  Compute* Pooled(size_t bag) const { return pooled_ + bag * stride_; }

  // Whether each of these bags has a single key, whose row is already the pooled row.
  bool AreRows(size_t begin, size_t end) const {
    constexpr size_t kMaxRows = UINT32_MAX / kMaxBlock;  // from one pooled row to the next
    if (!std::is_same_v<T, Compute> || weights_ != nullptr || found_ != nullptr || gathers_ ||
        keys_.owners != nullptr || keys_.num_shards != 1 ||
        defaults_.kind == DefaultRows::Kind::kOneEach || stride_ % dim_ != 0 ||
        stride_ / dim_ > kMaxRows) {
      return false;
    }
    const size_t first = bags_.begin(begin);
    for (size_t bag = begin; bag < end; ++bag) {
      if (bags_.begin(bag + 1) != first + (bag + 1 - begin)) return false;
    }
    return true;
  }

  Status FindRows(size_t begin, size_t end) {
    Buffer<uint32_t> positions(keys_.shards[0]->options().allocator);
    TF_EMBED_RETURN_IF_ERROR(positions.Resize(std::min(end - begin, kMaxBlock)));
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<uint32_t>(i * (stride_ / dim_));
    }
    for (size_t bag = begin; bag < end; bag += kMaxBlock) {
      const KeyBatch batch{keys_.keys + bags_.begin(bag), std::min(end - bag, kMaxBlock),
                           positions.data()};
      TF_EMBED_RETURN_IF_ERROR(
          keys_.shards[0]->Find(serial_, batch, defaults_, Pooled(bag), nullptr, {}));
      // A sum begins with 0, so it is never -0; nor may a copied row be. Whether bags are pooled
      // this way depends on the part of the batch they are in, and so on the threads.
      for (size_t i = 0; i < batch.size; ++i) {
        Compute* const row = Pooled(bag + i);
        for (size_t j = 0; j < dim_; ++j) row[j] += Compute{0};
      }
    }
    return Status();
  }

  Status Allocate() {
    TF_EMBED_RETURN_IF_ERROR(rows_.Resize(block_size_ * width_));
    TF_EMBED_RETURN_IF_ERROR(pieces_.Resize(block_size_));
    if (!gathers_) return Status();
    TF_EMBED_RETURN_IF_ERROR(block_keys_.Resize(block_size_));
    if (keys_.owners != nullptr) TF_EMBED_RETURN_IF_ERROR(block_owners_.Resize(block_size_));
    if (found_ != nullptr) TF_EMBED_RETURN_IF_ERROR(block_positions_.Resize(block_size_));
    if (weights_ != nullptr) TF_EMBED_RETURN_IF_ERROR(block_weights_.Resize(block_size_));
    if (defaults_.kind == DefaultRows::Kind::kOneEach) {
      TF_EMBED_RETURN_IF_ERROR(block_defaults_.Resize(block_size_ * width_));
    }
    return Status();
  }

  // Adds the keys of some places to the block, except padding.
  void Take(size_t begin, size_t count) {
    places_in_block_ += count;
    if (!gathers_) {
      keys_in_block_ += count;
      return;
    }
    for (size_t place = begin; place < begin + count; ++place) {
      const size_t position = bags_.Position(place);
      const int64_t key = keys_.keys[position];
      if (pooling_.padding != nullptr && key == *pooling_.padding) {
        if (found_ != nullptr) std::fill_n(found_ + position * dim_, dim_, Compute{0});
        continue;
      }
      const size_t i = keys_in_block_++;
      block_keys_[i] = key;
      if (keys_.owners != nullptr) block_owners_[i] = keys_.owners[position];
      if (found_ != nullptr) block_positions_[i] = position;
      if (weights_ != nullptr) block_weights_[i] = weights_[position];
      if (defaults_.kind == DefaultRows::Kind::kOneEach) {
        std::memcpy(block_defaults_.data() + i * width_,
                    defaults_.Row(position, width_ * sizeof(T)), width_ * sizeof(T));
      }
    }
  }

  // Finds the rows of the block, adds them to their bags, and begins the next block at
  // `next_begin`.
  Status PoolBlock(size_t next_begin) {
    T* const rows = BlockRows();
    TF_EMBED_RETURN_IF_ERROR(FindBlock(rows));
    if (found_ != nullptr && rows == rows_.data()) CopyFound();
    const Compute* weights = nullptr;
    if (weights_ != nullptr) weights = gathers_ ? block_weights_.data() : weights_ + block_begin_;
    // Pooled rows of many tables are far apart.
    constexpr size_t kAhead = 4;
    for (size_t i = 0; i < num_pieces_; ++i) {
      const Piece& piece = pieces_[i];
      if (i + kAhead < num_pieces_) {
        PrefetchRow(reinterpret_cast<const char*>(Pooled(pieces_[i + kAhead].bag)),
                    dim_ * sizeof(Compute));
      }
      Compute* const sum = Pooled(piece.bag);
      AddRows(loops_, rows + piece.begin * width_, piece.end - piece.begin, dim_,
              weights == nullptr ? nullptr : weights + piece.begin, piece.begins_bag, sum);
      if (piece.ends_bag && Divides(pooling_.combiner)) Divide(piece.bag, sum);
    }
    block_begin_ = next_begin;
    places_in_block_ = keys_in_block_ = num_pieces_ = 0;
    return Status();
  }

  // Where the block's rows are found. If `found` is the same array of rows, they are found there.
  T* BlockRows() {
    if constexpr (std::is_same_v<T, Compute>) {
      if (found_ != nullptr && !gathers_) return found_ + block_begin_ * dim_;
    }
    return rows_.data();
  }

  void CopyFound() {
    for (size_t i = 0; i < keys_in_block_; ++i) {
      const WideRow<T> row(rows_.data() + i * width_, dim_);
      Compute* const to = found_ + (gathers_ ? block_positions_[i] : block_begin_ + i) * dim_;
      for (size_t j = 0; j < dim_; ++j) to[j] = row[j];
    }
  }

  Status FindBlock(T* rows) {
    if (keys_in_block_ == 0) return Status();
    const int64_t* const keys = gathers_ ? block_keys_.data() : keys_.keys + block_begin_;
    const int32_t* owners = nullptr;
    if (keys_.owners != nullptr) {
      owners = gathers_ ? block_owners_.data() : keys_.owners + block_begin_;
    }
    DefaultRows defaults = defaults_;
    if (defaults.kind == DefaultRows::Kind::kOneEach) {
      defaults.rows = gathers_ ? static_cast<const void*>(block_defaults_.data())
                               : defaults_.Row(block_begin_, width_ * sizeof(T));
    }
    TF_EMBED_RETURN_IF_ERROR(
        split_.Build(keys, keys_in_block_, owners, keys_.num_shards, keys_.unsigned_keys));
    for (size_t shard = 0; shard < keys_.num_shards; ++shard) {
      const KeyBatch batch = split_.shard(shard);
      if (batch.size == 0) continue;
      TF_EMBED_RETURN_IF_ERROR(
          keys_.shards[shard]->Find(serial_, batch, defaults, rows, nullptr, {}));
    }
    return Status();
  }

  void Divide(size_t bag, Compute* sum) const {
    const Compute divisor = DivisorOf<Compute>(bags_, pooling_, keys_.keys, bag);
    for (size_t j = 0; j < dim_; ++j) sum[j] = divisor == 0 ? Compute{0} : sum[j] / divisor;
  }

  const ShardedKeys& keys_;
  const Bags& bags_;
  const Pooling& pooling_;
  const DefaultRows& defaults_;
  const Compute* const weights_;
  Compute* const pooled_;
  Compute* const found_;
  const size_t stride_;
  const TableLoops& loops_;
  const size_t width_;  // numbers of a row as it is stored
  const size_t dim_;
  const size_t block_size_;
  const bool gathers_;
  const ExecContext& serial_;

  size_t block_begin_ = 0;      // a place
  size_t places_in_block_ = 0;  // at most block_size_
  size_t keys_in_block_ = 0;    // without padding
  size_t num_pieces_ = 0;
  Buffer<T> rows_;
  Buffer<Piece> pieces_;
  Buffer<int64_t> block_keys_;
  Buffer<int32_t> block_owners_;
  Buffer<size_t> block_positions_;
  Buffer<Compute> block_weights_;
  Buffer<T> block_defaults_;
  ShardSplit split_;
};

// The length of a batch in the line of all batches: bag b begins at unit begin(b) + b. A long bag
// weighs as much as its keys, an empty bag a little.
size_t UnitsOf(const Bags& bags) { return bags.num_keys() + bags.size(); }

// The first bag that begins at or after `unit`.
size_t BagAt(const Bags& bags, size_t unit) {
  size_t low = 0;
  size_t high = bags.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (bags.begin(middle) + middle < unit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

Status CheckPooledFind(const PooledFind& find) {
  const StoreOptions& options = OptionsOf(find);
  if (find.quantized) {
    if (options.value_type != DataType::kInt8 || options.dim <= kQuantizedTail) {
      return Status::InvalidArgument("Table '" + options.name +
                                     "' must have rows of int8, with a scale and a bias behind at "
                                     "least one weight, to be pooled as quantized ones.");
    }
  } else if (!IsFloating(options.value_type)) {
    return Status::InvalidArgument("Table '" + options.name +
                                   "' has integer weights, which are not pooled.");
  }
  if (find.bags->num_keys() > kMaxBatchSize) {
    return Status::InvalidArgument("A batch may have at most " + std::to_string(kMaxBatchSize) +
                                   " keys. Received: " + std::to_string(find.bags->num_keys()) +
                                   ".");
  }
  return Status();
}

namespace {

// In training, rows that are found in a lower tier are promoted. A held store moves no rows, so
// this is done first; rows that are not promoted by then are read in place.
Status BringUp(const ExecContext& context, const PooledFind* finds, size_t count) {
  if (!context.training) return Status();
  for (size_t i = 0; i < count; ++i) {
    const ShardedKeys& keys = finds[i].keys;
    if (keys.num_shards == 0 || keys.shards[0]->tiers() == nullptr) continue;
    ShardSplit split(OptionsOf(finds[i]).allocator);
    TF_EMBED_RETURN_IF_ERROR(split.Build(keys.keys, finds[i].bags->num_keys(), keys.owners,
                                         keys.num_shards, keys.unsigned_keys));
    for (size_t shard = 0; shard < keys.num_shards; ++shard) {
      TF_EMBED_RETURN_IF_ERROR(
          keys.shards[shard]->tiers()->Prefetch(finds[i].Dated(context), split.shard(shard)));
    }
  }
  return Status();
}

}  // namespace

Status FindPooled(const ExecContext& context, const PooledFind* finds, size_t count) {
  if (count == 0) return Status();
  size_t units = 0;
  size_t cost = 0;  // of the most expensive batch
  size_t num_stores = 0;
  bool notes_uses = false;
  for (size_t i = 0; i < count; ++i) {
    TF_EMBED_RETURN_IF_ERROR(CheckPooledFind(finds[i]));
    const StoreOptions& options = OptionsOf(finds[i]);
    units += UnitsOf(*finds[i].bags);
    num_stores += finds[i].keys.num_shards;
    cost = std::max(cost, kKeyCost + options.dim * SizeOf(options.value_type) / kBytesOfNanosecond);
    notes_uses = notes_uses || options.policy.statistics.OfUse().size() > 0;
  }
  TF_EMBED_RETURN_IF_ERROR(BringUp(context, finds, count));
  // Threads of the pool must not wait for a store's lock, so all locks are taken first.
  Allocator* const allocator = OptionsOf(finds[0]).allocator;
  Buffer<const Store*> stores(allocator);
  TF_EMBED_RETURN_IF_ERROR(stores.Resize(num_stores));
  const Store** next = stores.data();
  for (size_t i = 0; i < count; ++i) {
    next = std::copy_n(finds[i].keys.shards, finds[i].keys.num_shards, next);
  }
  HeldStores held(allocator);
  const Held what = context.training && notes_uses ? Held::kUsing : Held::kContent;
  TF_EMBED_RETURN_IF_ERROR(held.Take(stores.data(), num_stores, what));
  const ExecContext serial = context.Holding(what).InSerial();
  FirstFailure failure;
  // Bags of one batch, from one unit to another.
  const auto run_one = [&](size_t i, size_t begin, size_t end) {
    const ExecContext dated = finds[i].Dated(serial);
    const auto run_as = [&](auto tag) {
      BagPooler<typename decltype(tag)::Type> pooler(finds[i], dated);
      const Bags& bags = *finds[i].bags;
      return pooler.Run(BagAt(bags, begin), BagAt(bags, end));
    };
    if (finds[i].quantized) return run_as(TypeTag<int8_t>());
    return DispatchFloating(OptionsOf(finds[i]).value_type, run_as);
  };
  const auto run = [&](size_t begin, size_t end) {
    size_t first = 0;  // unit of the batch
    for (size_t i = 0; i < count && first < end && !failure.failed(); ++i) {
      const size_t next = first + UnitsOf(*finds[i].bags);
      if (begin < next) {
        Status status = run_one(i, std::max(begin, first) - first, std::min(end, next) - first);
        if (!status.ok()) failure.Note(std::move(status));
      }
      first = next;
    }
  };
  context.parallel_for(units, cost, std::cref(run));
  return failure.Take();
}

}  // namespace tf_embed
