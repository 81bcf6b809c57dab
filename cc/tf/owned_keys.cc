// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/owned_keys.h"

#include <algorithm>

#include "cc/tf/op_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {

namespace tf = ::tensorflow;

absl::Status OwnedKeys::Read(const ExecContext& exec, const tf::Tensor& keys,
                             const tf::Tensor& owners, OwnerRule rule, const char* rule_name,
                             int64_t num_workers) {
  keys_ = &keys;
  TF_RETURN_IF_ERROR(CheckRank(owners, "owners", 1));
  const bool by_rule = owners.NumElements() == 0;
  if (!by_rule && owners.NumElements() != keys.NumElements()) {
    return InvalidArgumentError("`owners` must have one worker for each key. Received: ",
                                owners.NumElements(), " for ", size(), " keys.");
  }
  if (is_string() && rule == OwnerRule::kRemainder && by_rule) {
    return InvalidArgumentError("`", rule_name, "` must be hash for keys that are strings.");
  }
  owners_ = by_rule ? nullptr : owners.flat<int32_t>().data();
  if (!is_string()) return WidenedKeys(keys, &widened_, &wide_);
  const StringBatch strings = StringsOf(keys);
  TF_RETURN_IF_ERROR(ToTensorFlow(widened_.Resize(strings.size)));
  TF_RETURN_IF_ERROR(
      // Numbers of this batch represent the strings from here on. They differ between processes, so
      // the owner is chosen by a hash of the string.
      ToTensorFlow(NumberDistinctStrings(exec, strings, HostAllocator(), widened_.data())));
  wide_ = widened_.data();
  if (!by_rule) return absl::OkStatus();
  TF_RETURN_IF_ERROR(ToTensorFlow(owners_of_strings_.Resize(strings.size)));
  for (size_t i = 0; i < strings.size; ++i) {
    owners_of_strings_[i] = static_cast<int32_t>(
        OwnerByHash(HashString(strings[i], 0), static_cast<size_t>(num_workers)));
  }
  owners_ = owners_of_strings_.data();
  return absl::OkStatus();
}

absl::Status OwnedKeys::Give(tf::OpKernelContext* context, int output, const int64_t* some,
                             size_t count) const {
  tf::Tensor* given;
  TF_RETURN_IF_ERROR(context->allocate_output(output, {static_cast<int64_t>(count)}, &given));
  if (is_string()) {
    const tf::tstring* const from = keys_->flat<tf::tstring>().data();
    tf::tstring* const to = given->flat<tf::tstring>().data();
    for (size_t i = 0; i < count; ++i) to[i] = from[some[i]];
  } else if (keys_->dtype() == tf::DT_INT64 || keys_->dtype() == tf::DT_UINT64) {
    std::copy_n(some, count, static_cast<int64_t*>(given->data()));
  } else {
    NarrowKeys(some, count, 0, given);
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
