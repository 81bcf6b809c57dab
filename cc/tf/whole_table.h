// SPDX-License-Identifier: Apache-2.0
// Shared parts of the ops that save and restore whole tables.
#ifndef TF_EMBED_CC_TF_WHOLE_TABLE_H_
#define TF_EMBED_CC_TF_WHOLE_TABLE_H_

#include <cstddef>
#include <mutex>
#include <vector>

#include "cc/core/files/table_meta.h"
#include "cc/core/store/store_locks.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

// The number of rows that an export copies at a time.
inline constexpr size_t kExportRows = size_t{1} << 16;

// Keeps writers out of all shards of several variables while it lives.
class PausedTables {
 public:
  explicit PausedTables(Allocator* allocator) : shards_(allocator) {}

  // REQUIRES: nothing is held; the variables are distinct.
  absl::Status Take(std::vector<const TableResource*> tables);
  void Release();

 private:
  std::vector<std::unique_lock<FairSharedMutex>> of_shards_;
  HeldStores shards_;
};

// Pauses the writers of all shards while `paused` lives. If a step has set its rule on some shards
// only, first waits for it to reach the others, at most a second.
absl::Status PauseWriters(const TableResource& table, PausedTables* paused);

// Whether all shards have the rule, regardless of initial values.
bool HasRule(const TableResource& table, const RuleSlots& rule);

// Sets the rule of all shards atomically, if any shard has another rule or other initial slots.
absl::Status SetRuleOfAll(const RuleSlots& rule, TableResource* table);

// The table's metadata, without its rows. Unless `with_slots`, as if it had no rule. REQUIRES: no
// concurrent writes.
absl::Status MetaOf(const TableResource& table, bool with_slots, TableMeta* meta);

// The saved state of the table's policy, without the rows.
absl::Status PolicyOf(TableResource* table, SavedPolicy* policy);

// Evicts rows until each shard is within its bound. REQUIRES: the strings mutex of a table of
// strings is held exclusively.
absl::Status KeepBounds(const ExecContext& exec, TableResource* table);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_WHOLE_TABLE_H_
