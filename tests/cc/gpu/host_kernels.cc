// SPDX-License-Identifier: Apache-2.0
// Kernels that TensorFlow has for real GPUs alone, for the device of fake_gpu_plugin.cc. Without
// them a variable on it can't be read by rows, as Keras's Embedding reads it: an op is where its
// variable is.
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace {

namespace tf = ::tensorflow;

// Rows of a variable. Types are of any plain values, which are copied as bytes.
class ResourceGatherOp : public tf::OpKernel {
 public:
  explicit ResourceGatherOp(tf::OpKernelConstruction* construction) : tf::OpKernel(construction) {
    int batch_dims = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("batch_dims", &batch_dims));
    OP_REQUIRES(construction, batch_dims == 0, absl::UnimplementedError("batch_dims"));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::core::RefCountPtr<tf::Var> variable;
    OP_REQUIRES_OK(context,
                   tf::LookupResource(context, tf::HandleFromInput(context, 0), &variable));
    tf::tf_shared_lock lock(*variable->mu());
    const tf::Tensor& rows = *variable->tensor();
    const tf::Tensor& indices = context->input(1);
    tf::TensorShape shape = indices.shape();
    for (int axis = 1; axis < rows.dims(); ++axis) shape.AddDim(rows.dim_size(axis));
    tf::Tensor* gathered;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &gathered));
    const int64_t count = indices.NumElements();
    if (count == 0) return;
    const size_t bytes = static_cast<size_t>(gathered->TotalBytes() / count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row =
          indices.dtype() == tf::DT_INT32 ? indices.flat<int32_t>()(i) : indices.flat<int64_t>()(i);
      OP_REQUIRES(context, row >= 0 && row < rows.dim_size(0),
                  absl::InvalidArgumentError(absl::StrCat(
                      "indices[", i, "] = ", row, " is not in [0, ", rows.dim_size(0), ")")));
      std::memcpy(static_cast<char*>(gathered->data()) + i * bytes,
                  static_cast<const char*>(rows.data()) + row * bytes, bytes);
    }
  }
};

REGISTER_KERNEL_BUILDER(
    Name("ResourceGather").Device(tensorflow::DEVICE_GPU).HostMemory("resource"), ResourceGatherOp);

}  // namespace
