// SPDX-License-Identifier: Apache-2.0
// Creates a table in eager execution.
//
// TensorFlow caches an eager kernel for each set of attributes and never frees it. So every setting
// that varies by table is an input here. As attributes of TfEmbedTable, they would leak 42 KB for
// each table ever made.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/tf/gpu_tables.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/settings.h"
#include "cc/tf/status_op.h"
#include "cc/tf/storage_settings.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class NewTableOp : public StatusOp {
 public:
  explicit NewTableOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, TableResource::ReadSignature(construction, &signature_));
    OP_REQUIRES_OK(construction, construction->GetAttr("initializer", &initializer_));
    if (construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)) gpu_ = GpuOf(construction);
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const InputSettings settings(context);
    TableResource::Signature signature = signature_;
    TableOptions options;
    StorageSettings storage;
    TF_RETURN_IF_ERROR(signature.policy.Read(settings, signature.num_shards));
    TF_RETURN_IF_ERROR(ReadOptions(context, settings, &options));
    TF_RETURN_IF_ERROR(storage.Read(settings));
    std::string redis;
    TF_RETURN_IF_ERROR(settings.Get("redis", &redis));
    TF_RETURN_IF_ERROR(storage.ReadRedis(redis));
    TableResource* resource;
    TF_RETURN_IF_ERROR(TableResource::Create(signature, options, storage, gpu_, &resource));
    tf::ResourceMgr* const manager = context->resource_manager();
    // No two tables of a process share a name, so this never finds an existing one.
    static std::atomic<uint64_t> count{0};
    const std::string name = absl::StrCat("tf_embed_new/", count.fetch_add(1));
    TF_RETURN_IF_ERROR(manager->Create(manager->default_container(), name, resource));
    TF_RETURN_IF_ERROR(tf::MakeResourceHandleToOutput(context, 0, manager->default_container(),
                                                      name, tf::TypeIndex::Make<TableResource>()));
    return absl::OkStatus();
  }

  absl::Status ReadOptions(tf::OpKernelContext* context, const Settings& settings,
                           TableOptions* options) const {
    std::string label;
    int64_t init_size, seed, table_id;
    const tf::Tensor* values;
    TF_RETURN_IF_ERROR(settings.Get("label", &label));
    TF_RETURN_IF_ERROR(settings.GetNumber("init_size", 0, &init_size));
    TF_RETURN_IF_ERROR(settings.Get("seed", &seed));
    TF_RETURN_IF_ERROR(settings.Get("table_id", &table_id));
    TF_RETURN_IF_ERROR(context->input("initializer_values", &values));
    TF_RETURN_IF_ERROR(CheckRank(*values, "initializer_values", 1));
    const double* const first = values->flat<double>().data();
    std::vector<double> numbers(first, first + values->NumElements());
    TF_RETURN_IF_ERROR(TableResource::NewOptions(signature_, std::move(label), init_size, options));
    return NewInitializer(initializer_, std::move(numbers), signature_.dim, seed, table_id,
                          &options->initializer);
  }

  TableResource::Signature signature_;  // without the policy
  std::string initializer_;
  int gpu_ = -1;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedNewTable").Device(tf::DEVICE_CPU), NewTableOp);
const OnGpu<NewTableOp> new_table_on_gpu("TfEmbedNewTable", {"label",
                                                             "init_size",
                                                             "seed",
                                                             "table_id",
                                                             "initializer_values",
                                                             "max_rows",
                                                             "eviction",
                                                             "steps_per_epoch",
                                                             "ttl_milliseconds",
                                                             "admission",
                                                             "admission_threshold",
                                                             "admission_error_rate",
                                                             "admission_max_keys",
                                                             "statistics",
                                                             "log_evicted",
                                                             "gpu_total_bytes",
                                                             "gpu_bytes",
                                                             "host_bytes",
                                                             "gpu_cache",
                                                             "evict_by_bytes",
                                                             "path",
                                                             "disk_bytes",
                                                             "keep_leftovers",
                                                             "redis",
                                                             "table"});

}  // namespace
}  // namespace tf_embed
