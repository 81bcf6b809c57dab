// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/settings.h"

#include "cc/tf/op_inputs.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

template <typename T>
absl::Status ReadInput(tf::OpKernelContext* context, const char* name, T* value) {
  const tf::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  return ReadScalar(*tensor, name, value);
}

}  // namespace

absl::Status Settings::GetNumber(const char* name, int64_t least, int64_t* value) const {
  TF_RETURN_IF_ERROR(Get(name, value));
  if (*value >= least) return absl::OkStatus();
  return InvalidArgumentError("`", name, "` must be at least ", least, ". Received: ", *value, ".");
}

absl::Status AttributeSettings::Get(const char* name, int64_t* value) const {
  return construction_->GetAttr(name, value);
}
absl::Status AttributeSettings::Get(const char* name, float* value) const {
  return construction_->GetAttr(name, value);
}
absl::Status AttributeSettings::Get(const char* name, bool* value) const {
  return construction_->GetAttr(name, value);
}
absl::Status AttributeSettings::Get(const char* name, std::string* value) const {
  return construction_->GetAttr(name, value);
}

absl::Status InputSettings::Get(const char* name, int64_t* value) const {
  return ReadInput(context_, name, value);
}
absl::Status InputSettings::Get(const char* name, float* value) const {
  return ReadInput(context_, name, value);
}
absl::Status InputSettings::Get(const char* name, bool* value) const {
  return ReadInput(context_, name, value);
}
absl::Status InputSettings::Get(const char* name, std::string* value) const {
  tf::tstring text;
  TF_RETURN_IF_ERROR(ReadInput(context_, name, &text));
  value->assign(text.data(), text.size());
  return absl::OkStatus();
}

}  // namespace tf_embed
