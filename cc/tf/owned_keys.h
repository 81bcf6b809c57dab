// SPDX-License-Identifier: Apache-2.0
// The keys of a batch, of any key type, in the form that the routes of cc/core/exchange take.
#ifndef TF_EMBED_CC_TF_OWNED_KEYS_H_
#define TF_EMBED_CC_TF_OWNED_KEYS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/exchange/key_route.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_embed {

class OwnedKeys {
 public:
  OwnedKeys() : widened_(HostAllocator()), owners_of_strings_(HostAllocator()) {}

  // `owners` is the worker of each key; if it is empty, `rule` chooses, an attribute that errors
  // call `rule_name`. REQUIRES: `keys` and `owners` outlive this object.
  absl::Status Read(const ExecContext& exec, const tensorflow::Tensor& keys,
                    const tensorflow::Tensor& owners, OwnerRule rule, const char* rule_name,
                    int64_t num_workers);

  const tensorflow::Tensor& tensor() const { return *keys_; }
  size_t size() const { return static_cast<size_t>(keys_->NumElements()); }
  bool is_string() const { return keys_->dtype() == tensorflow::DT_STRING; }
  bool is_unsigned() const {
    return keys_->dtype() == tensorflow::DT_UINT64 || keys_->dtype() == tensorflow::DT_UINT32;
  }
  // The keys as int64. A string is represented by the position of its first equal.
  const int64_t* wide() const { return wide_; }
  // The worker of each key; null if the rule chooses.
  const int32_t* owners() const { return owners_; }

  // Writes keys of `wide` to an output, in the original key type.
  absl::Status Give(tensorflow::OpKernelContext* context, int output, const int64_t* some,
                    size_t count) const;

 private:
  const tensorflow::Tensor* keys_ = nullptr;
  const int64_t* wide_ = nullptr;
  const int32_t* owners_ = nullptr;
  Buffer<int64_t> widened_;
  Buffer<int32_t> owners_of_strings_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_OWNED_KEYS_H_
