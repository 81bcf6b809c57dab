// SPDX-License-Identifier: Apache-2.0
// The interface that a store over several tiers needs of its cache (StoreOptions::is_cache).
//
// The rows of a cache have marks (row_mark.h): when they were used, and whether they have changed
// since they were promoted. They have the statistics of the whole store's policy. The cache does
// not apply that policy, except for the time to live, by which a training find takes a row for
// absent. Writes have ExecContext::restoring, which says that they are planned.
#ifndef TF_EMBED_CC_CORE_STORE_STORE_CACHE_H_
#define TF_EMBED_CC_CORE_STORE_STORE_CACHE_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_batch.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/policy/write_planner.h"
#include "cc/core/rows/row_mark.h"
#include "cc/core/rows/whole_rows.h"

namespace tf_embed {

class StoreCache {
 public:
  virtual ~StoreCache() = default;

  // Store::size without a lock. REQUIRES: the content lock, or the content lock of the store over
  // the tiers.
  virtual size_t num_rows() const = 0;

  // Rows are used in this tick from now on.
  virtual void SetTick(uint8_t tick) = 0;

  // Sets `exists` [batch] to whether each key is present. Rows count as used in this tick; their
  // statistics do not change.
  virtual Status Touch(const ExecContext& context, const KeyBatch& batch, bool* exists) const = 0;

  // Marks rows as changed, or as unchanged: a caller that copies them afterwards has all changes,
  // except changes that mark them again. Skips absent keys.
  virtual Status SetChanged(const ExecContext& context, const KeyBatch& batch,
                            bool changed) const = 0;

  // Copies the marks of keys, 0 for absent keys.
  virtual Status FindMarks(const ExecContext& context, const KeyBatch& batch, uint8_t* marks,
                           bool* exists) const = 0;

  // Adds Rank(mark, hash) of rows of at least this age, sampling about one row in `one_in`, always
  // the same rows. If `one_in` is 1, sets the marks of rows too old for them to kOldest. REQUIRES:
  // SetTick is called a few times at most meanwhile.
  virtual Status CollectAges(const ExecContext& context, size_t one_in, uint8_t least_age,
                             RankList* ranks) const = 0;

  // Adds promoted rows, unchanged, with slots and statistics. REQUIRES: the keys are absent and
  // distinct, and no other thread inserts them. On failure some rows may have been added.
  virtual Status AddUnchanged(const ExecContext& context, const WholeRows& rows) = 0;

  // Removes distinct keys. Skips absent keys. Can't fail: the caller has put the rows elsewhere.
  // REQUIRES: the locks of a writer.
  virtual void Drop(const ExecContext& context, const int64_t* keys, size_t count) = 0;

  // For a plan: notes a use of each unexpired row, and reports each lookup's result by position.
  enum class Found : uint8_t { kAbsent, kPresent, kExpired };
  virtual Status NoteUses(const ExecContext& context, const KeyBatch& batch, Found* found) = 0;
  virtual PlannedRows* planned_rows() = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_STORE_CACHE_H_
