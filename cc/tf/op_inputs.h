// SPDX-License-Identifier: Apache-2.0
// What each kernel asks of its inputs and attributes before it reads them. An eager op is given
// tensors of any shape, and TensorFlow ends the process where one is read as a scalar that is none,
// or where a shape gets more elements or axes than a tensor can have.
#ifndef TF_EMBED_CC_TF_OP_INPUTS_H_
#define TF_EMBED_CC_TF_OP_INPUTS_H_

#include <cstdint>

#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_embed {

// Refuses a tensor that has another number of axes. `name` is the argument's.
absl::Status CheckRank(const tensorflow::Tensor& tensor, const char* name, int rank);

// Reads a scalar, which is in the memory of the host.
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

// Finds the table of a handle.
absl::Status LookUpTable(tensorflow::OpKernelContext* context, const tensorflow::Tensor& handle,
                         const char* name, tensorflow::core::RefCountPtr<TableResource>* table);

// Adds an axis, unless there would be too many, or too many elements.
absl::Status AddAxis(int64_t size, tensorflow::TensorShape* shape);

// Reads an attribute and refuses what is not from `least` to `most`.
absl::Status ReadNumber(tensorflow::OpKernelConstruction* construction, const char* name,
                        int64_t least, int64_t most, int64_t* number);

// Refuses an op that is given more tensors in a list than it reads: two that make bags; one of
// weights, of scores, or as a token.
absl::Status CheckListLengths(tensorflow::OpKernelConstruction* construction);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_OP_INPUTS_H_
