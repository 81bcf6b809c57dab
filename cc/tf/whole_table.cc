// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/whole_table.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "cc/core/shards/restrict.h"

namespace tf_embed {

bool HasRule(const TableResource& table, const RuleSlots& rule) {
  for (size_t number = 0; number < table.num_shards(); ++number) {
    if (!SameRule(table.shard(number)->rule(), rule)) return false;
  }
  return true;
}

absl::Status PausedTables::Take(std::vector<const TableResource*> tables) {
  std::sort(tables.begin(), tables.end(), TableResource::IsLockedBefore);
  std::vector<const Store*> shards;
  for (const TableResource* const table : tables) {
    // Before the locks of the shards, so that no op is paused between two shards.
    of_shards_.emplace_back(*table->shards_mutex());
    for (const Store* const shard : table->shards()) shards.push_back(shard);
  }
  return ToTensorFlow(shards_.Take(shards.data(), shards.size(), Held::kPaused));
}

void PausedTables::Release() {
  shards_.Release();
  of_shards_.clear();
}

absl::Status PauseWriters(const TableResource& table, PausedTables* paused) {
  constexpr int kMaxTries = 10000;
  for (int tries = 1;; ++tries) {
    TF_RETURN_IF_ERROR(paused->Take({&table}));
    // A step that changes the rule shard by shard may be between two shards. Let it go on, and look
    // again.
    if (tries == kMaxTries || HasRule(table, table.shard(0)->rule())) return absl::OkStatus();
    paused->Release();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

absl::Status SetRuleOfAll(const RuleSlots& rule, TableResource* table) {
  const auto has_it = [&](const Store* shard) {
    return SameRuleAndInitialValues(shard->rule(), rule);
  };
  const std::vector<Store*> shards = table->shards();
  TF_RETURN_IF_ERROR(table->CheckMaintenance());
  // Check first, because setting a rule waits for all readers and writers.
  if (std::all_of(shards.begin(), shards.end(), has_it)) return absl::OkStatus();
  HeldStores paused(table->allocator());
  TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(shards.data(), shards.size(), Held::kPaused)));
  const ExecContext exec = ExecContext::Serial().Holding(Held::kPaused);
  for (Store* const shard : shards) {
    if (!has_it(shard)) TF_RETURN_IF_ERROR(ToTensorFlow(shard->maintenance()->SetRule(exec, rule)));
  }
  return absl::OkStatus();
}

absl::Status MetaOf(const TableResource& table, bool with_slots, TableMeta* meta) {
  const RowInitializer initializer = table.shard(0)->initializer();
  meta->seed = initializer.seed;
  meta->table_id = initializer.table_id;
  meta->value_type = table.shard(0)->options().value_type;
  meta->dim = table.dim();
  if (!with_slots) return absl::OkStatus();
  meta->rule = table.shard(0)->rule();
  if (HasRule(table, meta->rule)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Table '", table.name(),
                   "' is changing from one optimizer to another. Save it after the step."));
}

absl::Status PolicyOf(TableResource* table, SavedPolicy* policy) {
  policy->statistics = table->statistics().OfUse();
  if (policy->statistics.size() > 0) policy->step = table->clock()->step();
  if (policy->statistics.Has(Statistic::kEpoch)) policy->epoch = table->clock()->epoch();
  if (table->admission() == nullptr) return absl::OkStatus();
  return ToTensorFlow(table->admission()->Save(&policy->admission));
}

absl::Status KeepBounds(const ExecContext& exec, TableResource* table) {
  for (size_t number = 0; number < table->num_shards(); ++number) {
    Store* const shard = table->shard(number);
    const RowPolicy& policy = shard->options().policy;
    if (policy.max_rows == 0 || shard->size() <= policy.max_rows) continue;
    size_t removed = 0;
    TF_RETURN_IF_ERROR(
        ToTensorFlow(RestrictRows(exec, &shard, 1, policy.eviction, policy.max_rows, &removed)));
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
