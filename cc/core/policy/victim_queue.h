// SPDX-License-Identifier: Apache-2.0
// The rows that leave next, lowest rank first.
//
// To look for the lowest row of all at each insert would cost a pass over the table. So one pass
// takes a sixteenth of the rows, the lowest, and many inserts live on it. That stays exact, because
// uses only raise ranks: a row that is not in the queue was above `limit` and still is, unless it
// came since, or its score was set; those below the limit are added. A row whose rank has risen
// since is found out when its turn comes, and goes back in line while it is below the limit.
//
// Invariant: each row below the limit is in the queue, by its rank or by a lower one that it had
// before. By others as well, perhaps.
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
  // How many rows are in line, repeats included.
  size_t size() const { return sorted_.size() - next_ + late_.size(); }

  void Clear() {
    sorted_.Clear();
    late_.Clear();
    next_ = 0;
    limit_ = Rank();
  }

  // Starts over with all the rows below `limit`, in any order.
  void Fill(RankList* ranks, const Rank& limit) {
    Clear();
    std::swap(sorted_, *ranks);
    std::sort(sorted_.begin(), sorted_.end());
    limit_ = limit;
  }

  // Puts a row in line, if it is below the limit.
  Status Push(const Rank& rank) {
    if (!(rank < limit_)) return Status();
    TF_EMBED_RETURN_IF_ERROR(late_.Append(rank));
    std::push_heap(late_.begin(), late_.end(), kLowestFirst);
    return Status();
  }

  // One that will be taken soon, if there is any, to ask for its memory.
  const Rank* Ahead() const {
    constexpr size_t kAhead = 12;
    return next_ + kAhead < sorted_.size() ? &sorted_[next_ + kAhead] : nullptr;
  }

  // Takes the lowest. Not empty.
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
  size_t next_ = 0;  // those before it are taken
  RankList late_;    // a heap
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_VICTIM_QUEUE_H_
