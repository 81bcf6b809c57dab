// SPDX-License-Identifier: Apache-2.0
// Statistics of rows, and rows that leave by expiry or a restriction. The end of device_store_inl.h
// includes it.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_POLICY_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_POLICY_INL_H_

#include "cc/stores/device/device_store_inl.h"

namespace tf_embed {

template <class Device>
Status DeviceStoreImpl<Device>::FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                               uint64_t* statistics, bool* exists) const {
  const Reading reading(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 FindStatisticsKernel{View(), BatchView(batch), statistics, exists});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                                 StatisticSet set, const uint64_t* statistics) {
  const typename Device::Current current(device_);
  DeviceGroups<Device> groups(device_, context);
  TF_EMBED_RETURN_IF_ERROR(groups.Build(batch));
  const Writing writing(this, context);
  TF_EMBED_RETURN_IF_ERROR(GiveBefore(context, batch.keys, batch.size));
  device_.Launch(context, batch.size, kFindCost,
                 AssignStatisticsKernel{View(), BatchView(batch), groups.view(), set, statistics});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::EvictExpired(const ExecContext& context, size_t* removed) {
  if (options_.policy.ttl_milliseconds == 0) return Status();
  const Writing writing(this, context);
  Array<uint64_t> counter(device_, context);
  TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
  SweepKernel sweep{View(), ExpiryAt(context), nullptr};
  sweep.end = content_->index().num_buckets();
  Status status = PlannerOf(context).EvictFound(sweep, counter.data());
  uint64_t gone = 0;
  device_.CopyOut(context, counter.data(), sizeof(gone), &gone);
  uint64_t left = 0;
  if (status.ok()) status = content_->Rows(context, &left);
  // The host has just read the exact number, so the next writes need not wait for it.
  if (status.ok()) content_->row_bound.Set(left);
  // Also after a failure: if the host is told, rows of earlier parts have left.
  expired_.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  return status;
}

template <class Device>
Status DeviceStoreImpl<Device>::EvictBelow(const ExecContext& context, EvictionOrder order,
                                           const Rank& limit, size_t num_left, size_t* removed) {
  uint64_t gone = 0;
  uint64_t left = 0;
  Status status;
  {
    const Writing writing(this, context);
    Array<uint64_t> counter(device_, context);
    TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
    EvictBelowKernel kernel{View(), order, limit, limit == kHighestRank};
    kernel.end = content_->index().num_buckets();
    status = PlannerOf(context).EvictFound(kernel, counter.data());
    device_.CopyOut(context, counter.data(), sizeof(gone), &gone);
    if (status.ok()) status = content_->Rows(context, &left);
    if (status.ok()) content_->row_bound.Set(left);
  }
  evicted_.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  TF_EMBED_RETURN_IF_ERROR(std::move(status));
  // Without memory for a copy, the store stays correct but larger.
  if (num_left + (left + gone) / kRebuildDivisor <= left + gone) (void)Shrink(context);
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::CollectRanks(const ExecContext& context, EvictionOrder order,
                                             size_t one_in, const Rank& low, const Rank& high,
                                             RankList* ranks, size_t* below) const {
  const Reading reading(this, context);
  uint64_t rows = 0;
  TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &rows));
  if (rows == 0) return Status();
  Array<Rank> found(device_, context);
  Array<uint64_t> counters(device_, context);
  // Room for all rows. The number of ranks in the range is only known afterwards.
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
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));  // otherwise garbage would choose rows to evict
  *below += counts[1];
  return ranks->Append(host.data(), counts[0]);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_POLICY_INL_H_
