// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/row_gradients.h"

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/tf/shared_variant.h"
#include "tensorflow/core/framework/types.h"

namespace tf_embed {

namespace tf = ::tensorflow;

RowGradients::RowGradients(std::vector<Part> parts) {
  size_ = parts.size();
  if (size_ == 0) return;
  list_ = std::make_shared<List>();
  list_->parts = std::move(parts);
}

RowGradients RowGradients::Of(tf::Tensor keys, tf::Tensor values) {
  std::vector<Part> parts;
  parts.push_back({std::move(keys), std::move(values)});
  return RowGradients(std::move(parts));
}

RowGradients RowGradients::Sum(const RowGradients& first, const RowGradients& second) {
  const bool first_is_longer = first.size_ >= second.size_;
  const RowGradients& longer = first_is_longer ? first : second;
  const RowGradients& shorter = first_is_longer ? second : first;
  if (shorter.size_ == 0) return longer;
  // Before the lock, because both may share a list.
  const std::vector<Part> added = shorter.parts();
  {
    std::lock_guard<std::mutex> lock(longer.list_->mutex);
    std::vector<Part>& parts = longer.list_->parts;
    // Nothing was appended behind this value's part of the list, so it can grow in place. A loop of
    // n iterations thus costs n appends and not n copies.
    if (parts.size() == longer.size_) {
      parts.insert(parts.end(), added.begin(), added.end());
      RowGradients sum;
      sum.list_ = longer.list_;
      sum.size_ = parts.size();
      return sum;
    }
  }
  // Another sum has grown the list already, as after a branch. This sum needs its own list.
  std::vector<Part> parts = longer.parts();
  parts.insert(parts.end(), added.begin(), added.end());
  return RowGradients(std::move(parts));
}

std::vector<RowGradients::Part> RowGradients::parts() const {
  if (size_ == 0) return {};
  std::lock_guard<std::mutex> lock(list_->mutex);
  return {list_->parts.begin(), list_->parts.begin() + static_cast<std::ptrdiff_t>(size_)};
}

std::string RowGradients::DebugString() const {
  return absl::StrCat(kTypeName, " of ", size_, " lookups");
}

void RowGradients::Encode(tf::VariantTensorData* data) const {
  data->set_type_name(TypeName());
  for (const Part& part : parts()) {
    *data->add_tensors() = part.keys;
    *data->add_tensors() = part.values;
  }
}

bool RowGradients::Decode(tf::VariantTensorData data) {
  if (data.tensors_size() % 2 != 0) return false;
  std::vector<Part> parts;
  for (int i = 0; i < data.tensors_size(); i += 2) {
    const Part part = {data.tensors(i), data.tensors(i + 1)};
    // The bytes may come from another process, or from a damaged graph.
    if (part.keys.dims() != 1 || part.values.dims() != 2) return false;
    parts.push_back(part);
  }
  *this = RowGradients(std::move(parts));
  return true;
}

namespace {

namespace registration = tf::variant_op_registry_fn_registration;

absl::Status ZerosLike(tf::OpKernelContext*, const RowGradients&, RowGradients* zeros) {
  // TensorFlow asks for zeros of the branch that was not taken. No list is needed for them.
  *zeros = RowGradients();
  return absl::OkStatus();
}

absl::Status Add(tf::OpKernelContext*, const RowGradients& first, const RowGradients& second,
                 RowGradients* sum) {
  try {
    *sum = RowGradients::Sum(first, second);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("No memory for a sum of gradients.");
  }
  return absl::OkStatus();
}

const registration::UnaryVariantDecodeRegistration<RowGradients> decode(RowGradients::kTypeName);

struct GradientSums {
  explicit GradientSums(const char* device)
      : zeros_like(tf::ZEROS_LIKE_VARIANT_UNARY_OP, device, tf::TypeIndex::Make<RowGradients>(),
                   ZerosLike),
        add(tf::ADD_VARIANT_BINARY_OP, device, tf::TypeIndex::Make<RowGradients>(), Add) {}

  registration::UnaryVariantUnaryOpRegistration<RowGradients> zeros_like;
  registration::UnaryVariantBinaryOpRegistration<RowGradients> add;
};
const GradientSums gradients_on_cpu(tf::DEVICE_CPU);
const GradientSums gradients_on_gpu(tf::DEVICE_GPU);
const CopiesOnHost<RowGradients> copies_of_gradients;

}  // namespace
}  // namespace tf_embed
