// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/op_inputs.h"

#include "cc/core/files/table_meta.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {

namespace tf = ::tensorflow;

absl::Status CheckRank(const tf::Tensor& tensor, const char* name, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  const char* const kind = rank == 0 ? "a scalar" : rank == 1 ? "a vector" : "a matrix";
  return InvalidArgumentError("`", name, "` must be ", kind,
                              ". Received shape: ", tensor.shape().DebugString(), ".");
}

absl::Status LookUpTable(tf::OpKernelContext* context, const tf::Tensor& tensor, const char* name,
                         tf::core::RefCountPtr<TableResource>* table) {
  tf::ResourceHandle handle;
  TF_RETURN_IF_ERROR(ReadScalar(tensor, name, &handle));
  return tf::LookupResource(context, handle, table);
}

absl::Status AddAxis(int64_t size, tf::TensorShape* shape) {
  if (shape->AddDimWithStatus(size).ok()) return absl::OkStatus();  // a failure leaves it unchanged
  return InvalidArgumentError("There is no tensor of shape ", shape->DebugString(),
                              " with one more axis, of ", size,
                              ": it would have too many elements, or axes.");
}

absl::Status ReadNumber(tf::OpKernelConstruction* construction, const char* name, int64_t least,
                        int64_t most, int64_t* number) {
  TF_RETURN_IF_ERROR(construction->GetAttr(name, number));
  if (*number >= least && *number <= most) return absl::OkStatus();
  return InvalidArgumentError("`", name, "` must be from ", least, " to ", most,
                              ". Received: ", *number, ".");
}

absl::Status ReadDims(tf::OpKernelConstruction* construction, std::vector<int64_t>* dims) {
  if (construction->HasAttr("num_tables")) {
    int64_t num_tables;
    TF_RETURN_IF_ERROR(construction->GetAttr("num_tables", &num_tables));
    TF_RETURN_IF_ERROR(ReadOneEach(construction, "dims", static_cast<size_t>(num_tables), dims));
  } else {
    TF_RETURN_IF_ERROR(construction->GetAttr("dims", dims));
  }
  for (const int64_t dim : *dims) {
    if (dim >= 1 && dim <= TableMeta::kMaxDim) continue;
    return InvalidArgumentError("`dims` must be from 1 to ", TableMeta::kMaxDim,
                                ". Received: ", dim, ".");
  }
  return absl::OkStatus();
}

absl::Status CheckListLengths(tf::OpKernelConstruction* construction) {
  struct Lengths {
    const char* attribute;
    const char* input;
    int64_t most;
  };
  constexpr Lengths kLists[] = {
      {"num_bags", "bags", 2},    {"num_noted", "noted", 1},     {"num_scores", "scores", 1},
      {"num_tokens", "token", 1}, {"num_trained", "trained", 1}, {"num_weights", "weights", 1},
  };
  for (const Lengths& list : kLists) {
    // Op definitions can't bound the length of a list input, so kernels do.
    if (!construction->HasAttr(list.attribute)) continue;
    int64_t length;
    TF_RETURN_IF_ERROR(construction->GetAttr(list.attribute, &length));
    if (length > list.most) {
      return InvalidArgumentError("`", list.input, "` must be at most ", list.most,
                                  list.most == 1 ? " tensor" : " tensors", ". Received: ", length,
                                  ".");
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
