// SPDX-License-Identifier: Apache-2.0
// Ops on all rows of a table: Clear, Shrink, Size, Export, Import, Stats, Origin.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/core/store/store_stats.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/table_op.h"
#include "cc/tf/whole_table.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class ClearOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext*, TableResource* table) override {
    // Serialize, so that no other such verb sees only some shards cleared.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    StringKeyScope string_scope(table, KeyUse::kErase);
    PausedTables paused(table->allocator());
    TF_RETURN_IF_ERROR(PauseWriters(*table, &paused));
    const ExecContext exec = ExecContext::Serial().Holding(Held::kPaused);
    for (size_t number = 0; number < table->num_shards(); ++number) {
      TF_RETURN_IF_ERROR(ToTensorFlow(table->shard(number)->Clear(exec)));
    }
    if (table->key_strings() != nullptr) table->key_strings()->Clear();
    if (table->value_strings() != nullptr) table->value_strings()->Clear();
    // Waiting keys are content too.
    if (table->admission() != nullptr) return ToTensorFlow(table->admission()->Clear());
    return absl::OkStatus();
  }
};

class ShrinkOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    const ExecContext exec = ThreadPoolOf(context, table);
    TF_RETURN_IF_ERROR(table->CheckMaintenance());
    for (size_t number = 0; number < table->num_shards(); ++number) {
      TF_RETURN_IF_ERROR(ToTensorFlow(table->shard(number)->maintenance()->Shrink(exec)));
    }
    StringKeyScope string_scope(table, KeyUse::kErase);
    for (StringKeys* const dictionary : {table->key_strings(), table->value_strings()}) {
      if (dictionary != nullptr) TF_RETURN_IF_ERROR(ToTensorFlow(dictionary->Shrink()));
    }
    return absl::OkStatus();
  }
};

class SizeOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    tf::Tensor* size;
    int64_t shard;
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "shard", &shard));
    if (shard < -1 || shard >= static_cast<int64_t>(table->num_shards())) {
      return InvalidArgumentError("Table '", table->name(), "' has ", table->num_shards(),
                                  " shards. Received: index=", shard, ".");
    }
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &size));
    size_t sum = 0;
    for (size_t number = 0; number < table->num_shards(); ++number) {
      size_t count;
      if (shard >= 0 && number != static_cast<size_t>(shard)) continue;
      TF_RETURN_IF_ERROR(ToTensorFlow(table->shard(number)->Count(&count)));
      sum += count;
    }
    size->scalar<int64_t>()() = static_cast<int64_t>(sum);
    return absl::OkStatus();
  }
};

class ExportOp : public TableOp {
 public:
  explicit ExportOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("with_slots", &with_slots_));
    OP_REQUIRES_OK(construction, construction->GetAttr("with_policy", &with_policy_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    TF_RETURN_IF_ERROR(table->CheckMaintenance());
    if (output_type(0) != table->signature().key_dtype ||
        output_type(1) != table->signature().value_dtype ||
        tf::DataTypeSize(output_type(2)) !=
            static_cast<int>(SlotSize(table->shard(0)->options().value_type))) {
      return InvalidArgumentError(
          "Table '", table->name(), "' is ", table->signature().DebugString(), ". Asked for: keys ",
          tf::DataTypeString(output_type(0)), ", values ", tf::DataTypeString(output_type(1)),
          ", slots ", tf::DataTypeString(output_type(2)), ".");
    }
    // Serialize, so that an export sees all shards before or after another such verb.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    StringKeyScope string_scope(table, KeyUse::kRead);
    PausedTables paused(table->allocator());
    TF_RETURN_IF_ERROR(PauseWriters(*table, &paused));
    TableMeta meta;
    TF_RETURN_IF_ERROR(MetaOf(*table, with_slots_, &meta));
    // The row count of a shared table is unknown until its rows have been read.
    std::vector<WholeRows> shared;
    if (table->is_shared()) TF_RETURN_IF_ERROR(ReadShared(table, &meta, &shared));
    // Exact until the end of the op, because writers are paused. The tensors have to be allocated
    // before the rows are read.
    int64_t size = static_cast<int64_t>(table->is_shared() ? 0 : table->size());
    for (const WholeRows& rows : shared) size += static_cast<int64_t>(rows.size);
    tf::Tensor *keys, *values, *slots, *numbers;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {size, table->signature().dim}, &values));
    const size_t slots_per_row = meta.rule.slots_per_row();
    TF_RETURN_IF_ERROR(
        context->allocate_output(2, {size, static_cast<int64_t>(slots_per_row)}, &slots));
    TF_RETURN_IF_ERROR(context->allocate_output(3, {static_cast<int64_t>(meta.count())}, &numbers));
    meta.Encode(numbers->flat<int64_t>().data());

    tf::Tensor* statistics;
    SavedPolicy policy;
    if (with_policy_) TF_RETURN_IF_ERROR(PolicyOf(table, &policy));
    const size_t words = policy.statistics.size();
    TF_RETURN_IF_ERROR(
        context->allocate_output(4, {size, static_cast<int64_t>(words)}, &statistics));
    TF_RETURN_IF_ERROR(GivePolicy(context, policy));
    const ExecContext exec = ThreadPoolOf(context);
    WholeRows rows(table->allocator());
    const size_t slot_bytes = slots_per_row * SlotSize(meta.value_type);
    size_t done = 0;
    for (const WholeRows& part : shared) {
      NarrowKeys(part.keys.data(), part.size, done, keys);
      CopyRows(part.weights.data(), part.size, table->row_bytes(), done, values);
      CopyRows(part.slots.data(), part.size, slot_bytes, done, slots);
      done += part.size;
    }
    for (size_t number = 0; number < table->num_shards() && !table->is_shared(); ++number) {
      for (ExportCursor cursor; !cursor.done; done += rows.size) {
        TF_RETURN_IF_ERROR(ToTensorFlow(
            table->shard(number)->maintenance()->ExportBatch(kExportRows, &cursor, &rows)));
        if (table->key_strings() != nullptr) {
          WriteStrings(exec, *table->key_strings(), rows.keys.data(), rows.size, done, keys);
        } else {
          NarrowKeys(rows.keys.data(), rows.size, done, keys);
        }
        if (table->value_strings() != nullptr) {
          WriteStrings(exec, *table->value_strings(),
                       reinterpret_cast<const int64_t*>(rows.weights.data()),
                       rows.size * table->dim(), done * table->dim(), values);
        } else {
          CopyRows(rows.weights.data(), rows.size, table->row_bytes(), done, values);
        }
        CopyRows(rows.slots.data(), rows.size, slot_bytes, done, slots);
        rows.KeepStatistics(table->statistics().size(), words);
        CopyRows(rows.statistics.data(), rows.size, words * sizeof(uint64_t), done, statistics);
      }
    }
    return absl::OkStatus();
  }

  // Reads all rows of a shared table, with the rule of their slots. A shared table has neither
  // strings nor statistics.
  absl::Status ReadShared(TableResource* table, TableMeta* meta,
                          std::vector<WholeRows>* parts) const {
    StoreMaintenance* const maintenance = table->shard(0)->maintenance();
    for (ExportCursor cursor; !cursor.done;) {
      parts->emplace_back(table->allocator());
      TF_RETURN_IF_ERROR(
          ToTensorFlow(maintenance->ExportBatch(kExportRows, &cursor, &parts->back())));
      // Reading the first part determined the rule. Reading the last fails if it has changed.
      if (parts->size() == 1) TF_RETURN_IF_ERROR(MetaOf(*table, with_slots_, meta));
    }
    return absl::OkStatus();
  }

  static absl::Status GivePolicy(tf::OpKernelContext* context, const SavedPolicy& policy) {
    const std::vector<int64_t> numbers = policy.Encode();
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(
        context->allocate_output(5, {static_cast<int64_t>(numbers.size())}, &output));
    std::copy(numbers.begin(), numbers.end(), output->flat<int64_t>().data());
    return absl::OkStatus();
  }

  static void CopyRows(const void* rows, size_t count, size_t row_bytes, size_t at,
                       tf::Tensor* out) {
    if (count * row_bytes == 0) return;
    std::memcpy(static_cast<char*>(out->data()) + at * row_bytes, rows, count * row_bytes);
  }

  bool with_slots_ = true;
  bool with_policy_ = true;
};

class ImportOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    TF_RETURN_IF_ERROR(table->CheckMaintenance());
    // Build everything aside. The table takes it over once nothing in this process can fail.
    std::unique_ptr<StringKeys> key_strings, value_strings;
    TF_RETURN_IF_ERROR(NewDictionary(*table, table->has_string_keys(), &key_strings));
    TF_RETURN_IF_ERROR(NewDictionary(*table, table->has_string_values(), &value_strings));
    KeysInput keys(table->allocator());
    TableMeta meta;
    SavedPolicy policy;
    const tf::Tensor& values = context->input(3);
    const tf::Tensor& statistics = context->input(6);
    TF_RETURN_IF_ERROR(CheckRank(context->input(1), "keys", 1));
    TF_RETURN_IF_ERROR(CheckRank(context->input(5), "meta", 1));
    TF_RETURN_IF_ERROR(CheckRank(context->input(7), "policy", 1));
    TF_RETURN_IF_ERROR(KeysInput::ReadAside(context, *table, key_strings.get(), &keys));
    keys.TakeAsDistinct(true);  // as in any export; repeated keys would yield fewer rows
    TF_RETURN_IF_ERROR(CheckRows(values, "values", *table, keys));
    TF_RETURN_IF_ERROR(ReadMeta(context, *table, keys, &meta));
    TF_RETURN_IF_ERROR(ReadPolicy(context, *table, keys, &policy));
    ExecContext exec = ThreadPoolOf(context, table);
    if (policy.step > 0) exec.now.step = policy.step;
    if (policy.statistics.Has(Statistic::kEpoch)) exec.now.epoch = policy.epoch;
    Buffer<int64_t> numbers(table->allocator());
    const void* rows = values.data();
    if (value_strings != nullptr) {
      TF_RETURN_IF_ERROR(InternStrings(exec, StringsOf(values), table->allocator(),
                                       value_strings.get(), &numbers));
      rows = numbers.data();
    }
    std::vector<std::unique_ptr<Store>> fresh;
    for (size_t number = 0; number < table->num_shards(); ++number) {
      const KeyBatch batch = keys.shard(number);
      RowInitializer initializer = table->shard(number)->initializer();
      initializer.seed = meta.seed;
      initializer.table_id = meta.table_id;
      fresh.push_back(table->shard(number)->maintenance()->NewEmpty(batch.size, initializer));
      if (fresh.back() == nullptr) {
        return ResourceExhaustedError("No memory to restore table '", table->name(), "'.");
      }
      TF_RETURN_IF_ERROR(ToTensorFlow(fresh.back()->maintenance()->SetRule(meta.rule)));
      TF_RETURN_IF_ERROR(ToTensorFlow(
          fresh.back()->InsertOrAssign(exec, batch, rows, {&meta.rule, context->input(4).data()})));
      if (fresh.back()->size() != batch.size) {
        return absl::DataLossError(absl::StrCat("The saved rows of table '", table->name(),
                                                "' hold a key twice: ", batch.size, " rows, ",
                                                fresh.back()->size(), " keys."));
      }
      if (policy.statistics.size() > 0) {
        StoreEviction* eviction;
        TF_RETURN_IF_ERROR(ToTensorFlow(fresh.back()->GetEviction(&eviction)));
        TF_RETURN_IF_ERROR(ToTensorFlow(eviction->AssignStatistics(
            exec, batch, policy.statistics, static_cast<const uint64_t*>(statistics.data()))));
      }
    }
    if (table->admission() != nullptr) {
      TF_RETURN_IF_ERROR(ToTensorFlow(
          policy.CountsFor(table->signature().policy)
              ? table->admission()->Load(policy.admission.data(), policy.admission.size())
              : table->admission()->Clear()));
    }
    // Serialize, so that no other such verb sees only some shards imported.
    std::lock_guard<OrderedMutex> turn(*table->save_mutex());
    StringKeyScope string_scope(table, KeyUse::kErase);
    {
      PausedTables paused(table->allocator());
      TF_RETURN_IF_ERROR(PauseWriters(*table, &paused));
      const ExecContext holding = ExecContext::Serial().Holding(Held::kPaused);
      for (size_t number = 0; number < table->num_shards(); ++number) {
        TF_RETURN_IF_ERROR(ToTensorFlow(
            table->shard(number)->maintenance()->TakeContent(holding, fresh[number].get())));
      }
    }
    // Swapped, so the old dictionaries live until the end of the op and are freed without the locks
    // of shards.
    table->ReplaceStrings(&key_strings, &value_strings);
    table->clock()->SetStep(exec.now.step);
    table->clock()->SetEpoch(exec.now.epoch);
    // Rows whose statistics begin with this import count as used in a finished step.
    const bool all_known = (table->statistics().OfUse().bits() & ~policy.statistics.bits()) == 0;
    if (!all_known) table->clock()->BeginStep();
    return KeepBounds(exec, table);
  }

  static absl::Status ReadPolicy(tf::OpKernelContext* context, const TableResource& table,
                                 const KeysInput& keys, SavedPolicy* policy) {
    const tf::Tensor& statistics = context->input(6);
    const tf::Tensor& numbers = context->input(7);
    TF_RETURN_IF_ERROR(SavedPolicy::Decode(numbers.flat<int64_t>().data(),
                                           static_cast<size_t>(numbers.NumElements()), policy));
    const tf::TensorShape expected(
        {static_cast<int64_t>(keys.size()), static_cast<int64_t>(policy->statistics.size())});
    if (statistics.shape() != expected) {
      return InvalidArgumentError("The saved statistics of table '", table.name(), "' must be ",
                                  expected.DebugString(),
                                  ". Received: ", statistics.shape().DebugString(), ".");
    }
    return absl::OkStatus();
  }

  // An empty dictionary, or null if the table has none.
  static absl::Status NewDictionary(const TableResource& table, bool is_there,
                                    std::unique_ptr<StringKeys>* dictionary) {
    if (!is_there) return absl::OkStatus();
    *dictionary = StringKeys::Create(table.allocator());
    if (*dictionary != nullptr) return absl::OkStatus();
    return ResourceExhaustedError("No memory to restore table '", table.name(), "'.");
  }

  static absl::Status ReadMeta(tf::OpKernelContext* context, const TableResource& table,
                               const KeysInput& keys, TableMeta* meta) {
    const tf::Tensor& slots = context->input(4);
    const tf::Tensor& numbers = context->input(5);
    TF_RETURN_IF_ERROR(ToTensorFlow(TableMeta::Decode(
        numbers.flat<int64_t>().data(), static_cast<size_t>(numbers.NumElements()), meta)));
    if (meta->value_type != table.shard(0)->options().value_type || meta->dim != table.dim()) {
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
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedClear").Device(tf::DEVICE_CPU), ClearOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedShrink").Device(tf::DEVICE_CPU), ShrinkOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSize").Device(tf::DEVICE_CPU), SizeOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedExport").Device(tf::DEVICE_CPU), ExportOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedImport").Device(tf::DEVICE_CPU), ImportOp);

const OnGpu<ClearOp> clear("TfEmbedClear", {"table"});
const OnGpu<ShrinkOp> shrink("TfEmbedShrink", {"table"});
const OnGpu<SizeOp> size("TfEmbedSize", {"table", "shard", "size"});
const OnGpu<ExportOp> export_rows("TfEmbedExport", {"table", "keys", "values", "slots", "meta",
                                                    "statistics", "policy"});
const OnGpu<ImportOp> import_rows("TfEmbedImport", {"table", "keys", "owners", "values", "slots",
                                                    "meta", "statistics", "policy"});

class StatsOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    StoreStats stats;
    for (size_t number = 0; number < table->num_shards(); ++number) {
      // In this order, because CheckReachable also reports the error of the count in the
      // statistics.
      stats.Add(table->shard(number)->Stats());
      TF_RETURN_IF_ERROR(ToTensorFlow(table->shard(number)->CheckReachable()));
    }
    // Shared by all shards.
    if (table->admission() != nullptr) stats.admission_bytes = table->admission()->bytes();
    if (table->evicted() != nullptr) stats.undrained = table->evicted()->size();
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {static_cast<int64_t>(std::size(kStoreStats))}, &output));
    int64_t* next = output->flat<int64_t>().data();
    for (const StoreStat& stat : kStoreStats) *next++ = static_cast<int64_t>(stats.*stat.number);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedStats").Device(tf::DEVICE_CPU), StatsOp);
const OnGpu<StatsOp> stats("TfEmbedStats", {"table", "numbers"});

class OriginOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    const RowInitializer initializer = table->shard(0)->initializer();
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {2}, &output));
    output->flat<int64_t>()(0) = static_cast<int64_t>(initializer.seed);
    output->flat<int64_t>()(1) = static_cast<int64_t>(initializer.table_id);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedOrigin").Device(tf::DEVICE_CPU), OriginOp);
const OnGpu<OriginOp> origin("TfEmbedOrigin", {"table", "numbers"});

}  // namespace

}  // namespace tf_embed
