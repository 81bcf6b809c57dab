// The distinct keys of a batch, each with the places where it stands, in the order in which they
// first come. Verbs that write go through a batch in this order: what comes beside its keys (rows,
// gradients) is then read nearly in the order of memory, and a key is dealt with once, by one
// thread, with all of its places in order. So the outcome is the same for any number of threads.
//
// Equal keys are found part by part (KeyPartition, DistinctKeys), many parts at once. Each place
// where a key comes first then has a link to it, and the batch is gone through by its links.
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
 public:
  // Some neighbouring groups, a few hundred at a time.
  class Range {
   public:
    // Goes on to the next groups; false at the end.
    bool Next() {
      const bool is_linked = groups_->is_linked();
      size_ = 0;
      for (; size_ < kMost && next_ < end_; ++next_) {
        // No branch: whether a key comes first here is nobody's guess.
        const uint64_t link = is_linked ? groups_->LinkAt(next_) : next_;
        links_[size_] = link;
        size_ += link != kNoLink ? 1 : 0;
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
        : groups_(groups), next_(begin), end_(end) {}

    const KeyGroups* groups_;
    size_t next_;
    size_t end_;
    size_t size_ = 0;
    uint64_t links_[kMost];
    KeyGroup some_[kMost];
  };

  explicit KeyGroups(Allocator* allocator)
      : allocator_(allocator), partition_(allocator), links_(allocator) {}

  // Groups the keys of `batch` for which `skip` [batch, by position] is false, or all if it is
  // null. The batch outlives this.
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
  static constexpr uint64_t kNoLink = ~uint64_t{0};

  // A batch of one part needs no links: its distinct keys are in order.
  bool is_linked() const { return parts_.size() > 1; }

  uint64_t LinkAt(size_t i) const { return links_[batch_.Position(i)]; }
  KeyGroup GroupOf(uint64_t link) const {
    const DistinctKeys& part = parts_[link >> 32];
    const size_t i = link & 0xffffffffu;
    return KeyGroup{part.key(i), part.positions(i), part.count(i)};
  }

  Allocator* const allocator_;
  KeyBatch batch_;
  KeyPartition partition_;
  std::vector<DistinctKeys> parts_;
  Buffer<uint64_t> links_;  // by position: part << 32 | number in the part, or kNoLink
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_KEY_GROUPS_H_
