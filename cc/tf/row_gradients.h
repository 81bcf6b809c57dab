// SPDX-License-Identifier: Apache-2.0
// Gradients of some rows of a table, carried through a graph in a variant tensor.
//
// TensorFlow loops add up the gradients of their iterations, and a condition supplies zeros for the
// branch not taken. Both call the sum and the zero registered for a variant's type. Here a sum
// concatenates lists, and zero is the empty list, so a loop returns every key with its gradient.
// Dense tensors would lose the keys.
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

// Immutable, cheap to copy and thread-safe. Values share a list of parts, and each value sees a
// prefix of it. A sum appends to its longer operand's list in place, unless another sum already
// has. Thus n iterations cost n appends.
class RowGradients {
 public:
  struct Part {
    tensorflow::Tensor keys;    // [n]
    tensorflow::Tensor values;  // [n, dim]
  };

  RowGradients() = default;
  static RowGradients Of(tensorflow::Tensor keys, tensorflow::Tensor values);

  // The parts of the longer operand, followed by the parts of the shorter.
  static RowGradients Sum(const RowGradients& first, const RowGradients& second);

  std::vector<Part> parts() const;

  // The interface that TensorFlow requires of a type in a variant.
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

  std::shared_ptr<List> list_;  // null: no parts
  size_t size_ = 0;             // length of this value's prefix of the list
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_ROW_GRADIENTS_H_
