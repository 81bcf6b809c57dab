// SPDX-License-Identifier: Apache-2.0
// The next rows to leave, lowest rank first.
//
// A search for the lowest row at each insert would cost a pass over the store. Instead, one pass
// collects the lowest sixteenth of the rows, which serves many inserts. This is exact, because uses
// only raise ranks. A row outside the queue was above `limit` and still is, unless it is new or its
// score was set; such rows below the limit are added. A row whose rank has risen is detected when
// its turn is reached, and is queued again if it is still below the limit.
//
// Invariant, between two writes: each row below the limit is in the queue, under its rank or an
// earlier, lower rank. It may also be there under other ranks.
//
// Not thread-safe.
#ifndef TF_EMBED_CC_CORE_POLICY_VICTIM_QUEUE_H_
#define TF_EMBED_CC_CORE_POLICY_VICTIM_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <functional>

#include "cc/core/policy/rank_list.h"

namespace tf_embed {

class VictimQueue {
 public:
  explicit VictimQueue(Allocator* allocator) : sorted_(allocator), late_(allocator) {}

  const Rank& limit() const { return limit_; }
  bool empty() const { return next_ == sorted_.size() && late_.empty(); }
  // Number of queued ranks, repeats included.
  size_t size() const { return sorted_.size() - next_ + late_.size(); }

  void Clear() {
    sorted_.Clear();
    late_.Clear();
    next_ = 0;
    limit_ = Rank();
  }

  // Refills the queue with all rows below `limit`, in any order.
  void Fill(RankList* ranks, const Rank& limit) {
    Clear();
    std::swap(sorted_, *ranks);
    std::sort(sorted_.begin(), sorted_.end());
    limit_ = limit;
  }

  // Queues a row, if it is below the limit.
  Status Push(const Rank& rank) {
    if (!(rank < limit_)) return Status();
    TF_EMBED_RETURN_IF_ERROR(late_.Append(rank));
    std::push_heap(late_.begin(), late_.end(), kLowestFirst);
    return Status();
  }

  // A rank that will be popped after about `distance` others, if any, for a prefetch.
  const Rank* Ahead(size_t distance) const {
    return next_ + distance < sorted_.size() ? &sorted_[next_ + distance] : nullptr;
  }

  // Pops the lowest rank. REQUIRES: not empty.
  Rank Pop() {
    if (late_.empty() || (next_ < sorted_.size() && sorted_[next_] < late_[0])) {
      return sorted_[next_++];
    }
    std::pop_heap(late_.begin(), late_.end(), kLowestFirst);
    const Rank rank = late_[late_.size() - 1];
    late_.Truncate(late_.size() - 1);
    return rank;
  }

 private:
  static constexpr auto kLowestFirst = [](const Rank& a, const Rank& b) { return b < a; };

  Rank limit_;  // nothing is below it at first
  RankList sorted_;
  size_t next_ = 0;  // ranks before it were popped
  RankList late_;    // a heap
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_VICTIM_QUEUE_H_
