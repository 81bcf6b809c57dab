// SPDX-License-Identifier: Apache-2.0
// What the ops of the exchange between workers have in common.
#ifndef TF_EMBED_CC_TF_EXCHANGE_OP_H_
#define TF_EMBED_CC_TF_EXCHANGE_OP_H_

#include <cstdint>
#include <new>

#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Few enough that what all workers have together can be counted in 64 bits.
constexpr int64_t kMostWorkers = 1 << 16;

// An op that may find no memory.
class ExchangeOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) final {
    try {
      OP_REQUIRES_OK(context, Run(context));
    } catch (const std::bad_alloc&) {
      context->CtxFailure(ResourceExhaustedError("No memory for an exchange between workers."));
    }
  }

 private:
  virtual absl::Status Run(tensorflow::OpKernelContext* context) = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_EXCHANGE_OP_H_
