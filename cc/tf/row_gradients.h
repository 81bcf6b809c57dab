// SPDX-License-Identifier: Apache-2.0
// The gradients of some rows of one table, as a value that flows through a graph in a variant.
//
// A loop of TensorFlow adds up the gradients of its iterations, and a condition gives zeros for the
// branch that was not taken. It does so for variants too, by a sum and a zero of the type's own:
// here the sum is one list after the other, and the zero is none. So what leaves the loop holds
// every key and its gradient, where dense tensors would have lost the keys.
#ifndef TF_EMBED_CC_TF_ROW_GRADIENTS_H_
#define TF_EMBED_CC_TF_ROW_GRADIENTS_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_embed {

// Immutable, and cheap to copy. Sums share memory: the parts lie in a list of which each value
// sees a beginning, so a sum appends to its longer summand's list where no other sum has done so,
// and n iterations cost n appends. Any thread may use any value at any time.
class RowGradients {
 public:
  struct Part {
    tensorflow::Tensor keys;    // [n]
    tensorflow::Tensor values;  // [n, dim]
  };

  RowGradients() = default;
  static RowGradients Of(tensorflow::Tensor keys, tensorflow::Tensor values);

  // The parts of the one that has more, then those of the other.
  static RowGradients Sum(const RowGradients& first, const RowGradients& second);

  std::vector<Part> parts() const;

  // What TensorFlow asks of a type in a variant.
  static constexpr char kTypeName[] = "tf_embed::RowGradients";
  std::string TypeName() const { return kTypeName; }
  std::string DebugString() const;
  void Encode(tensorflow::VariantTensorData* data) const;
  bool Decode(tensorflow::VariantTensorData data);

 private:
  struct List {
    std::mutex mutex;
    std::vector<Part> parts;
  };

  explicit RowGradients(std::vector<Part> parts);

  std::shared_ptr<List> list_;  // null where there are none
  size_t size_ = 0;             // how many of the list's parts are this value's
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_ROW_GRADIENTS_H_
