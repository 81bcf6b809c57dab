// SPDX-License-Identifier: Apache-2.0
// What pooled lookups and their gradients share: attributes and inputs that say which keys make a
// bag, see cc/ops/pooling_ops.cc.
#ifndef TF_EMBED_CC_TF_POOLING_INPUTS_H_
#define TF_EMBED_CC_TF_POOLING_INPUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/index/string_keys.h"
#include "cc/core/pooling/bags.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_embed {

// The type that rows of `type` are summed in.
inline tensorflow::DataType ComputeType(tensorflow::DataType type) {
  return type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
}

// The attributes `combiner` and `padding`.
struct PoolingAttributes {
  bool has_bags = true;  // false: the combiner is "none"
  Combiner combiner = Combiner::kSum;
  std::vector<int64_t> padding;             // none or one
  std::vector<std::string> padding_string;  // of string keys, in place of it

  absl::Status Read(tensorflow::OpKernelConstruction* construction);
  // Reads `padding` alone, of an op that has no combiner.
  absl::Status ReadPadding(tensorflow::OpKernelConstruction* construction);

  // If padding is a string, the caller makes the keys that are this string StringKeys::kNoKey.
  const int64_t* padding_key() const {
    if (!padding_string.empty()) return &StringKeys::kNoKey;
    return padding.empty() ? nullptr : padding.data();
  }
};

// Reads the input list `bags` of an op whose keys have the shape `keys`: no tensor for lines, one
// of row splits, two for the indices and the dense shape of sparse keys. `shape` becomes that of
// the bags.
absl::Status ReadBags(tensorflow::OpKernelContext* context, const tensorflow::TensorShape& keys,
                      Bags* bags, tensorflow::TensorShape* shape);

// Reads the input list `weights`: none, or one tensor of `type` with a weight for each key.
absl::Status ReadWeights(tensorflow::OpKernelContext* context, tensorflow::DataType type,
                         size_t num_keys, const void** weights);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_POOLING_INPUTS_H_
