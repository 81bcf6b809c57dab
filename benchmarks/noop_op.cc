// An op that does nothing, with as many inputs and outputs as TfEmbedFind: what an op costs in a
// graph before it does anything. It allocates nothing; the outputs are two of the inputs.
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
    .Output("found: int64")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(3));
      context->set_output(1, context->input(1));
      return tensorflow::OkStatus();
    });

class NoopOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    context->set_output(0, context->input(3));
    context->set_output(1, context->input(1));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedBenchNoop").Device(tensorflow::DEVICE_CPU), NoopOp);

}  // namespace
