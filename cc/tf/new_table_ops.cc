// SPDX-License-Identifier: Apache-2.0
// NewTable creates a table in eager execution, and Table finds or creates a table in a graph.
//
// TensorFlow caches an eager kernel for each set of attributes and never frees it. So every setting
// that varies by table is an input of NewTable. As attributes, they would leak 42 KB for each table
// ever made. As an input, `settings` may also have the password of a Redis server, which is never
// stored in a graph.
//
// A handle is for the ops of its device. ShareTable, on that device, and TableHere, on the CPU,
// give ops on the CPU a handle of a table on a GPU.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/settings_text.h"
#include "cc/tf/shared_variant.h"
#include "cc/tf/status_op.h"
#include "cc/tf/storage_settings.h"
#include "cc/tf/table_op.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Reads the policy and the storage of a table.
absl::Status ReadSettings(absl::string_view text, TableResource::Signature* signature,
                          StorageSettings* storage) {
  SettingsText settings;
  TF_RETURN_IF_ERROR(SettingsText::Parse(text, &settings));
  PolicySettings::ForEachField(
      signature->policy,
      [&](const char* name, auto& field, auto... least) { settings.Read(name, &field, least...); });
  storage->Read(&settings);
  TF_RETURN_IF_ERROR(settings.Finish());
  TF_RETURN_IF_ERROR(storage->Check());
  return ToTensorFlow(signature->policy.Check(static_cast<size_t>(signature->num_shards)));
}

class NewTableOp : public StatusOp {
 public:
  explicit NewTableOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, TableResource::ReadSignature(construction, &signature_));
    OP_REQUIRES_OK(construction, construction->GetAttr("initializer", &initializer_));
    if (construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)) gpu_ = GpuOf(construction);
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    TableResource::Signature signature = signature_;
    StoreOptions options;
    StorageSettings storage;
    tf::tstring settings;
    TF_RETURN_IF_ERROR(ReadInput(context, "settings", &settings));
    TF_RETURN_IF_ERROR(ReadSettings(settings, &signature, &storage));
    TF_RETURN_IF_ERROR(ReadOptions(context, &options));
    TableResource* resource;
    TF_RETURN_IF_ERROR(TableResource::Create(signature, options, storage, gpu_, &resource));
    tf::ResourceMgr* const manager = context->resource_manager();
    // No two tables of a process share a name, so this never finds an existing table.
    static std::atomic<uint64_t> count{0};
    const std::string name = absl::StrCat("tf_embed_new/", count.fetch_add(1));
    TF_RETURN_IF_ERROR(manager->Create(manager->default_container(), name, resource));
    TF_RETURN_IF_ERROR(tf::MakeResourceHandleToOutput(context, 0, manager->default_container(),
                                                      name, tf::TypeIndex::Make<TableResource>()));
    return absl::OkStatus();
  }

  absl::Status ReadOptions(tf::OpKernelContext* context, StoreOptions* options) const {
    tf::tstring label;
    int64_t init_size, seed, table_id;
    const tf::Tensor* values;
    TF_RETURN_IF_ERROR(ReadInput(context, "label", &label));
    TF_RETURN_IF_ERROR(ReadInput(context, "init_size", &init_size));
    TF_RETURN_IF_ERROR(ReadInput(context, "seed", &seed));
    TF_RETURN_IF_ERROR(ReadInput(context, "table_id", &table_id));
    TF_RETURN_IF_ERROR(context->input("initializer_values", &values));
    TF_RETURN_IF_ERROR(CheckRank(*values, "initializer_values", 1));
    const double* const first = values->flat<double>().data();
    std::vector<double> numbers(first, first + values->NumElements());
    if (init_size < 0) {
      return InvalidArgumentError("`init_size` must be at least 0. Received: ", init_size, ".");
    }
    TF_RETURN_IF_ERROR(
        TableResource::NewOptions(signature_, std::string(label), init_size, options));
    return NewInitializer(initializer_, std::move(numbers), signature_.dim, seed, table_id,
                          &options->initializer);
  }

  template <typename T>
  static absl::Status ReadInput(tf::OpKernelContext* context, const char* name, T* value) {
    const tf::Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    return ReadScalar(*tensor, name, value);
  }

  TableResource::Signature signature_;  // without the policy
  std::string initializer_;
  int gpu_ = -1;
};

const Kernels<NewTableOp> new_table("TfEmbedNewTable", {"label", "init_size", "seed", "table_id",
                                                        "initializer_values", "settings", "table"});

// Writes the settings of a graph that was saved before the attribute `settings` existed.
absl::Status EarlierSettings(tf::OpKernelConstruction* construction, std::string* settings) {
  for (const char* name : {"max_rows", "steps_per_epoch", "ttl_milliseconds", "admission_threshold",
                           "admission_max_keys", "statistics", "gpu_total_bytes", "gpu_bytes",
                           "host_bytes", "disk_bytes"}) {
    int64_t number;
    TF_RETURN_IF_ERROR(construction->GetAttr(name, &number));
    absl::StrAppend(settings, name, "=", number, "\n");
  }
  for (const char* name : {"log_evicted", "gpu_cache", "evict_by_bytes", "keep_leftovers"}) {
    bool flag;
    TF_RETURN_IF_ERROR(construction->GetAttr(name, &flag));
    absl::StrAppend(settings, name, "=", flag ? "1" : "0", "\n");
  }
  for (const char* name : {"eviction", "admission", "path"}) {
    std::string text;
    TF_RETURN_IF_ERROR(construction->GetAttr(name, &text));
    absl::StrAppend(settings, name, "=", absl::CEscape(text), "\n");
  }
  float error_rate;
  TF_RETURN_IF_ERROR(construction->GetAttr("admission_error_rate", &error_rate));
  absl::StrAppend(settings, "admission_error_rate=", ExactText(error_rate), "\n");
  return absl::OkStatus();
}

// Finds a table by name, or creates it.
//
// A table lives as long as any of its handles, or a kernel that returned a handle. A session keeps
// its kernels and runs them again at each step, so its tables live as long as the session. Tables
// of a SavedModel loaded in Python are freed with the loaded object. The resource manager has only
// a weak reference by name.
class TableHandleOp : public tf::OpKernel {
 public:
  explicit TableHandleOp(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    std::string settings;
    OP_REQUIRES_OK(construction, TableResource::ReadSignature(construction, &signature_));
    OP_REQUIRES_OK(construction, ReadOptions(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("settings", &settings));
    if (settings.empty()) OP_REQUIRES_OK(construction, EarlierSettings(construction, &settings));
    OP_REQUIRES_OK(construction, ReadSettings(settings, &signature_, &storage_));
    if (construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)) gpu_ = GpuOf(construction);
  }

  void Compute(tf::OpKernelContext* context) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (table_ == nullptr) OP_REQUIRES_OK(context, FindOrCreate(context->resource_manager()));
    tf::Tensor* handle;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    table_->Ref();  // for the handle
    handle->scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        table_.get(), context->device()->attributes().name());
  }

 private:
  absl::Status ReadOptions(tf::OpKernelConstruction* construction) {
    std::string label, initializer, numbers_text;
    std::vector<double> numbers;
    int64_t init_size, seed, table_id;
    TF_RETURN_IF_ERROR(construction->GetAttr("label", &label));
    TF_RETURN_IF_ERROR(construction->GetAttr("init_size", &init_size));
    TF_RETURN_IF_ERROR(construction->GetAttr("initializer", &initializer));
    TF_RETURN_IF_ERROR(construction->GetAttr("initializer_values", &numbers_text));
    TF_RETURN_IF_ERROR(construction->GetAttr("seed", &seed));
    TF_RETURN_IF_ERROR(construction->GetAttr("table_id", &table_id));
    TF_RETURN_IF_ERROR(ReadNumbers(numbers_text, "initializer_values", &numbers));
    TF_RETURN_IF_ERROR(
        TableResource::NewOptions(signature_, std::move(label), init_size, &options_));
    return NewInitializer(initializer, std::move(numbers), signature_.dim, seed, table_id,
                          &options_.initializer);
  }

  absl::Status FindOrCreate(tf::ResourceMgr* manager) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    tf::ContainerInfo info;
    TF_RETURN_IF_ERROR(info.Init(manager, def()));
    tf::core::RefCountPtr<TableResource> table;
    TableResource* found = nullptr;
    if (manager->Lookup(info.container(), info.name(), &found).ok()) {
      table.reset(found);
      if (!(table->signature() == signature_)) {
        return InvalidArgumentError("Table '", table->name(), "' is ",
                                    table->signature().DebugString(), " and can't be opened as ",
                                    signature_.DebugString(), ".");
      }
      table_ = std::move(table);
      return absl::OkStatus();
    }
    TableResource* created;
    TF_RETURN_IF_ERROR(TableResource::Create(signature_, options_, storage_, gpu_, &created));
    table.reset(created);
    // A freed table's name remains until it is deleted.
    manager->Delete<TableResource>(info.container(), info.name()).IgnoreError();
    TF_RETURN_IF_ERROR(manager->CreateUnowned(info.container(), info.name(), created));
    table_ = std::move(table);
    return absl::OkStatus();
  }

  TableResource::Signature signature_;
  StoreOptions options_;
  StorageSettings storage_;
  int gpu_ = -1;
  std::mutex mutex_;
  tf::core::RefCountPtr<TableResource> table_;
};

const Kernels<TableHandleOp> table_handle("TfEmbedTable", {"table"});

// A reference to a table.
struct TableReference {
  static constexpr char kTypeName[] = "tf_embed::Table";

  tf::core::RefCountPtr<TableResource> table;
};

using SharedTable = SharedVariant<TableReference>;
const CopiesOnHost<SharedTable> shared_tables;

absl::Status RunShareTable(tf::OpKernelContext* context, TableResource* table) {
  auto reference = std::make_shared<TableReference>();
  table->Ref();
  reference->table.reset(table);
  return GiveScalar<tf::Variant>(context, 0, SharedTable(std::move(reference)));
}

absl::Status RunTableHere(tf::OpKernelContext* context) {
  TableReference* const reference = SharedTable::In(context->input(0));
  if (reference == nullptr) {
    return InvalidArgumentError("`shared` must be what TfEmbedShareTable gave.");
  }
  // By name, so that the handle, which a function may capture, does not keep the table alive.
  TableResource* const table = reference->table.get();
  tf::ResourceMgr* const manager = context->resource_manager();
  const std::string name = absl::StrCat("tf_embed_here/", table->number());
  const absl::Status made = manager->CreateUnowned(manager->default_container(), name, table);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  return tf::MakeResourceHandleToOutput(context, 0, manager->default_container(), name,
                                        tf::TypeIndex::Make<TableResource>());
}

const Kernels<TableFunction<RunShareTable>> share_table("TfEmbedShareTable", {"table", "shared"});
const Kernels<StatusFunction<RunTableHere>> table_here("TfEmbedTableHere");

}  // namespace
}  // namespace tf_embed
