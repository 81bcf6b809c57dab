// How rows of a DeviceTable come and leave by its policy. The end of device_table_inl.h includes
// it.
#ifndef TF_EMBED_CC_CUDA_DEVICE_TABLE_POLICY_INL_H_
#define TF_EMBED_CC_CUDA_DEVICE_TABLE_POLICY_INL_H_

#include "cc/cuda/device_table_inl.h"

namespace tf_embed {

template <class Device>
Status DeviceTable<Device>::Survey(const ExecContext& context, const KeyBatch& batch,
                                   const GroupsView& groups, const bool* exists, uint32_t* rows,
                                   uint32_t* wanted) {
  const Expiry expiry = ExpiryAt(context);
  const bool expires = expiry.ttl_milliseconds > 0;
  Array<uint64_t> expired(device_, context);
  if (expires) TF_EMBED_RETURN_IF_ERROR(expired.MakeOnes(batch.size));
  device_.Launch(context, batch.size, kFindCost,
                 SurveyKernel{View(), BatchView(batch), groups, exists, expiry, context.now, rows,
                              wanted, expired.data()});
  TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, wanted, batch.size + 1));
  if (!expires) return Status();
  device_.Launch(context, batch.size, kPlaceCost,
                 LeaveKernel{View(), expired.data(), &tallies_->expired});
  device_.Launch(context,
                 std::min<uint64_t>(BucketsToSweep(batch.size), content_->index().num_buckets()),
                 kPlaceCost * DeviceBucket::kLanes,
                 SweepKernel{View(), expiry, wanted + batch.size, &tallies_->expired});
  return Status();
}

template <class Device>
Status DeviceTable<Device>::Choose(const ExecContext& context, const KeyBatch& batch,
                                   const GroupsView& groups, const NewRows& wanted,
                                   uint32_t* coming) {
  const RowPolicy& policy = options_.policy;
  const size_t size = batch.size;
  const uint64_t bound = std::min<uint64_t>(policy.max_rows, wanted.most_rows);
  const Neighbourhoods neighbourhoods{NeighbourhoodBits(bound)};
  const bool by_scores = batch.scores != nullptr && policy.eviction == EvictionOrder::kScore;
  Array<uint64_t> numbers(device_, context), sorted_numbers(device_, context);
  Array<uint32_t> order(device_, context), sorted_order(device_, context);
  Array<uint64_t> victims(device_, context), scores(device_, context);
  TF_EMBED_RETURN_IF_ERROR(numbers.Make(size));
  TF_EMBED_RETURN_IF_ERROR(sorted_numbers.Make(size));
  TF_EMBED_RETURN_IF_ERROR(order.Make(size));
  TF_EMBED_RETURN_IF_ERROR(sorted_order.Make(size));
  TF_EMBED_RETURN_IF_ERROR(victims.MakeOnes(size));
  device_.Launch(context, size, kPlaceCost, NumberKernel{order.data()});
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
  device_.Launch(
      context, size, kPlaceCost,
      NeighbourhoodKernel{batch.keys, wanted.marks, from, neighbourhoods, numbers.data()});
  TF_EMBED_RETURN_IF_ERROR(device_.Sort(context, numbers.data(), from, size,
                                        static_cast<int>(neighbourhoods.bits) + 1,
                                        sorted_numbers.data(), to));
  device_.Launch(context, size, kFindCost,
                 ChooseVictimsKernel{View(), neighbourhoods, sorted_numbers.data(), to, size,
                                     NewRows{wanted.marks, bound}, scores.data(), policy.eviction,
                                     context.now.step, victims.data(), coming});
  TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context, coming, size + 1));
  // Nothing can fail any more.
  device_.Launch(context, size, kPlaceCost,
                 LeaveKernel{View(), victims.data(), &tallies_->evicted});
  return Status();
}

template <class Device>
Status DeviceTable<Device>::FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                           uint64_t* statistics, bool* exists) const {
  const Reading reading(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 FindStatisticsKernel{View(), BatchView(batch), statistics, exists});
  return device_.Check(context);
}

template <class Device>
Status DeviceTable<Device>::AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                             StatisticSet set, const uint64_t* statistics) {
  auto groups = device_.NewGroups();
  TF_EMBED_RETURN_IF_ERROR(device_.Group(context, batch, &groups));
  const Writing writing(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 AssignStatisticsKernel{View(), BatchView(batch), groups.view(), set, statistics});
  return device_.Check(context);
}

template <class Device>
Status DeviceTable<Device>::EvictExpired(const ExecContext& context, size_t* removed) {
  if (options_.policy.ttl_milliseconds == 0) return Status();
  const Writing writing(this, context);
  Array<uint64_t> counter(device_, context);
  TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
  device_.Launch(context, content_->index().num_buckets(), kPlaceCost * DeviceBucket::kLanes,
                 SweepKernel{View(), ExpiryAt(context), nullptr, counter.data()});
  uint64_t gone = 0;
  device_.CopyOut(context, counter.data(), sizeof(gone), &gone);
  content_->most_rows = content_->Rows(context);
  expired_.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  return device_.Check(context);
}

template <class Device>
Status DeviceTable<Device>::EvictBelow(const ExecContext& context, EvictionOrder order,
                                       const Rank& limit, size_t num_left, size_t* removed) {
  uint64_t gone = 0;
  size_t left;
  {
    const Writing writing(this, context);
    Array<uint64_t> counter(device_, context);
    TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
    device_.Launch(context, content_->index().num_places(), kPlaceCost,
                   EvictBelowKernel{View(), order, limit, limit == kHighestRank, counter.data()});
    device_.CopyOut(context, counter.data(), sizeof(gone), &gone);
    left = content_->Rows(context);
    content_->most_rows = left;
  }
  evicted_.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  // Without memory for a copy the table is right, only larger.
  if (num_left + (left + gone) / kMuchOneIn <= left + gone) (void)Shrink(context);
  return device_.Check(context);
}

template <class Device>
Status DeviceTable<Device>::CollectRanks(const ExecContext& context, EvictionOrder order,
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

#endif  // TF_EMBED_CC_CUDA_DEVICE_TABLE_POLICY_INL_H_
