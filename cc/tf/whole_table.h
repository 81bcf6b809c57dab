// SPDX-License-Identifier: Apache-2.0
// What the ops that save and restore whole tables share.
#ifndef TF_EMBED_CC_TF_WHOLE_TABLE_H_
#define TF_EMBED_CC_TF_WHOLE_TABLE_H_

#include <mutex>
#include <vector>

#include "cc/core/files/table_meta.h"
#include "cc/core/table/table_locks.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

// Tables that nobody else writes to, while this lives: all shards of any number of variables.
class PausedTables {
 public:
  explicit PausedTables(Allocator* allocator) : shards_(allocator) {}

  // REQUIRES: none are held; the variables are different ones.
  absl::Status Take(std::vector<const TableResource*> tables);
  void Release();

 private:
  std::vector<std::unique_lock<FairSharedMutex>> of_shards_;
  HeldTables shards_;
};

// Keeps writers out of all shards while `paused` lives. If a step has given some shards the slots
// of its rule, waits for it to reach the others, a second at most.
absl::Status PauseWriters(const TableResource& table, PausedTables* paused);

// Whether all shards have a rule; its initial values may be others.
bool HasRule(const TableResource& table, const RuleSlots& rule);

// Gives all shards a rule, at one moment, if one has another, or other initial values of slots.
absl::Status SetRuleOfAll(const RuleSlots& rule, TableResource* table);

// What the table is besides its rows; without slots, as if it had no rule. Nobody writes meanwhile.
absl::Status MetaOf(const TableResource& table, bool with_slots, TableMeta* meta);

// What the table's policy keeps besides the rows.
absl::Status PolicyOf(TableResource* table, SavedPolicy* policy);

// Rows beyond a shard's bound leave as they would have to when the next one comes. Of a table of
// strings the strings mutex is held alone.
absl::Status KeepBounds(const ExecContext& exec, TableResource* table);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_WHOLE_TABLE_H_
