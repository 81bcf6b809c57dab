// SPDX-License-Identifier: Apache-2.0
// Shared parts of the ops that exchange data between workers.
#ifndef TF_EMBED_CC_TF_EXCHANGE_OP_H_
#define TF_EMBED_CC_TF_EXCHANGE_OP_H_

#include <cstdint>
#include <new>

#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Low enough that the totals over all workers fit in 64 bits.
constexpr int64_t kMostWorkers = 1 << 16;

// An op that reports a failed allocation as ResourceExhausted.
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
