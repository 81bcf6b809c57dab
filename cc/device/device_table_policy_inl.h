// SPDX-License-Identifier: Apache-2.0
// How rows of a DeviceTable come and leave by its policy. The end of device_table_inl.h includes
// it.
#ifndef TF_EMBED_CC_DEVICE_DEVICE_TABLE_POLICY_INL_H_
#define TF_EMBED_CC_DEVICE_DEVICE_TABLE_POLICY_INL_H_

#include "cc/device/device_table_inl.h"

namespace tf_embed {

template <class Device>
Status DeviceTableImpl<Device>::Survey(const ExecContext& context, const KeyBatch& batch,
                                       const GroupsView& groups, const WriteOptions& write,
                                       uint32_t* rows, uint32_t* wanted) {
  const Expiry expiry = ExpiryAt(context);
  const bool expires = expiry.ttl_milliseconds > 0;
  Array<uint64_t> expired(device_, context);
  if (expires) TF_EMBED_RETURN_IF_ERROR(expired.MakeOnes(batch.size));
  device_.Launch(context, batch.size, kFindCost,
                 SurveyKernel{View(), BatchView(batch), groups, write.exists, expiry, context.now,
                              rows, wanted, expired.data()});
  if (expires) {
    TF_EMBED_RETURN_IF_ERROR(Evict(context, expired.data(), batch.size, &tallies_->expired));
  }
  if (options_.policy.admission != nullptr && write.admits != Admits::kAll) {
    TF_EMBED_RETURN_IF_ERROR(Admit(context, batch, write.admits, wanted));
  }
  TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, wanted, batch.size + 1));
  if (!expires) return Status();
  SweepKernel sweep{View(), expiry, wanted + batch.size};
  sweep.end = std::min<uint64_t>(BucketsToSweep(batch.size), content_->index().num_buckets());
  return EvictFound(context, sweep, &tallies_->expired);
}

template <class Device>
Status DeviceTableImpl<Device>::Admit(const ExecContext& context, const KeyBatch& batch,
                                      Admits admits, uint32_t* wanted) {
  Admission* const admission = options_.policy.admission.get();
  AdmissionCandidates candidates(options_.allocator);
  Buffer<bool> admitted(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(candidates.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(admitted.Resize(batch.size));
  Buffer<uint32_t>& marks = candidates.marks;
  Buffer<int64_t>& keys = candidates.keys;
  device_.CopyOut(context, wanted, batch.size * sizeof(uint32_t), marks.data());
  device_.CopyOut(context, batch.keys, batch.size * sizeof(int64_t), keys.data());
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  size_t asked = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    if (marks[i] != 0) keys[asked++] = keys[i];
  }
  if (admits == Admits::kPeeked) {
    admission->Peek(keys.data(), asked, admitted.data());
  } else {
    TF_EMBED_RETURN_IF_ERROR(admission->Count(keys.data(), asked, admitted.data()));
    const auto held_back = std::count(admitted.data(), admitted.data() + asked, false);
    held_back_.fetch_add(static_cast<uint64_t>(held_back), std::memory_order_relaxed);
  }
  asked = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    if (marks[i] != 0) marks[i] = admitted[asked++] ? 1 : 0;
  }
  device_.CopyIn(context, marks.data(), batch.size * sizeof(uint32_t), wanted);
  return Status();
}

template <class Device>
Status DeviceTableImpl<Device>::ForgetAdmitted(const ExecContext& context, const KeyBatch& batch,
                                               const NewRows& coming,
                                               AdmissionCandidates* candidates) {
  uint32_t count = 0;
  device_.CopyOut(context, coming.marks + batch.size, sizeof(count), &count);
  if (count == 0) return device_.Check(context);
  Buffer<uint32_t>& marks = candidates->marks;
  Buffer<int64_t>& keys = candidates->keys;
  device_.CopyOut(context, coming.marks, (batch.size + 1) * sizeof(uint32_t), marks.data());
  device_.CopyOut(context, batch.keys, batch.size * sizeof(int64_t), keys.data());
  const uint64_t rows = content_->Rows(context);
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  const uint64_t room = coming.most_rows - std::min(rows, coming.most_rows);
  size_t came = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    if (marks[i + 1] != marks[i] && marks[i] < room) keys[came++] = keys[i];
  }
  options_.policy.admission->Forget(keys.data(), came);
  return Status();
}

template <class Device>
Status DeviceTableImpl<Device>::Evict(const ExecContext& context, const uint64_t* places,
                                      size_t count, uint64_t* left) {
  if (options_.policy.sink != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(TellSink(context, places, count));
  }
  device_.Launch(context, count, kPlaceCost, EraseRowsKernel{View(), places, left});
  return Status();
}

template <class Device>
Status DeviceTableImpl<Device>::TellSink(const ExecContext& context, const uint64_t* places,
                                         size_t count) {
  Array<uint32_t> numbers(device_, context);
  WholeRowArrays arrays(device_, context);
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(numbers.MakeZeros(count + 1));
  device_.Launch(context, count, kPlaceCost, MarkPlacesKernel{places, numbers.data()});
  TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, numbers.data(), count + 1));
  uint32_t leaving = 0;
  device_.CopyOut(context, numbers.data() + count, sizeof(leaving), &leaving);
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  if (leaving == 0) return Status();
  const DeviceRowLayout& layout = content_->layout();
  TF_EMBED_RETURN_IF_ERROR(arrays.Make(leaving, layout));
  TF_EMBED_RETURN_IF_ERROR(
      rows.Resize(leaving, layout.weight_bytes, layout.slot_bytes, layout.statistics));
  device_.Launch(context, count, kRowCost,
                 CopyLeavingKernel{View(), places, numbers.data(), arrays.view()});
  CopyOut(context, arrays, leaving, &rows);
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  rows.size = leaving;
  return options_.policy.sink->Evict(rows, content_->rule);
}

template <class Device>
template <class Kernel>
Status DeviceTableImpl<Device>::EvictFound(const ExecContext& context, Kernel kernel,
                                           uint64_t* left) {
  const uint64_t end = kernel.end;
  if (options_.policy.sink == nullptr) {
    kernel.left = left;
    device_.Launch(context, end, kPlaceCost * DeviceBucket::kLanes, kernel);
    return Status();
  }
  for (uint64_t first = 0; first < end; first += kBucketsTogether) {
    const size_t buckets = std::min<uint64_t>(kBucketsTogether, end - first);
    Array<uint64_t> places(device_, context);
    TF_EMBED_RETURN_IF_ERROR(places.MakeOnes(buckets * DeviceBucket::kLanes));
    kernel.first = first;
    kernel.places = places.data();
    device_.Launch(context, buckets, kPlaceCost * DeviceBucket::kLanes, kernel);
    TF_EMBED_RETURN_IF_ERROR(Evict(context, places.data(), buckets * DeviceBucket::kLanes, left));
  }
  return Status();
}

template <class Device>
Status DeviceTableImpl<Device>::Choose(const ExecContext& context, const KeyBatch& batch,
                                       const GroupsView& groups, const NewRows& wanted,
                                       uint32_t* coming) {
  const RowPolicy& policy = options_.policy;
  const size_t size = batch.size;
  const uint64_t bound = std::min<uint64_t>(policy.max_rows, wanted.most_rows);
  const EvictionSets eviction_sets{EvictionSetBits(bound)};
  const bool by_scores = batch.scores != nullptr && policy.eviction == EvictionOrder::kScore;
  Array<uint64_t> numbers(device_, context), sorted_numbers(device_, context);
  Array<uint32_t> order(device_, context), sorted_order(device_, context);
  Array<uint64_t> victims(device_, context), scores(device_, context);
  TF_EMBED_RETURN_IF_ERROR(numbers.Make(size));
  TF_EMBED_RETURN_IF_ERROR(sorted_numbers.Make(size));
  TF_EMBED_RETURN_IF_ERROR(order.Make(size));
  TF_EMBED_RETURN_IF_ERROR(sorted_order.Make(size));
  TF_EMBED_RETURN_IF_ERROR(victims.MakeOnes(size));
  device_.Launch(context, size, kPlaceCost, FillIndicesKernel{order.data()});
  uint32_t* from = order.data();
  uint32_t* to = sorted_order.data();
  if (by_scores) {
    TF_EMBED_RETURN_IF_ERROR(scores.Make(size));
    device_.Fill(context, numbers.data(), 0xff, size * sizeof(uint64_t));
    device_.Launch(context, size, kPlaceCost,
                   ScoreKernel{BatchView(batch), groups, scores.data(), numbers.data()});
    TF_EMBED_RETURN_IF_ERROR(
        device_.Sort(context, numbers.data(), from, size, 64, sorted_numbers.data(), to));
    std::swap(from, to);
  }
  device_.Launch(context, size, kPlaceCost,
                 EvictionSetKernel{batch.keys, wanted.marks, from, eviction_sets, numbers.data()});
  TF_EMBED_RETURN_IF_ERROR(device_.Sort(context, numbers.data(), from, size,
                                        static_cast<int>(eviction_sets.bits) + 1,
                                        sorted_numbers.data(), to));
  device_.Launch(context, size, kFindCost,
                 ChooseVictimsKernel{View(), eviction_sets, sorted_numbers.data(), to, size,
                                     NewRows{wanted.marks, bound}, scores.data(), policy.eviction,
                                     context.now.step, victims.data(), coming});
  TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, coming, size + 1));
  // But for the sink, nothing can fail any more.
  return Evict(context, victims.data(), size, &tallies_->evicted);
}

template <class Device>
Status DeviceTableImpl<Device>::FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                               uint64_t* statistics, bool* exists) const {
  const Reading reading(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 FindStatisticsKernel{View(), BatchView(batch), statistics, exists});
  return device_.Check(context);
}

template <class Device>
Status DeviceTableImpl<Device>::AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                                 StatisticSet set, const uint64_t* statistics) {
  auto groups = device_.NewGroups();
  TF_EMBED_RETURN_IF_ERROR(device_.Group(context, batch, &groups));
  const Writing writing(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 AssignStatisticsKernel{View(), BatchView(batch), groups.view(), set, statistics});
  return device_.Check(context);
}

template <class Device>
Status DeviceTableImpl<Device>::EvictExpired(const ExecContext& context, size_t* removed) {
  if (options_.policy.ttl_milliseconds == 0) return Status();
  const Writing writing(this, context);
  Array<uint64_t> counter(device_, context);
  TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
  SweepKernel sweep{View(), ExpiryAt(context), nullptr};
  sweep.end = content_->index().num_buckets();
  Status status = EvictFound(context, sweep, counter.data());
  uint64_t gone = 0;
  device_.CopyOut(context, counter.data(), sizeof(gone), &gone);
  const uint64_t left = content_->Rows(context);
  if (status.ok()) status = device_.Check(context);
  if (status.ok()) content_->row_bound.Set(left);
  expired_.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  return status;
}

template <class Device>
Status DeviceTableImpl<Device>::EvictBelow(const ExecContext& context, EvictionOrder order,
                                           const Rank& limit, size_t num_left, size_t* removed) {
  uint64_t gone = 0;
  size_t left;
  Status status;
  {
    const Writing writing(this, context);
    Array<uint64_t> counter(device_, context);
    TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
    EvictBelowKernel kernel{View(), order, limit, limit == kHighestRank};
    kernel.end = content_->index().num_buckets();
    status = EvictFound(context, kernel, counter.data());
    device_.CopyOut(context, counter.data(), sizeof(gone), &gone);
    left = content_->Rows(context);
    if (status.ok()) status = device_.Check(context);
    if (status.ok()) content_->row_bound.Set(left);
  }
  evicted_.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  TF_EMBED_RETURN_IF_ERROR(std::move(status));
  // Without memory for a copy the table is right, only larger.
  if (num_left + (left + gone) / kRebuildDivisor <= left + gone) (void)Shrink(context);
  return device_.Check(context);
}

template <class Device>
Status DeviceTableImpl<Device>::CollectRanks(const ExecContext& context, EvictionOrder order,
                                             size_t one_in, const Rank& low, const Rank& high,
                                             RankList* ranks, size_t* below) const {
  const Reading reading(this, context);
  const uint64_t rows = content_->Rows(context);
  if (rows == 0) return Status();
  Array<Rank> found(device_, context);
  Array<uint64_t> counters(device_, context);
  TF_EMBED_RETURN_IF_ERROR(found.Make(rows));
  TF_EMBED_RETURN_IF_ERROR(counters.MakeZeros(2));
  device_.Launch(context, content_->index().num_places(), kPlaceCost,
                 CollectRanksKernel{View(), order, one_in, low, high, high == kHighestRank,
                                    found.data(), counters.data()});
  uint64_t counts[2];
  device_.CopyOut(context, counters.data(), sizeof(counts), counts);
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  Buffer<Rank> host(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(host.Resize(counts[0]));
  device_.CopyOut(context, found.data(), counts[0] * sizeof(Rank), host.data());
  *below += counts[1];
  return ranks->Append(host.data(), counts[0]);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DEVICE_DEVICE_TABLE_POLICY_INL_H_
