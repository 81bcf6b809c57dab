// SPDX-License-Identifier: Apache-2.0
// The base of ops whose first input is not a table; the others are TableOps.
#ifndef TF_EMBED_CC_TF_STATUS_OP_H_
#define TF_EMBED_CC_TF_STATUS_OP_H_

#include <new>

#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// An op that returns a status, and reports a failed allocation as ResourceExhausted. Containers of
// the standard library throw then, and an exception that left a kernel would end the process.
class StatusOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    try {
      OP_REQUIRES_OK(context, Run(context));
    } catch (const std::bad_alloc&) {
      context->CtxFailure(ResourceExhaustedError("No memory for ", type_string(), "."));
    }
  }

 private:
  virtual absl::Status Run(tensorflow::OpKernelContext* context) = 0;
};

// A StatusOp without attributes.
template <absl::Status (*kRun)(tensorflow::OpKernelContext* context)>
class StatusFunction final : public StatusOp {
 public:
  using StatusOp::StatusOp;

 private:
  absl::Status Run(tensorflow::OpKernelContext* context) override { return kRun(context); }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_STATUS_OP_H_
