// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a batch in the order of first occurrence, each with its places. Verbs that
// write go through a batch in this order. Its rows and gradients are then read nearly in the order
// of memory, and a key is handled once, by one thread, with all of its places in order. So the
// outcome is the same for any number of threads.
//
// Equal keys are found part by part (KeyPartition, DistinctKeys), many parts at once. A scan of the
// batch then visits the records of each part in their order. If a batch says that its keys are
// distinct, each key is a group by itself, and no parts are made.
#ifndef TF_EMBED_CC_CORE_BATCH_KEY_GROUPS_H_
#define TF_EMBED_CC_CORE_BATCH_KEY_GROUPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/first_failure.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/distinct_keys.h"
#include "cc/core/batch/key_batch.h"
#include "cc/core/batch/key_partition.h"

namespace tf_embed {

struct KeyGroup {
  int64_t key;
  const uint32_t* positions;  // KeyBatch::Position, in the order of the batch
  size_t count;               // at least 1
};

class KeyGroups {
 public:
  // Whether a group is kept.
  using Keeps = std::function<bool(const KeyGroup& group)>;

  // Some adjacent groups, a few hundred at a time.
  class Range {
   public:
    // Moves to the next groups; false at the end.
    bool Next() {
      do {
        if (!NextAny()) return false;
        if (keeps_ != nullptr) Keep();
      } while (size_ == 0);
      return true;
    }
    size_t size() const { return size_; }
    const KeyGroup& operator[](size_t i) const { return some_[i]; }

   private:
    friend class KeyGroups;
    static constexpr size_t kMax = 512;
    static constexpr size_t kTogether = 64;

    Range(const KeyGroups* groups, const Keeps* keeps, size_t begin, size_t end)
        : groups_(groups),
          keeps_(keeps),
          walk_(groups->partition_, begin),
          next_(begin),
          end_(end) {}

    // As Next, of all groups.
    bool NextAny() {
      if (groups_->distinct()) return NextKeys();
      size_ = 0;
      while (size_ + kTogether <= kMax && next_ < end_) NextPlaces();
      return size_ > 0;
    }

    void Keep() {
      const auto drops = [&](const KeyGroup& group) { return !(*keeps_)(group); };
      size_ = static_cast<size_t>(std::remove_if(some_, some_ + size_, drops) - some_);
    }

    // Adds the groups of the next places. Their runs lie in as many cache lines as there are parts,
    // so the lines of some places are prefetched before the first is read.
    void NextPlaces() {
      const int64_t* const keys = groups_->batch_.keys + next_;
      const size_t count = std::min(kTogether, end_ - next_);
      uint32_t records[kTogether];
      for (size_t i = 0; i < count; ++i) {
        records[i] = walk_.Next();
        if (records[i] != KeyPartition::Walk::kSkipped) groups_->PrefetchRun(records[i]);
      }
      size_t size = size_;
      for (size_t i = 0; i < count; ++i) {
        if (records[i] == KeyPartition::Walk::kSkipped) continue;
        some_[size] = groups_->GroupOf(keys[i], records[i]);
        __builtin_prefetch(some_[size].positions);
        // No branch: it is unpredictable whether a key occurs here for the first time.
        size += some_[size].count != 0 ? 1 : 0;
      }
      size_ = size;
      next_ += count;
    }

    // As Next, if keys are distinct.
    bool NextKeys() {
      const KeyBatch& batch = groups_->batch_;
      size_ = 0;
      for (; size_ < kMax && next_ < end_; ++next_) {
        const size_t position = batch.Position(next_);
        if (groups_->skip_ != nullptr && groups_->skip_[position]) continue;
        own_positions_[size_] = static_cast<uint32_t>(position);
        some_[size_] = KeyGroup{batch.keys[next_], own_positions_ + size_, 1};
        ++size_;
      }
      return size_ > 0;
    }

    const KeyGroups* groups_;
    const Keeps* keeps_;  // null: all are kept
    KeyPartition::Walk walk_;
    size_t next_;
    size_t end_;
    size_t size_ = 0;
    KeyGroup some_[kMax];
    uint32_t own_positions_[kMax];  // if keys are distinct
  };

  explicit KeyGroups(Allocator* allocator)
      : allocator_(allocator), partition_(allocator), positions_(allocator), runs_(allocator) {}

  // Groups the keys of `batch` for which `skip` [batch, by position] is false, or all if it is
  // null. Both outlive this. KeyBatch::distinct is trusted.
  Status Build(const ExecContext& context, const KeyBatch& batch, const bool* skip);
  bool distinct() const { return batch_.distinct; }

  // Calls `work(&range)` for ranges that make up all groups, or the kept ones, many at once.
  // Returns the first failure, after which no more ranges are begun. `key_cost`: nanoseconds a key,
  // roughly.
  template <typename Work>
  Status ForEachRange(const ExecContext& context, size_t key_cost, const Work& work,
                      const Keeps* keeps = nullptr) const {
    FirstFailure failure;
    const auto run = [&](size_t begin, size_t end) {
      if (failure.failed()) return;
      Range range(this, keeps, begin, end);
      Status status = work(&range);
      if (!status.ok()) failure.Note(std::move(status));
    };
    context.parallel_for(batch_.size, key_cost, std::cref(run));
    return failure.Take();
  }

  // The parts and their records. The first record of a key in its part has the key's group, a later
  // record a group without positions. There are no parts if keys are distinct.
  const KeyPartition& partition() const { return partition_; }
  KeyGroup GroupAt(size_t record) const { return GroupOf(partition_.record(record).key, record); }

 private:
  KeyGroup GroupOf(int64_t key, size_t record) const {
    const KeyRun& run = runs_[record];
    return KeyGroup{key, positions_.data() + run.begin, run.count};
  }
  void PrefetchRun(size_t record) const { __builtin_prefetch(&runs_[record]); }

  Allocator* const allocator_;
  KeyBatch batch_;
  const bool* skip_ = nullptr;
  KeyPartition partition_;
  Buffer<uint32_t> positions_;  // key by key
  Buffer<KeyRun> runs_;         // by record
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_KEY_GROUPS_H_
