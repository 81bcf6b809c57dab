// SPDX-License-Identifier: Apache-2.0
#include "cc/core/store/store.h"

#include "cc/core/rules/rule_list.h"

namespace tf_embed {

Status Store::GetMaintenance(StoreMaintenance** found) {
  *found = maintenance();
  if (*found != nullptr) return Status();
  return Status::FailedPrecondition("The store of table '" + options().name +
                                    "' can't be exported, shrunk or given another rule.");
}

Status Store::GetEviction(StoreEviction** found) {
  *found = eviction();
  if (*found != nullptr) return Status();
  return Status::FailedPrecondition("The store of table '" + options().name +
                                    "' keeps no statistics by which rows leave.");
}

Status StoreMaintenance::ExportSnapshot(const ExecContext&, size_t, ExportCursor*, WholeRows*) {
  return Status::FailedPrecondition("The store of a table has no snapshots.");
}

Status NoMemoryForRow(const std::string& store, size_t keys_held) {
  return Status::ResourceExhausted([&] {
    return "Table '" + store + "' finds no memory for another row. It holds " +
           std::to_string(keys_held) + " keys.";
  });
}

Status RuleWasChanged(const std::string& store) {
  return Status::FailedPrecondition(
      "The optimizer of table '" + store +
      "' was changed: its rows no longer have the slots of the rule that asks.");
}

Status CheckAccum(const StoreOptions& options) {
  if (options.value_type != DataType::kBool) return Status();
  return Status::InvalidArgument("Table '" + options.name +
                                 "' has bool weights, which have no sum: assign them.");
}

Status CheckApply(const StoreOptions& options, DataType gradient_type, const Rule& rule) {
  if (!IsFloating(options.value_type)) {
    return Status::InvalidArgument("Table '" + options.name +
                                   "' has integer or bool weights, which no optimizer can train.");
  }
  if (rule.slots.kind == RuleKind::kExternal) {
    return Status::InvalidArgument("Table '" + options.name +
                                   "' can't run an external rule: find and assign its slots.");
  }
  const bool narrow =
      options.value_type == DataType::kHalf || options.value_type == DataType::kBFloat16;
  if (gradient_type != options.value_type && !(narrow && gradient_type == DataType::kFloat)) {
    return Status::InvalidArgument(
        "The gradients of table '" + options.name +
        "' must be of the type of its weights, or float32 beside float16 and bfloat16 ones.");
  }
  if (FactsOf(rule.slots.kind).needs_even_dim && options.dim % 2 != 0) {
    return Status::InvalidArgument(
        "Table '" + options.name +
        "' must have an even dim, as the second half of a row follows the first. Received: " +
        std::to_string(options.dim) + ".");
  }
  return Status();
}

}  // namespace tf_embed
