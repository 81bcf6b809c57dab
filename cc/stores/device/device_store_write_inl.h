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
Status DeviceStoreImpl<Device>::Group(const ExecContext& context, const KeyBatch& batch,
                                      bool firsts, Grouped* groups) const {
  // A plan counts new keys, so it can't rely on the caller's hint.
  const bool planned = options_.policy.plans_writes();
  if (!batch.distinct || batch.size == 0 || planned) {
    if constexpr (Device::kHasFirsts) {
      if (firsts && !planned) {
        TF_EMBED_RETURN_IF_ERROR(device_.GroupFirsts(context, batch, &groups->sorted));
        groups->view = groups->sorted.view();
        return Status();
      }
    }
    TF_EMBED_RETURN_IF_ERROR(device_.Group(context, batch, &groups->sorted));
    groups->view = groups->sorted.view();
    return Status();
  }
  TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(batch.size));
  // A power of two, so a mask finds the place; at least twice the keys, so a search is short and
  // ends.
  size_t claims = 2;
  while (claims < 2 * batch.size) claims *= 2;
  TF_EMBED_RETURN_IF_ERROR(groups->claims.MakeZeros(claims));
  TF_EMBED_RETURN_IF_ERROR(groups->claimed.Make(batch.size));
  TF_EMBED_RETURN_IF_ERROR(groups->members.Make(batch.size));
  TF_EMBED_RETURN_IF_ERROR(groups->late.Make(batch.size));
  TF_EMBED_RETURN_IF_ERROR(groups->counters.MakeZeros(2));
  auto* const num_groups = reinterpret_cast<uint32_t*>(groups->counters.data() + 1);
  LaunchLanes(device_, context, batch.size, kPlaceCost,
              ClaimKernel{batch.keys, batch.size, ProcessSalt(), groups->claims.data(), claims - 1,
                          groups->claimed.data(), groups->members.data(), num_groups,
                          groups->late.data(), groups->counters.data()});
  groups->view = GroupsView{groups->claimed.data(), num_groups};
  return device_.Check(context);
}

template <class Device>
template <class Verb>
Status DeviceStoreImpl<Device>::Write(const ExecContext& context, const KeyBatch& batch,
                                      const Grouped& grouped, const WriteOptions& write,
                                      size_t key_cost, const Verb& verb) {
  if (batch.size == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(GiveBefore(context, batch.keys, batch.size));
  const RowPolicy& policy = options_.policy;
  const bool inserts = batch.absent == nullptr;
  const bool planned = policy.plans_writes() && !context.restoring && inserts;
  const GroupsView groups = grouped.view;
  Array<uint32_t> rows(device_, context);
  Array<uint32_t> wanted(device_, context);
  Array<uint32_t> chosen(device_, context);
  Array<uint32_t> given(device_, context);
  TF_EMBED_RETURN_IF_ERROR(rows.Make(batch.size));
  if (Verb::kGives) TF_EMBED_RETURN_IF_ERROR(given.Make(batch.size));
  // Marks first, then their running sum, in place. The last element becomes the total.
  TF_EMBED_RETURN_IF_ERROR(wanted.MakeZeros(batch.size + 1));
  const BatchView view(batch);
  DeviceWritePlanner<Device> planner = PlannerOf(context);
  if (planned) {
    TF_EMBED_RETURN_IF_ERROR(
        planner.Survey(batch, groups, write.exists, write.admits, rows.data(), wanted.data()));
  } else {
    LaunchLookups(
        device_, context, batch.size, kFindCost,
        ProbeKernel{content_->index(), view, groups, write.exists, rows.data(), wanted.data()});
    TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, wanted.data(), batch.size + 1));
  }
  bool all = true;
  if (inserts) {
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, batch.size, wanted.data() + batch.size, &all));
  }
  NewRows coming{wanted.data(), content_->room()};
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
        // Must not fail, because rows may have left. Without memory, the device sums only by tiles.
        LaunchSums(context, groups, kernel.first, count, batch.size, verb);
      }
      device_.Launch(context, count, key_cost, kernel);
    }
  }
  // Equal keys in a batch declared distinct. They can't run with the other keys, because two tiles
  // would change the same row.
  if (grouped.late.data() != nullptr) {
    device_.Launch(context, 1, 0,
                   DuplicateKeysKernel<Verb>{kernel, grouped.late.data(), grouped.counters.data()});
  }
  // The number of rows is as before, so there is nothing to commit, and the host's bound stays.
  if (!inserts) return device_.Check(context);
  device_.Launch(
      context, 1, 0,
      CommitCountsKernel{store.counts, tallies_, coming, wanted.data() + batch.size, batch.size,
                         planned && policy.ttl_milliseconds > 0, write.counts_refused});
  return Launched(context, batch.size);
}

template <class Device>
Status DeviceStoreImpl<Device>::FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                                             const DefaultRows& defaults, void* weights,
                                             bool* exists) {
  // Grouping reads only the batch, so it is queued before the lock is taken.
  Grouped groups(device_, context);
  const bool firsts = batch.absent == nullptr && batch.scores == nullptr;
  TF_EMBED_RETURN_IF_ERROR(Group(context, batch, firsts, &groups));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  keys_looked_up_.fetch_add(batch.size, std::memory_order_relaxed);
  WriteOptions write;
  write.uses = context.training;
  write.counts_refused = !context.training;  // in training, the following Apply counts them
  if (context.training) write.admits = Admits::kPeeked;
  return Write(
      context, batch, groups, write, kWriteCost + content_->layout().weight_bytes / 8,
      FindOrInsertVerb{BatchView(batch), ViewOf(defaults), static_cast<char*>(weights), exists});
}

template <class Device>
Status DeviceStoreImpl<Device>::InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                               const void* weights, const SlotsIn& slots) {
  Grouped groups(device_, context);
  TF_EMBED_RETURN_IF_ERROR(Group(context, batch, /*firsts=*/false, &groups));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  if (slots.rule != nullptr && !SameRule(*slots.rule, content_->rule)) {
    return RuleWasChanged(options_.name);
  }
  WriteOptions write;
  if (context.training) write.admits = Admits::kCounted;
  return Write(context, batch, groups, write, kWriteCost + content_->layout().stride / 8,
               AssignVerb{BatchView(batch), static_cast<const char*>(weights),
                          static_cast<const char*>(slots.slots)});
}

template <class Device>
Status DeviceStoreImpl<Device>::Accum(const ExecContext& context, const KeyBatch& batch,
                                      const void* old_rows, const void* new_rows,
                                      const bool* exists) {
  TF_EMBED_RETURN_IF_ERROR(CheckAccum(options_));
  Grouped groups(device_, context);
  TF_EMBED_RETURN_IF_ERROR(Group(context, batch, /*firsts=*/false, &groups));
  const Writing writing(this, context, /*keeps_keys=*/batch.absent != nullptr);
  WriteOptions write;
  write.exists = exists;
  return DispatchDataType(options_.value_type, [&](auto tag) -> Status {
    using T = typename decltype(tag)::Type;
    if constexpr (std::is_same_v<T, bool>) {
      return Status();  // refused above
    } else {
      return Write(context, batch, groups, write, kWriteCost,
                   AccumVerb<T>{BatchView(batch), static_cast<const T*>(old_rows),
                                static_cast<const T*>(new_rows), exists});
    }
  });
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_WRITE_INL_H_
