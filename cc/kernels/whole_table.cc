#include "cc/kernels/whole_table.h"

#include "cc/core/restrict.h"

namespace tf_embed {

absl::Status MetaOf(const TableResource& table, bool with_slots, TableMeta* meta) {
  const RowInitializer initializer = table.shard(0)->initializer();
  meta->seed = initializer.seed;
  meta->table_id = initializer.table_id;
  meta->value_type = table.shard(0)->options().value_type;
  meta->dim = table.dim();
  if (!with_slots) return absl::OkStatus();
  meta->rule = table.shard(0)->rule();
  for (size_t number = 0; number < table.num_shards(); ++number) {
    if (!SameRule(table.shard(number)->rule(), meta->rule)) {
      return absl::FailedPreconditionError(
          absl::StrCat("Table '", table.name(),
                       "' is changing from one optimizer to another. Save it after the step."));
    }
  }
  return absl::OkStatus();
}

absl::Status PolicyOf(TableResource* table, SavedPolicy* policy) {
  policy->statistics = table->statistics();
  if (policy->statistics.size() > 0) policy->step = table->clock()->step();
  if (policy->statistics.Has(Statistic::kEpoch)) policy->epoch = table->clock()->epoch();
  if (table->admission() == nullptr) return absl::OkStatus();
  return ToTensorFlow(table->admission()->Save(&policy->admission));
}

absl::Status KeepBounds(const ExecContext& exec, TableResource* table) {
  for (size_t number = 0; number < table->num_shards(); ++number) {
    Table* const shard = table->shard(number);
    const RowPolicy& policy = shard->options().policy;
    if (policy.max_rows == 0 || shard->size() <= policy.max_rows) continue;
    size_t removed = 0;
    TF_RETURN_IF_ERROR(
        ToTensorFlow(RestrictRows(exec, &shard, 1, policy.eviction, policy.max_rows, &removed)));
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
