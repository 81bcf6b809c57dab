// SPDX-License-Identifier: Apache-2.0
// The order in which rows leave a cache: roughly by their last step of use, the oldest first.
//
// The order is not exact, because a row has the same values in every tier. The ranks of about an
// eighth of the cache are collected in one pass, and are used up by many calls. A row that was used
// since its rank was collected is passed over.
//
// Not thread-safe.
#ifndef TF_EMBED_CC_TIERED_VICTIMS_H_
#define TF_EMBED_CC_TIERED_VICTIMS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/table/table.h"

namespace tf_embed {

class Victims {
 public:
  explicit Victims(Allocator* allocator)
      : allocator_(allocator), ranks_(allocator), steps_(allocator), exists_(allocator) {}

  // Puts at most `count` keys of rows that may leave in `keys`; none if no row is old. Sets
  // `*collected` to whether that took a new pass over the cache, which has the statistic kLastStep
  // alone. REQUIRES: nobody changes the cache, and `context` says that the caller holds it.
  Status Next(const ExecContext& context, const Table& cache, size_t count, int64_t* keys,
              size_t* found, bool* collected);

  // Rows that were passed over are candidates again.
  void Forget() {
    ranks_.Clear();
    next_ = 0;
  }

 private:
  Status Collect(const ExecContext& context, const Table& cache);

  Allocator* const allocator_;
  RankList ranks_;
  size_t next_ = 0;
  Buffer<uint64_t> steps_;
  Buffer<bool> exists_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERED_VICTIMS_H_
