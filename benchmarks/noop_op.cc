// SPDX-License-Identifier: Apache-2.0
// An op with only the costs that every op has: it has the inputs and the outputs of a lookup, and
// allocates its outputs, in which it writes nothing.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

REGISTER_OP("TfEmbedBenchNoop")
    .Input("table: resource")
    .Input("keys: int64")
    .Input("owners: int32")
    .Input("defaults: float")
    .Output("values: float")
    .Output("exists: bool")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

class NoopOp : public tensorflow::OpKernel {
 public:
  explicit NoopOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::TensorShape shape = context->input(1).shape();
    tensorflow::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &output));
    shape.AddDim(dim_);
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
  }

 private:
  tensorflow::int64 dim_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedBenchNoop").Device(tensorflow::DEVICE_CPU), NoopOp);

}  // namespace
