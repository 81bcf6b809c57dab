// SPDX-License-Identifier: Apache-2.0
// Ops on all rows of a table: Clear, Shrink, Size, Export, Import, Stats, Origin.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/files/table_meta.h"
#include "cc/core/store/store_stats.h"
#include "cc/core/table/paused_tables.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

absl::Status RunClear(tf::OpKernelContext*, TableResource* table) {
  return ToTensorFlow(table->Clear());
}

absl::Status RunShrink(tf::OpKernelContext* context, TableResource* table) {
  return ToTensorFlow(table->Shrink(ExecContextOf(context)));
}

absl::Status RunSize(tf::OpKernelContext* context, TableResource* table) {
  int64_t shard;
  TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "shard", &shard));
  if (shard < -1 || shard >= static_cast<int64_t>(table->num_shards())) {
    return InvalidArgumentError("Table '", table->name(), "' has ", table->num_shards(),
                                " shards. Received: index=", shard, ".");
  }
  size_t count;
  TF_RETURN_IF_ERROR(ToTensorFlow(table->Count(shard, &count)));
  return GiveScalar<int64_t>(context, 0, count);
}

class ExportOp : public TableOp {
 public:
  explicit ExportOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("with_slots", &with_slots_));
    OP_REQUIRES_OK(construction, construction->GetAttr("with_policy", &with_policy_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckMaintenance()));
    if (output_type(0) != table->signature().key_dtype ||
        output_type(1) != table->signature().value_dtype ||
        tf::DataTypeSize(output_type(2)) != static_cast<int>(SlotSize(table->value_type()))) {
      return InvalidArgumentError(
          "Table '", table->name(), "' is ", table->signature().DebugString(), ". Asked for: keys ",
          tf::DataTypeString(output_type(0)), ", values ", tf::DataTypeString(output_type(1)),
          ", slots ", tf::DataTypeString(output_type(2)), ".");
    }
    // Serialize, so that an export sees all shards before or after another such verb.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    StringScope string_scope(table, KeyUse::kRead);
    PausedTables paused(table->allocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(paused.Take(*table)));
    TableMeta meta;
    TF_RETURN_IF_ERROR(ToTensorFlow(table->GetMeta(with_slots_, &meta)));
    // The row count of a shared table is unknown until its rows have been read.
    std::vector<WholeRows> shared;
    if (table->is_shared()) {
      TF_RETURN_IF_ERROR(ToTensorFlow(ReadShared(*table, &meta, &shared)));
    }
    // Exact until the end of the op, because writers are paused. The tensors have to be allocated
    // before the rows are read.
    size_t size = table->is_shared() ? 0 : table->size();
    for (const WholeRows& rows : shared) size += rows.size;
    SavedPolicy policy;
    if (with_policy_) TF_RETURN_IF_ERROR(ToTensorFlow(table->GetPolicy(&policy)));
    const size_t words = policy.statistics.size();
    Outputs out;
    TF_RETURN_IF_ERROR(out.Allocate(context, *table, size, meta, policy));
    size_t done = 0;
    const ExecContext exec = ExecContextOf(context);
    const auto write = [&](WholeRows* rows) {
      WriteKeys(exec, *table, rows->keys.data(), rows->size, done, out.keys);
      if (table->value_strings() != nullptr) {
        WriteStrings(exec, *table->value_strings(),
                     reinterpret_cast<const int64_t*>(rows->weights.data()),
                     rows->size * table->dim(), done * table->dim(), out.values);
      } else {
        CopyRows(rows->weights.data(), rows->size, table->row_bytes(), done, out.values);
      }
      CopyRows(rows->slots.data(), rows->size,
               meta.rule.slots_per_row() * SlotSize(meta.value_type), done, out.slots);
      rows->KeepStatistics(table->statistics().size(), words);
      CopyRows(rows->statistics.data(), rows->size, words * sizeof(uint64_t), done, out.statistics);
      done += rows->size;
      return Status();
    };
    if (!table->is_shared()) return ToTensorFlow(table->ForEachBlock(kExportRows, write));
    for (WholeRows& rows : shared) TF_RETURN_IF_ERROR(ToTensorFlow(write(&rows)));
    return absl::OkStatus();
  }

  struct Outputs {
    tf::Tensor *keys, *values, *slots, *statistics;

    absl::Status Allocate(tf::OpKernelContext* context, const TableResource& table, size_t rows,
                          const TableMeta& meta, const SavedPolicy& policy) {
      const int64_t size = static_cast<int64_t>(rows);
      const int64_t slots_per_row = static_cast<int64_t>(meta.rule.slots_per_row());
      const int64_t words = static_cast<int64_t>(policy.statistics.size());
      const std::vector<int64_t> saved = policy.Encode();
      tf::Tensor *meta_numbers, *policy_numbers;
      TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &keys));
      TF_RETURN_IF_ERROR(context->allocate_output(1, {size, table.signature().dim}, &values));
      TF_RETURN_IF_ERROR(context->allocate_output(2, {size, slots_per_row}, &slots));
      TF_RETURN_IF_ERROR(
          context->allocate_output(3, {static_cast<int64_t>(meta.count())}, &meta_numbers));
      TF_RETURN_IF_ERROR(context->allocate_output(4, {size, words}, &statistics));
      TF_RETURN_IF_ERROR(
          context->allocate_output(5, {static_cast<int64_t>(saved.size())}, &policy_numbers));
      meta.Encode(meta_numbers->flat<int64_t>().data());
      std::copy(saved.begin(), saved.end(), policy_numbers->flat<int64_t>().data());
      return absl::OkStatus();
    }
  };

  // Reads all rows of a shared table, with the rule of their slots. A shared table has neither
  // strings nor statistics.
  Status ReadShared(const Table& table, TableMeta* meta, std::vector<WholeRows>* parts) const {
    return table.ForEachBlock(kExportRows, [&](WholeRows* rows) {
      parts->push_back(std::exchange(*rows, WholeRows(table.allocator())));
      // Reading the first part determined the rule. Reading the last fails if it has changed.
      return parts->size() == 1 ? table.GetMeta(with_slots_, meta) : Status();
    });
  }

  static void CopyRows(const void* rows, size_t count, size_t row_bytes, size_t at,
                       tf::Tensor* out) {
    if (count * row_bytes == 0) return;
    std::memcpy(static_cast<char*>(out->data()) + at * row_bytes, rows, count * row_bytes);
  }

  static constexpr size_t kExportRows = size_t{1} << 16;  // that are copied at a time

  bool with_slots_ = true;
  bool with_policy_ = true;
};

absl::Status ReadPolicy(tf::OpKernelContext* context, const TableResource& table,
                        const KeysInput& keys, SavedPolicy* policy) {
  const tf::Tensor& statistics = context->input(6);
  const tf::Tensor& numbers = context->input(7);
  TF_RETURN_IF_ERROR(ToTensorFlow(SavedPolicy::Decode(
      numbers.flat<int64_t>().data(), static_cast<size_t>(numbers.NumElements()), policy)));
  const tf::TensorShape expected(
      {static_cast<int64_t>(keys.size()), static_cast<int64_t>(policy->statistics.size())});
  if (statistics.shape() != expected) {
    return InvalidArgumentError("The saved statistics of table '", table.name(), "' must be ",
                                expected.DebugString(),
                                ". Received: ", statistics.shape().DebugString(), ".");
  }
  return absl::OkStatus();
}

absl::Status ReadMeta(tf::OpKernelContext* context, const TableResource& table,
                      const KeysInput& keys, TableMeta* meta) {
  const tf::Tensor& slots = context->input(4);
  const tf::Tensor& numbers = context->input(5);
  TF_RETURN_IF_ERROR(ToTensorFlow(TableMeta::Decode(
      numbers.flat<int64_t>().data(), static_cast<size_t>(numbers.NumElements()), meta)));
  if (meta->value_type != table.value_type() || meta->dim != table.dim()) {
    return InvalidArgumentError("What was saved does not fit table '", table.name(), "', ",
                                table.signature().DebugString(), ". It has ",
                                tf::DataTypeString(TensorFlowType(meta->value_type)),
                                " values and dim ", meta->dim, ".");
  }
  const tf::TensorShape expected(
      {static_cast<int64_t>(keys.size()), static_cast<int64_t>(meta->rule.slots_per_row())});
  if (slots.shape() != expected ||
      tf::DataTypeSize(slots.dtype()) != static_cast<int>(SlotSize(meta->value_type))) {
    return InvalidArgumentError(
        "The saved slots of table '", table.name(), "' must be ", expected.DebugString(),
        ". Received: ", tf::DataTypeString(slots.dtype()), " ", slots.shape().DebugString(), ".");
  }
  return absl::OkStatus();
}

absl::Status RunImport(tf::OpKernelContext* context, TableResource* table) {
  TF_RETURN_IF_ERROR(ToTensorFlow(table->CheckMaintenance()));
  TableContent content;
  if (!content.dictionaries.Create(table->allocator(), table->has_string_keys(),
                                   table->has_string_values())) {
    return ResourceExhaustedError("No memory to restore table '", table->name(), "'.");
  }
  KeysInput keys(table->allocator());
  const tf::Tensor& values = context->input(3);
  TF_RETURN_IF_ERROR(CheckRank(context->input(1), "keys", 1));
  TF_RETURN_IF_ERROR(CheckRank(context->input(5), "meta", 1));
  TF_RETURN_IF_ERROR(CheckRank(context->input(7), "policy", 1));
  TF_RETURN_IF_ERROR(KeysInput::ReadAside(context, *table, content.dictionaries.keys.get(), &keys));
  TF_RETURN_IF_ERROR(CheckRows(values, "values", *table, keys));
  TF_RETURN_IF_ERROR(ReadMeta(context, *table, keys, &content.meta));
  TF_RETURN_IF_ERROR(ReadPolicy(context, *table, keys, &content.policy));
  const ExecContext exec = ExecContextOf(context);
  Buffer<int64_t> numbers(table->allocator());
  content.keys = keys.batch();
  content.weights = values.data();
  content.slots = context->input(4).data();
  content.statistics = static_cast<const uint64_t*>(context->input(6).data());
  if (content.dictionaries.values != nullptr) {
    TF_RETURN_IF_ERROR(ToTensorFlow(InternStrings(exec, StringsOf(values), table->allocator(),
                                                  content.dictionaries.values.get(), &numbers)));
    content.weights = numbers.data();
  }
  return ToTensorFlow(table->Import(exec, &content));
}

const Kernels<TableFunction<RunClear>> clear("TfEmbedClear", {"table"});
const Kernels<TableFunction<RunShrink>> shrink("TfEmbedShrink", {"table"});
const Kernels<TableFunction<RunSize>> size("TfEmbedSize", {"table", "shard", "size"});
const Kernels<ExportOp> export_rows("TfEmbedExport", {"table", "keys", "values", "slots", "meta",
                                                      "statistics", "policy"});
const Kernels<TableFunction<RunImport>> import_rows("TfEmbedImport",
                                                    {"table", "keys", "owners", "values", "slots",
                                                     "meta", "statistics", "policy"});

absl::Status RunStats(tf::OpKernelContext* context, TableResource* table) {
  StoreStats stats;
  TF_RETURN_IF_ERROR(ToTensorFlow(table->Stats(&stats)));
  tf::Tensor* output;
  TF_RETURN_IF_ERROR(
      context->allocate_output(0, {static_cast<int64_t>(std::size(kStoreStats))}, &output));
  int64_t* next = output->flat<int64_t>().data();
  for (const StoreStat& stat : kStoreStats) *next++ = static_cast<int64_t>(stats.*stat.number);
  return absl::OkStatus();
}

const Kernels<TableFunction<RunStats>> stats("TfEmbedStats", {"table", "numbers"});

absl::Status RunOrigin(tf::OpKernelContext* context, TableResource* table) {
  const RowInitializer initializer = table->store(0)->initializer();
  tf::Tensor* output;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {2}, &output));
  output->flat<int64_t>()(0) = static_cast<int64_t>(initializer.seed);
  output->flat<int64_t>()(1) = static_cast<int64_t>(initializer.table_id);
  return absl::OkStatus();
}

const Kernels<TableFunction<RunOrigin>> origin("TfEmbedOrigin", {"table", "numbers"});

}  // namespace

}  // namespace tf_embed
