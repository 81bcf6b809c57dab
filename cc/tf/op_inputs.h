// SPDX-License-Identifier: Apache-2.0
// Checks of inputs and attributes, made by each kernel before it reads them. An eager op receives
// tensors of any shape. TensorFlow aborts the process if a non-scalar is read as a scalar, or if a
// shape exceeds a tensor's limit on elements or axes.
#ifndef TF_EMBED_CC_TF_OP_INPUTS_H_
#define TF_EMBED_CC_TF_OP_INPUTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_embed {

// The most workers that exchange data. Low enough that the totals over all workers fit in 64 bits.
constexpr int64_t kMostWorkers = 1 << 16;

// Checks the rank of a tensor. `name` is the argument's name.
absl::Status CheckRank(const tensorflow::Tensor& tensor, const char* name, int rank);

// Reads a scalar. REQUIRES: `tensor` is in host memory.
template <typename T>
absl::Status ReadScalar(const tensorflow::Tensor& tensor, const char* name, T* value) {
  TF_RETURN_IF_ERROR(CheckRank(tensor, name, 0));
  if (tensor.dtype() != tensorflow::DataTypeToEnum<T>::value) {
    return InvalidArgumentError("`", name, "` must be ",
                                tensorflow::DataTypeString(tensorflow::DataTypeToEnum<T>::value),
                                ". Received: ", tensorflow::DataTypeString(tensor.dtype()), ".");
  }
  *value = tensor.scalar<T>()();
  return absl::OkStatus();
}

// Gives a scalar output.
template <typename T, typename Value>
absl::Status GiveScalar(tensorflow::OpKernelContext* context, int output, Value value) {
  tensorflow::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, {}, &tensor));
  tensor->scalar<T>()() = static_cast<T>(std::move(value));
  return absl::OkStatus();
}

// Looks up the table of a handle.
absl::Status LookUpTable(tensorflow::OpKernelContext* context, const tensorflow::Tensor& handle,
                         const char* name, tensorflow::core::RefCountPtr<TableResource>* table);

// Adds an axis. Fails if the shape would exceed a tensor's limits.
absl::Status AddAxis(int64_t size, tensorflow::TensorShape* shape);

// Reads an attribute and checks that it is from `least` to `most`.
absl::Status ReadNumber(tensorflow::OpKernelConstruction* construction, const char* name,
                        int64_t least, int64_t most, int64_t* number);

// Reads a list attribute and checks that it has one for each table of an op of many.
template <typename List>
absl::Status ReadOneEach(tensorflow::OpKernelConstruction* construction, const char* name,
                         size_t num_tables, List* list) {
  list->clear();  // GetAttr appends types
  TF_RETURN_IF_ERROR(construction->GetAttr(name, list));
  if (list->size() == num_tables) return absl::OkStatus();
  return InvalidArgumentError("`", name, "` must have one for each of ", num_tables,
                              " tables. Received: ", list->size(), ".");
}

// Reads `dims`, the dim of each of an op's tables, and compares their number with `num_tables`, if
// the op has that attribute.
absl::Status ReadDims(tensorflow::OpKernelConstruction* construction, std::vector<int64_t>* dims);

// Checks the lengths of an op's list inputs: at most two tensors for bags, and at most one each for
// weights, scores and tokens.
absl::Status CheckListLengths(tensorflow::OpKernelConstruction* construction);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_OP_INPUTS_H_
