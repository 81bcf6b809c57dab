// The distinct keys of a batch, each with the places where it stands, in the order in which they
// first come. Verbs that write go through a batch in this order: what comes beside its keys (rows,
// gradients) is then read nearly in the order of memory, and a key is dealt with once, by one
// thread, with all of its places in order. So the outcome is the same for any number of threads.
//
// Equal keys are found part by part (KeyPartition, DistinctKeys), many parts at once. Who then goes
// through the batch meets the keys of each part in the order in which the part has them.
#ifndef TF_EMBED_CC_CORE_KEY_GROUPS_H_
#define TF_EMBED_CC_CORE_KEY_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cc/core/allocator.h"
#include "cc/core/exec_context.h"
#include "cc/core/first_failure.h"
#include "cc/core/key_partition.h"
#include "cc/core/segment_sum.h"
#include "cc/core/status.h"
#include "cc/core/table.h"

namespace tf_embed {

struct KeyGroup {
  int64_t key;
  const uint32_t* positions;  // KeyBatch::Position, in the order of the batch
  size_t count;               // at least 1
};

class KeyGroups {
  // A distinct key: its number in its part.
  struct Link {
    uint32_t part;
    uint32_t number;  // DistinctKeys::kNone where none is meant
  };

 public:
  // Some neighbouring groups, a few hundred at a time.
  class Range {
   public:
    // Goes on to the next groups; false at the end.
    bool Next() {
      size_ = 0;
      for (; size_ < kMost && next_ < end_; ++next_) {
        links_[size_] = groups_->is_linked() ? groups_->LinkAt(walk_.Next())
                                             : Link{0, static_cast<uint32_t>(next_)};
        // No branch: whether a key comes first here is nobody's guess.
        size_ += links_[size_].number != DistinctKeys::kNone ? 1 : 0;
      }
      for (size_t i = 0; i < size_; ++i) some_[i] = groups_->GroupOf(links_[i]);
      return size_ > 0;
    }
    size_t size() const { return size_; }
    const KeyGroup& operator[](size_t i) const { return some_[i]; }

   private:
    friend class KeyGroups;
    static constexpr size_t kMost = 512;

    Range(const KeyGroups* groups, size_t begin, size_t end)
        : groups_(groups),
          walk_(groups->partition_, groups->is_linked() ? begin : 0),
          next_(begin),
          end_(end) {}

    const KeyGroups* groups_;
    KeyPartition::Walk walk_;
    size_t next_;
    size_t end_;
    size_t size_ = 0;
    Link links_[kMost];
    KeyGroup some_[kMost];
  };

  explicit KeyGroups(Allocator* allocator) : allocator_(allocator), partition_(allocator) {}

  // Groups the keys of `batch` for which `skip` [batch, by position] is false, or all if it is
  // null. Both outlive this.
  Status Build(const ExecContext& context, const KeyBatch& batch, const bool* skip);

  // Calls `work(&range)` for ranges that make up all groups, many at once; returns the first
  // failure, after which no more ranges are begun. `key_cost`: nanoseconds a key, roughly.
  template <typename Work>
  Status ForEachRange(const ExecContext& context, size_t key_cost, const Work& work) const {
    FirstFailure failure;
    const auto run = [&](size_t begin, size_t end) {
      if (failure.failed()) return;
      Range range(this, begin, end);
      Status status = work(&range);
      if (!status.ok()) failure.Note(std::move(status));
    };
    context.parallel_for(is_linked() ? batch_.size : parts_.front().size(), key_cost,
                         std::cref(run));
    return failure.Take();
  }

 private:
  // A batch of one part needs no links: its distinct keys are in order.
  bool is_linked() const { return parts_.size() > 1; }

  Link LinkAt(const KeyPartition::Walk::Place& place) const {
    if (place.record == KeyPartition::Walk::kSkipped) return {0, DistinctKeys::kNone};
    return {place.part, parts_[place.part].first_at(place.record)};
  }
  KeyGroup GroupOf(const Link& link) const {
    const DistinctKeys& part = parts_[link.part];
    return KeyGroup{part.key(link.number), part.positions(link.number), part.count(link.number)};
  }

  Allocator* const allocator_;
  KeyBatch batch_;
  KeyPartition partition_;
  std::vector<DistinctKeys> parts_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_KEY_GROUPS_H_
