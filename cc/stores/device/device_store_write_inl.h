// SPDX-License-Identifier: Apache-2.0
// The verbs of DeviceStore that write rows, except optimizers. The end of device_store_inl.h
// includes it.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_WRITE_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_WRITE_INL_H_

#include <algorithm>
#include <type_traits>

#include "cc/stores/device/device_store_inl.h"

namespace tf_embed {

template <class Device>
template <class Verb>
Status DeviceStoreImpl<Device>::Write(const ExecContext& context, const KeyBatch& batch,
                                      const GroupsView& groups, const WriteOptions& write,
                                      size_t key_cost, const Verb& verb) {
  if (batch.size == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(GiveBefore(context, batch.keys, batch.size));
  const RowPolicy& policy = options_.policy;
  const bool inserts = batch.absent == nullptr;
  const bool planned = policy.plans_writes() && !context.restoring && inserts;
  Array<uint32_t> rows(device_, context);
  Array<uint32_t> wanted(device_, context);
  Array<uint32_t> chosen(device_, context);
  Array<uint32_t> given(device_, context);
  TF_EMBED_RETURN_IF_ERROR(rows.Make(batch.size));
  if (Verb::kGives) TF_EMBED_RETURN_IF_ERROR(given.Make(batch.size));
  bool all = true;
  const bool has_room = !inserts || HasRoom(context, batch.size, &all);
  // If all new rows certainly fit, their order does not matter, and tiles number them.
  const bool in_any_order = has_room && all && !planned;
  if (in_any_order) {
    TF_EMBED_RETURN_IF_ERROR(wanted.Make(batch.size));
  } else {
    // Marks first, then their running sum, in place. The last element becomes the total.
    TF_EMBED_RETURN_IF_ERROR(wanted.MakeZeros(batch.size + 1));
  }
  const BatchView view(batch);
  DeviceWritePlanner<Device> planner = PlannerOf(context);
  if (planned) {
    TF_EMBED_RETURN_IF_ERROR(
        planner.Survey(batch, groups, write.exists, write.admits, rows.data(), wanted.data()));
  } else {
    LaunchLookups(device_, context, batch.size, kFindCost,
                  ProbeKernel{content_->index(), view, groups, write.exists, rows.data(),
                              wanted.data(), in_any_order});
    if (!in_any_order) {
      TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, wanted.data(), batch.size + 1));
    }
  }
  if (!has_room) {
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, batch.size, wanted.data() + batch.size, &all));
  }
  NewRows coming{wanted.data(), content_->room()};
  if (in_any_order) coming.numbers = wanted.data();
  if (planned && policy.admission != nullptr) {
    // Allocate before Choose, because rows leave there and nothing may fail afterwards.
    TF_EMBED_RETURN_IF_ERROR(planner.ReserveCandidates(batch.size));
  }
  if (planned && policy.max_rows > 0 && !policy.evicts) {
    // A bound that refuses keys needs no victims. The first new keys of the batch get the room.
    coming.most_rows = std::min<uint64_t>(coming.most_rows, policy.max_rows);
  } else if (planned && policy.max_rows > 0 && !all) {
    TF_EMBED_RETURN_IF_ERROR(chosen.MakeZeros(batch.size + 1));
    TF_EMBED_RETURN_IF_ERROR(planner.Choose(batch, groups, coming, chosen.data()));
    coming.marks = chosen.data();
  }
  if (planned && policy.admission != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(planner.ForgetAdmitted(batch, coming));
  }
  const StoreView store = View();
  const bool uses = write.uses && !planned && content_->layout().statistics > 0;
  // A planned write noted its uses in Survey.
  WriteKernel<Verb> kernel{store, view, groups, 0, rows.data(), coming, uses, context.now, verb};
  if constexpr (Verb::kGives) {
    LaunchGives(device_, context, batch.size, key_cost, kernel, given.data());
  } else {
    // Launches of a stream run in order, so they can share the scratch memory of `together` keys.
    for (; kernel.first < batch.size; kernel.first += std::min(write.together, batch.size)) {
      const size_t count = std::min(write.together, batch.size - kernel.first);
      if constexpr (Verb::kSums) {
        const size_t blocks = verb.sums.gradients.template Blocks<typename Device::Tile>();
        const SumKernel sums(groups, kernel.first, count, blocks, verb.sums);
        LaunchBlocks(device_, context, sums.MostTiles(), kSumCost, sums);
      }
      device_.Launch(context, count, key_cost, kernel);
    }
  }
  // The number of rows is as before, so there is nothing to commit, and the host's bound stays.
  if (!inserts) return device_.Check(context);
  device_.Launch(
      context, 1, 0,
      CommitCountsKernel{store.counts, tallies_, coming, wanted.data(), groups.counters, batch.size,
                         planned && policy.ttl_milliseconds > 0, write.counts_refused});
  return Launched(context, batch.size);
}

template <class Device>
Status DeviceStoreImpl<Device>::FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                                             const DefaultRows& defaults, void* weights,
                                             bool* exists) {
  // Grouping reads only the batch, so it is queued before the lock is taken.
  const typename Device::Current current(device_);
  DeviceGroups<Device> groups(device_, context);
  using Members = typename DeviceGroups<Device>::Members;
  const bool all = batch.absent != nullptr || batch.scores != nullptr;
  TF_EMBED_RETURN_IF_ERROR(groups.Build(batch, all ? Members::kAll : Members::kFirst));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  keys_looked_up_.fetch_add(batch.size, std::memory_order_relaxed);
  WriteOptions write;
  write.uses = context.training;
  write.counts_refused = !context.training;  // in training, the following Apply counts them
  if (context.training) write.admits = Admits::kPeeked;
  return Write(
      context, batch, groups.view(), write, kWriteCost + content_->layout().weight_bytes / 8,
      FindOrInsertVerb{BatchView(batch), ViewOf(defaults), static_cast<char*>(weights), exists});
}

template <class Device>
Status DeviceStoreImpl<Device>::InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                               const void* weights, const SlotsIn& slots) {
  const typename Device::Current current(device_);
  DeviceGroups<Device> groups(device_, context);
  TF_EMBED_RETURN_IF_ERROR(groups.Build(batch));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  if (slots.rule != nullptr && !SameRule(*slots.rule, content_->rule)) {
    return RuleWasChanged(options_.name);
  }
  WriteOptions write;
  if (context.training) write.admits = Admits::kCounted;
  return Write(context, batch, groups.view(), write, kWriteCost + content_->layout().stride / 8,
               AssignVerb{BatchView(batch), static_cast<const char*>(weights),
                          static_cast<const char*>(slots.slots)});
}

template <class Device>
Status DeviceStoreImpl<Device>::Accum(const ExecContext& context, const KeyBatch& batch,
                                      const void* old_rows, const void* new_rows,
                                      const bool* exists) {
  TF_EMBED_RETURN_IF_ERROR(CheckAccum(options_));
  const typename Device::Current current(device_);
  DeviceGroups<Device> groups(device_, context);
  TF_EMBED_RETURN_IF_ERROR(groups.Build(batch));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  WriteOptions write;
  write.exists = exists;
  return DispatchDataType(options_.value_type, [&](auto tag) -> Status {
    using T = typename decltype(tag)::Type;
    if constexpr (std::is_same_v<T, bool>) {
      return Status();  // refused above
    } else {
      return Write(context, batch, groups.view(), write, kWriteCost,
                   AccumVerb<T>{BatchView(batch), static_cast<const T*>(old_rows),
                                static_cast<const T*>(new_rows), exists});
    }
  });
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_WRITE_INL_H_
