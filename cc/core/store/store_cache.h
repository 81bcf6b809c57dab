// SPDX-License-Identifier: Apache-2.0
// The interface that a store over several tiers needs of its cache (StoreOptions::is_cache).
//
// The rows of a cache have marks (row_mark.h): when they were used, and whether they have changed
// since they came from below. They have the statistics of the whole store's policy. That policy is
// not the cache's business, except for the time to live, by which a find of training takes a row
// for absent: writes come with ExecContext::restoring, which says that they are planned.
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

  // Store::size without a lock. REQUIRES: the content lock, or that of the store over the tiers.
  virtual size_t num_rows() const = 0;

  // Rows are used in this tick from now on.
  virtual void SetTick(uint8_t tick) = 0;

  // Tells which keys are there, in `exists` [batch]. Rows count as used in this tick, and nothing
  // is noted in their statistics.
  virtual Status Touch(const ExecContext& context, const KeyBatch& batch, bool* exists) const = 0;

  // Marks rows as changed, or as unchanged: a caller that copies them afterwards has all changes
  // but those that mark them again. Absent keys are passed over.
  virtual Status SetChanged(const ExecContext& context, const KeyBatch& batch,
                            bool changed) const = 0;

  // Copies the marks of keys, 0 for absent ones.
  virtual Status FindMarks(const ExecContext& context, const KeyBatch& batch, uint8_t* marks,
                           bool* exists) const = 0;

  // Adds Rank(mark, hash) of rows that are at least so old, of about one row in `one_in`, which are
  // always the same ones. If that is 1, rows that are too old for their marks are brought to
  // kOldest. REQUIRES: SetTick is called a few times at most meanwhile.
  virtual Status CollectAges(const ExecContext& context, size_t one_in, uint8_t least_age,
                             RankList* ranks) const = 0;

  // Adds rows that come from below, unchanged, with slots and statistics. REQUIRES: the keys are
  // absent and come once, and no other thread inserts them. On failure some may have come.
  virtual Status AddUnchanged(const ExecContext& context, const WholeRows& rows) = 0;

  // Removes keys, which come once. Absent ones are passed over. Can't fail: the caller has put the
  // rows elsewhere. REQUIRES: the locks of a writer.
  virtual void Drop(const ExecContext& context, const int64_t* keys, size_t count) = 0;

  // For a plan: notes a use of each unexpired row, and reports each lookup's result by position.
  enum class Found : uint8_t { kAbsent, kPresent, kExpired };
  virtual Status NoteUses(const ExecContext& context, const KeyBatch& batch, Found* found) = 0;
  virtual PlannedRows* planned_rows() = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_STORE_CACHE_H_
