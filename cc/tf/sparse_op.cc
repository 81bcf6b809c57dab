// SPDX-License-Identifier: Apache-2.0
// Validates sparse ids before they reach TensorFlow ops that don't. Those ops abort the process on
// a negative size, or write out of bounds.
#include <cstdint>
#include <string>

#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class CheckSparseOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    for (int i = 0; i < 3; ++i) context->set_output(i, context->input(i));
  }

  bool IsExpensive() override { return false; }

 private:
  static absl::Status Check(tf::OpKernelContext* context) {
    const tf::Tensor& indices = context->input(0);
    const tf::Tensor& values = context->input(1);
    const tf::Tensor& shape = context->input(2);
    tf::tstring label;
    TF_RETURN_IF_ERROR(CheckRank(indices, "indices", 2));
    TF_RETURN_IF_ERROR(CheckRank(values, "values", 1));
    TF_RETURN_IF_ERROR(CheckRank(shape, "dense_shape", 1));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(3), "label", &label));
    const int64_t count = indices.dim_size(0);
    const int64_t rank = indices.dim_size(1);
    if (values.NumElements() != count || shape.NumElements() != rank) {
      return InvalidArgumentError(
          std::string(label), " must have an index of each value, with a number for each axis of ",
          "its dense_shape. Received: indices.shape=", indices.shape().DebugString(),
          ", values.shape=", values.shape().DebugString(),
          ", dense_shape.shape=", shape.shape().DebugString(), ".");
    }
    const int64_t* const sizes = shape.flat<int64_t>().data();
    for (int64_t axis = 0; axis < rank; ++axis) {
      // TensorFlow's ops make a TensorShape of this, which ends the process on a negative size.
      if (sizes[axis] < 0) return Outside(label, "dense_shape", sizes[axis], axis);
    }
    const int64_t* index = indices.flat<int64_t>().data();
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t axis = 0; axis < rank; ++axis, ++index) {
        if (*index < 0 || *index >= sizes[axis]) return Outside(label, "indices", *index, axis);
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Outside(const std::string& label, const char* part, int64_t number,
                              int64_t axis) {
    return InvalidArgumentError(
        label, " must have a dense_shape of numbers from 0, and indices within their dense_shape. ",
        "Received: ", number, " in ", part, " on axis ", axis, ".");
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedCheckSparse").Device(tf::DEVICE_CPU), CheckSparseOp);
const OnGpu<CheckSparseOp> check_sparse_on_gpu("TfEmbedCheckSparse",
                                               {"indices", "values", "dense_shape", "label",
                                                "checked_indices", "checked_values",
                                                "checked_shape"});

}  // namespace
}  // namespace tf_embed
