// SPDX-License-Identifier: Apache-2.0
// TaskOp: the process of a cluster in which the op runs.
#include <cstdint>

#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class TaskOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const auto& name = context->device()->parsed_name();
    tf::Tensor* task;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &task));
    task->scalar<int64_t>()() = name.has_task ? name.task : 0;
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedTask").Device(tf::DEVICE_CPU), TaskOp);

}  // namespace
}  // namespace tf_embed
