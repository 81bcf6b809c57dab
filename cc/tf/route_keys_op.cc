// SPDX-License-Identifier: Apache-2.0
// RouteKeys, which brings the keys of a batch together by the worker that owns them.
#include <algorithm>
#include <cstdint>
#include <string>

#include "cc/core/exchange/key_route.h"
#include "cc/tf/exchange_op.h"
#include "cc/tf/op_inputs.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class RouteKeysOp final : public ExchangeOp {
 public:
  explicit RouteKeysOp(tf::OpKernelConstruction* construction) : ExchangeOp(construction) {
    std::string rule;
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "num_workers", 1, kMostWorkers, &num_workers_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner_rule", &rule));
    rule_ = rule == "hash" ? OwnerRule::kHash : OwnerRule::kRemainder;
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& tensor = context->input(0);
    const tf::Tensor& owners = context->input(1);
    const size_t size = static_cast<size_t>(tensor.NumElements());
    const size_t num_workers = static_cast<size_t>(num_workers_);
    TF_RETURN_IF_ERROR(CheckRank(owners, "owners", 1));
    if (owners.NumElements() != 0 && owners.NumElements() != tensor.NumElements()) {
      return InvalidArgumentError("`owners` must have one worker for each key. Received: ",
                                  owners.NumElements(), " for ", size, " keys.");
    }
    const bool is_string = tensor.dtype() == tf::DT_STRING;
    if (is_string && rule_ == OwnerRule::kRemainder && owners.NumElements() == 0) {
      return InvalidArgumentError("`owner_rule` must be hash for keys that are strings.");
    }
    const ExecContext exec = ThreadPoolOf(context);
    Buffer<int64_t> widened(HostAllocator());
    Buffer<int32_t> owners_of_strings(HostAllocator());
    const int64_t* keys;
    const int32_t* chosen = owners.NumElements() == 0 ? nullptr : owners.flat<int32_t>().data();
    if (is_string) {
      const StringBatch strings = StringsOf(tensor);
      TF_RETURN_IF_ERROR(ToTensorFlow(widened.Resize(size)));
      TF_RETURN_IF_ERROR(
          ToTensorFlow(NumberDistinctStrings(exec, strings, HostAllocator(), widened.data())));
      keys = widened.data();
      if (chosen == nullptr) {
        TF_RETURN_IF_ERROR(ToTensorFlow(owners_of_strings.Resize(size)));
        for (size_t i = 0; i < size; ++i) {
          owners_of_strings[i] =
              static_cast<int32_t>(OwnerByHash(HashString(strings[i], 0), num_workers));
        }
        chosen = owners_of_strings.data();
      }
    } else {
      TF_RETURN_IF_ERROR(WidenedKeys(tensor, &widened, &keys));
    }
    const bool is_unsigned = tensor.dtype() == tf::DT_UINT64 || tensor.dtype() == tf::DT_UINT32;
    KeyRoute route(HostAllocator());
    TF_RETURN_IF_ERROR(
        ToTensorFlow(route.Build(exec, keys, size, chosen, rule_, is_unsigned, num_workers)));

    tf::Tensor* routed;
    tf::Tensor* places;
    tf::Tensor* counts;
    const int64_t num_routed = static_cast<int64_t>(route.size());
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_routed}, &routed));
    TF_RETURN_IF_ERROR(context->allocate_output(1, tensor.shape(), &places));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {num_workers_}, &counts));
    if (tensor.dtype() == tf::DT_INT64 || tensor.dtype() == tf::DT_UINT64) {
      route.WriteKeys(static_cast<int64_t*>(routed->data()));
    } else {
      Buffer<int64_t> wide(HostAllocator());
      TF_RETURN_IF_ERROR(ToTensorFlow(wide.Resize(route.size())));
      route.WriteKeys(wide.data());
      if (is_string) {
        const tf::tstring* const from = tensor.flat<tf::tstring>().data();
        tf::tstring* const to = routed->flat<tf::tstring>().data();
        for (size_t i = 0; i < route.size(); ++i) to[i] = from[wide[i]];
      } else {
        NarrowKeys(wide.data(), route.size(), 0, routed);
      }
    }
    route.WritePlaces(exec, places->flat<int32_t>().data());
    std::copy_n(route.counts(), num_workers, counts->flat<int32_t>().data());
    return absl::OkStatus();
  }

  int64_t num_workers_ = 1;
  OwnerRule rule_ = OwnerRule::kHash;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedRouteKeys").Device(tf::DEVICE_CPU), RouteKeysOp);

}  // namespace
}  // namespace tf_embed
