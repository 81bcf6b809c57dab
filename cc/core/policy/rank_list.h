// SPDX-License-Identifier: Apache-2.0
// Ranks of rows, a growing array.
#ifndef TF_EMBED_CC_CORE_POLICY_RANK_LIST_H_
#define TF_EMBED_CC_CORE_POLICY_RANK_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "cc/core/base/allocator.h"
#include "cc/core/policy/row_policy.h"

namespace tf_embed {

class RankList {
 public:
  explicit RankList(Allocator* allocator) : allocator_(allocator), ranks_(allocator) {}

  Status Append(const Rank* ranks, size_t count) {
    if (size_ + count > ranks_.size()) {
      Buffer<Rank> larger(allocator_);
      TF_EMBED_RETURN_IF_ERROR(larger.Resize(std::max(size_ + count, 2 * ranks_.size())));
      if (size_ > 0) std::memcpy(larger.data(), begin(), size_ * sizeof(Rank));
      ranks_ = std::move(larger);
    }
    if (count > 0) std::memcpy(ranks_.data() + size_, ranks, count * sizeof(Rank));
    size_ += count;
    return Status();
  }
  Status Append(const Rank& rank) { return Append(&rank, 1); }

  void Truncate(size_t size) { size_ = size; }
  void Clear() { size_ = 0; }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  Rank* begin() { return ranks_.data(); }
  Rank* end() { return begin() + size_; }
  const Rank* begin() const { return ranks_.data(); }
  const Rank* end() const { return begin() + size_; }
  const Rank& operator[](size_t i) const { return ranks_[i]; }

 private:
  Allocator* allocator_;
  Buffer<Rank> ranks_;
  size_t size_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_RANK_LIST_H_
