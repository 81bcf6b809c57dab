// SPDX-License-Identifier: Apache-2.0
// The part of a DeviceStore that runs optimizers. Included by device_store_inl.h.
//
// The sum of a key's gradients, and for narrow weights the row to compute in, are in scratch
// memory. Only the device knows how many distinct keys a batch has, so a row for each key of the
// batch would be needed. Instead, a launch takes only as many keys as there is scratch memory for,
// and the next launch reuses it. So scratch memory stays small, and in the device's cache.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_APPLY_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_APPLY_INL_H_

#include <algorithm>
#include <type_traits>

#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/rule_kernels.h"

namespace tf_embed {

template <class Device>
template <typename T, typename G>
Status DeviceStoreImpl<Device>::ApplyAs(const ExecContext& context, const KeyBatch& batch,
                                        const GroupsView& groups, const Gradients& gradients,
                                        const Rule& rule) {
  using Compute = typename Number<T>::Compute;
  WriteOptions write;
  write.admits = Admits::kCounted;
  write.together = std::max(kMinTogether, kScratchBytes / (options_.dim * sizeof(Compute)));
  const size_t scratch = std::min(write.together, batch.size) * options_.dim;
  Array<Compute> sums(device_, context);
  Array<Compute> wide(device_, context);
  TF_EMBED_RETURN_IF_ERROR(sums.Make(scratch));
  if (!std::is_same_v<T, Compute>) TF_EMBED_RETURN_IF_ERROR(wide.Make(scratch));
  const RoundingNoise noise(content_->initializer, rule.step, RoundingNoise::Of::kStep);
  return DispatchRule<T>(rule, [&](auto by) {
    return this->Write(
        context, batch, groups, write, kWriteCost + content_->layout().stride / 4,
        ApplyVerb<T, G, decltype(by)>{
            GroupSums<G>{
                BatchView(batch),
                GradientsView<G>{static_cast<const G*>(gradients.values), options_.dim,
                                 gradients.begins, static_cast<const Compute*>(gradients.factors)},
                sums.data()},
            ViewOf(DefaultRows()), RuleConstants<Compute>(rule),
            WeightRounding<T>{noise, rule.stochastic_rounding}, wide.data()});
  });
}

template <class Device>
Status DeviceStoreImpl<Device>::Apply(const ExecContext& context, const KeyBatch& batch,
                                      const Gradients& gradients, const Rule& rule) {
  TF_EMBED_RETURN_IF_ERROR(CheckApply(options_, gradients.type, rule));
  const typename Device::Current current(device_);
  DeviceGroups<Device> groups(device_, context);
  TF_EMBED_RETURN_IF_ERROR(groups.Build(batch));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  TF_EMBED_RETURN_IF_ERROR(ChangeRule(context, rule.slots));
  return DispatchFloating(options_.value_type, [&](auto tag) -> Status {
    using T = typename decltype(tag)::Type;
    // Stores of narrow rows also take float gradients, which would lose bits if narrowed first.
    if constexpr (!std::is_same_v<T, typename Number<T>::Compute>) {
      if (gradients.type == DataType::kFloat) {
        return ApplyAs<T, float>(context, batch, groups.view(), gradients, rule);
      }
    }
    return ApplyAs<T, T>(context, batch, groups.view(), gradients, rule);
  });
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_APPLY_INL_H_
