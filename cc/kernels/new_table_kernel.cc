// Makes a table in eager execution.
//
// TensorFlow keeps an eager kernel for each set of attributes, for ever. So whatever differs from
// table to table is an input here; attributes of TfEmbedTable would keep 42 KB for each table that
// was ever made.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/kernels/gpu_tables.h"
#include "cc/kernels/on_gpu.h"
#include "cc/kernels/op_inputs.h"
#include "cc/kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class NewTableOp : public tf::OpKernel {
 public:
  explicit NewTableOp(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    OP_REQUIRES_OK(construction, TableResource::ReadSignature(construction, &signature_));
    OP_REQUIRES_OK(construction, construction->GetAttr("initializer", &initializer_));
    OP_REQUIRES_OK(construction, storage_.Read(construction));
    if (construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)) gpu_ = GpuOf(construction);
  }

  void Compute(tf::OpKernelContext* context) override {
    TableOptions options;
    OP_REQUIRES_OK(context, ReadOptions(context, &options));
    TableResource* resource;
    OP_REQUIRES_OK(context, TableResource::Create(signature_, options, storage_, gpu_, &resource));
    tf::ResourceMgr* const manager = context->resource_manager();
    static std::atomic<uint64_t> count{0};
    const std::string name = absl::StrCat("tf_embed_new/", count.fetch_add(1));
    OP_REQUIRES_OK(context, manager->Create(manager->default_container(), name, resource));
    OP_REQUIRES_OK(context,
                   tf::MakeResourceHandleToOutput(context, 0, manager->default_container(), name,
                                                  tf::TypeIndex::Make<TableResource>()));
  }

 private:
  absl::Status ReadOptions(tf::OpKernelContext* context, TableOptions* options) const {
    tf::tstring label;
    int64_t init_size, seed, table_id;
    const tf::Tensor& values = context->input(4);
    TF_RETURN_IF_ERROR(ReadScalar(context->input(0), "label", &label));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(1), "init_size", &init_size));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "seed", &seed));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(3), "table_id", &table_id));
    TF_RETURN_IF_ERROR(CheckRank(values, "initializer_values", 1));
    if (init_size < 0) {
      return InvalidArgumentError("`init_size` of table '", std::string(label),
                                  "' must be 0 or more. Received: init_size=", init_size, ".");
    }
    const double* const first = values.flat<double>().data();
    std::vector<double> numbers(first, first + values.NumElements());
    TF_RETURN_IF_ERROR(
        TableResource::NewOptions(signature_, std::string(label), init_size, options));
    return NewInitializer(initializer_, std::move(numbers), signature_.dim, seed, table_id,
                          &options->initializer);
  }

  TableResource::Signature signature_;
  std::string initializer_;
  GpuStorage storage_;
  int gpu_ = -1;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedNewTable").Device(tf::DEVICE_CPU), NewTableOp);
const OnGpu<NewTableOp> on_gpu("TfEmbedNewTable", {"label", "init_size", "initializer_values",
                                                   "seed", "table_id", "table"});

}  // namespace
}  // namespace tf_embed
