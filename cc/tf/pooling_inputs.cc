// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/pooling_inputs.h"

#include "cc/tf/op_inputs.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {

namespace tf = ::tensorflow;

absl::Status PoolingAttributes::Read(tf::OpKernelConstruction* construction) {
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr("combiner", &name));
  TF_RETURN_IF_ERROR(SetCombiner(name));
  return ReadPadding(construction);
}

absl::Status PoolingAttributes::SetCombiner(const std::string& name) {
  has_bags = name != "none";
  if (!has_bags || FindByName(kCombinerNames, name, &combiner)) return absl::OkStatus();
  return InvalidArgumentError("`combiner` must be one of ", QuotedNames(kCombinerNames),
                              ". Received: ", name, ".");
}

absl::Status PoolingAttributes::ReadPadding(tf::OpKernelConstruction* construction) {
  TF_RETURN_IF_ERROR(construction->GetAttr("padding", &padding));
  TF_RETURN_IF_ERROR(construction->GetAttr("padding_text", &padding_string));
  // Both lists are checked together, because an op's keys have a single type.
  const size_t keys = padding.size() + padding_string.size();
  if (keys <= 1) return absl::OkStatus();
  return InvalidArgumentError("`padding` must be at most one key. Received: ", keys, " keys.");
}

absl::Status ReadBags(const tf::OpInputList& inputs, const tf::TensorShape& keys, Bags* bags,
                      tf::TensorShape* shape) {
  const size_t num_keys = static_cast<size_t>(keys.num_elements());
  *shape = tf::TensorShape();
  if (inputs.size() == 0) {
    if (keys.dims() == 0) {
      return InvalidArgumentError("`keys` must have an axis to pool over. Received: a scalar.");
    }
    for (int axis = 0; axis + 1 < keys.dims(); ++axis) {
      TF_RETURN_IF_ERROR(AddAxis(keys.dim_size(axis), shape));
    }
    const size_t lines = static_cast<size_t>(shape->num_elements());
    if (lines > kMaxBatchSize) {  // lines without keys take no memory
      return InvalidArgumentError("A pooled batch may have at most ", kMaxBatchSize,
                                  " bags. Received: ", lines, ".");
    }
    bags->OfLines(lines, static_cast<size_t>(keys.dim_size(keys.dims() - 1)));
    return absl::OkStatus();
  }
  if (inputs.size() == 1) {
    const tf::Tensor& splits = inputs[0];
    TF_RETURN_IF_ERROR(CheckRank(splits, "bags", 1));
    const size_t size = static_cast<size_t>(splits.NumElements());
    const Status status = splits.dtype() == tf::DT_INT32
                              ? bags->OfSplits(splits.flat<int32_t>().data(), size, num_keys)
                              : bags->OfSplits(splits.flat<int64_t>().data(), size, num_keys);
    if (!status.ok()) return ToTensorFlow(status);
    return AddAxis(static_cast<int64_t>(bags->size()), shape);
  }
  const tf::Tensor& indices = inputs[0];
  const tf::Tensor& dense_shape = inputs[1];
  if (indices.dtype() != tf::DT_INT64 || indices.dims() != 2 ||
      static_cast<size_t>(indices.dim_size(0)) != num_keys || dense_shape.dims() != 1 ||
      dense_shape.dim_size(0) != indices.dim_size(1)) {
    return InvalidArgumentError(
        "Sparse keys must have int64 indices [", num_keys,
        ", rank] and a dense_shape [rank]. Received: ", indices.shape().DebugString(), " and ",
        dense_shape.shape().DebugString(), ".");
  }
  const int64_t* const sizes = dense_shape.flat<int64_t>().data();
  const size_t rank = static_cast<size_t>(dense_shape.dim_size(0));
  TF_RETURN_IF_ERROR(
      ToTensorFlow(bags->OfIndices(indices.flat<int64_t>().data(), num_keys, sizes, rank)));
  // After OfIndices, which has checked that the sizes are not negative.
  for (size_t axis = 0; axis + 1 < rank; ++axis) TF_RETURN_IF_ERROR(AddAxis(sizes[axis], shape));
  return absl::OkStatus();
}

absl::Status ReadFound(tf::OpKernelConstruction* construction, size_t count, bool* gives_found) {
  tf::DataTypeVector types;
  TF_RETURN_IF_ERROR(construction->GetAttr("found_dtypes", &types));
  *gives_found = !types.empty();
  if (types.empty() || types.size() == count) return absl::OkStatus();
  return InvalidArgumentError("`found_dtypes` must be none or ", count,
                              ". Received: ", types.size(), ".");
}

absl::Status ReadWeights(const tf::OpInputList& inputs, tf::DataType type, size_t num_keys,
                         const void** weights) {
  if (inputs.size() == 0) return absl::OkStatus();
  const tf::Tensor& tensor = inputs[0];
  if (tensor.dtype() != type) {
    return InvalidArgumentError("`weights` must be ", tf::DataTypeString(type),
                                ". Received: ", tf::DataTypeString(tensor.dtype()), ".");
  }
  if (static_cast<size_t>(tensor.NumElements()) != num_keys) {
    return InvalidArgumentError("`weights` must have one for each of ", num_keys,
                                " keys. Received: shape ", tensor.shape().DebugString(), ".");
  }
  *weights = tensor.data();
  return absl::OkStatus();
}

}  // namespace tf_embed
