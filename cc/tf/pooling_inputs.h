// SPDX-License-Identifier: Apache-2.0
// Attributes and inputs of pooled lookups and their gradients: the keys of each bag. See
// cc/ops/pooling_ops.cc.
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

// The type in which rows of `type` are summed.
inline tensorflow::DataType ComputeType(tensorflow::DataType type) {
  return type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
}

// The attributes `combiner` and `padding`.
struct PoolingAttributes {
  bool has_bags = true;  // false: the combiner is "none"
  Combiner combiner = Combiner::kSum;
  std::vector<int64_t> padding;             // empty, or one key
  std::vector<std::string> padding_string;  // replaces `padding` for string keys

  absl::Status Read(tensorflow::OpKernelConstruction* construction);
  absl::Status SetCombiner(const std::string& name);
  // Reads only `padding`, for an op without a combiner.
  absl::Status ReadPadding(tensorflow::OpKernelConstruction* construction);

  // If padding is a string, the caller maps keys equal to it to StringKeys::kNoKey.
  const int64_t* padding_key() const {
    if (!padding_string.empty()) return &StringKeys::kNoKey;
    return padding.empty() ? nullptr : padding.data();
  }
};

// Reads the inputs `bags` of keys of shape `keys`. They are none if each line of keys is a bag. A
// single tensor holds row splits; two hold the indices and dense shape of sparse keys. Sets `shape`
// to the shape of the bags.
absl::Status ReadBags(const tensorflow::OpInputList& inputs, const tensorflow::TensorShape& keys,
                      Bags* bags, tensorflow::TensorShape* shape);

// Reads the attribute `found_dtypes`, which has a type for each of `count` outputs, or none.
absl::Status ReadFound(tensorflow::OpKernelConstruction* construction, size_t count,
                       bool* gives_found);

// Reads the inputs `weights`: none, or one tensor of `type` with a weight for each key.
absl::Status ReadWeights(const tensorflow::OpInputList& inputs, tensorflow::DataType type,
                         size_t num_keys, const void** weights);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_POOLING_INPUTS_H_
