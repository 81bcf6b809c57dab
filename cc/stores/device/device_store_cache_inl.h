// SPDX-License-Identifier: Apache-2.0
// DeviceStore as the cache of a store over several tiers. The end of device_store_inl.h includes
// it.
//
// Keys, flags and marks of a batch are in device memory, as for every verb. Promoted rows, dropped
// keys and the plan's input are in host memory, as is the lower tier.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_CACHE_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_CACHE_INL_H_

#include <algorithm>
#include <atomic>

#include "cc/core/base/hash.h"
#include "cc/stores/device/cache_kernels.h"
#include "cc/stores/device/device_store_inl.h"

namespace tf_embed {

// Scratch memory of the verbs that can't fail. It is allocated when the store is made.
template <class Device>
struct DeviceStoreImpl<Device>::CacheScratch {
  static constexpr size_t kDropped = 4096;
  static constexpr size_t kLookedUp = 32;

  // For Drop, which removes this many rows at a time.
  int64_t keys[kDropped];
  uint64_t places[kDropped];
  // For Planned::Find.
  uint64_t statistics[kLookedUp * StatisticSet::kMax];
  int64_t wanted[kLookedUp];
  bool exists[kLookedUp];
};

// The rows as a planner on the host sees them: copies of the statistics of a few keys at a time.
template <class Device>
class DeviceStoreImpl<Device>::Planned final : public PlannedRows {
 public:
  explicit Planned(DeviceStoreImpl* store) : store_(store) {}

  size_t size() const override { return store_->num_rows(); }
  // Looked up together with the next key that Find has not copied yet.
  void Prefetch(uint64_t hash) const override {
    // A place stays free for the key of the Find that triggers the lookup. HashKey is a bijection,
    // so the hash gives the key.
    if (num_ahead_ < kMost - 1) ahead_[num_ahead_++] = KeyOfHash(hash);
  }
  Status Find(int64_t key, uint64_t hash, RowStatistics::Word** words) const override;
  Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                      const Rank& low, const Rank& high, RankList* ranks,
                      size_t* below) const override {
    return store_->CollectRanks(context, order, one_in, low, high, ranks, below);
  }
  Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) override;
  Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) override {
    store_->Drop(ExecContext::Serial(), keys, count);
    counter->fetch_add(count, std::memory_order_relaxed);
    return Status();
  }

 private:
  static constexpr size_t kMost = CacheScratch::kLookedUp;

  Status LookUp() const;

  DeviceStoreImpl* const store_;
  uint64_t next_bucket_ = 0;  // the search for expired rows continues here
  mutable int64_t ahead_[kMost];
  mutable size_t num_ahead_ = 0;
  // The last lookup, and the version of the store at that moment.
  mutable int64_t keys_[kMost];
  mutable bool exists_[kMost];
  mutable uint64_t statistics_[kMost * StatisticSet::kMax];
  mutable size_t num_keys_ = 0;
  mutable uint64_t version_ = 0;
  mutable RowStatistics::Word words_[StatisticSet::kMax];
};

template <class Device>
Status DeviceStoreImpl<Device>::Planned::LookUp() const {
  const ExecContext context = ExecContext::Serial();
  const Device& device = store_->device_;
  const size_t words = store_->options_.policy.statistics.size();
  const size_t size = num_ahead_;
  // Cleared first: if the lookup fails, no stale copy must remain.
  num_ahead_ = num_keys_ = 0;
  CacheScratch* const scratch = store_->scratch_;
  device.CopyIn(context, ahead_, size * sizeof(int64_t), scratch->wanted);
  TF_EMBED_RETURN_IF_ERROR(store_->FindStatistics(context, KeyBatch{scratch->wanted, size},
                                                  scratch->statistics, scratch->exists));
  device.CopyOut(context, scratch->exists, size * sizeof(bool), exists_);
  device.CopyOut(context, scratch->statistics, size * words * sizeof(uint64_t), statistics_);
  TF_EMBED_RETURN_IF_ERROR(device.Check(context));
  std::copy_n(ahead_, size, keys_);
  num_keys_ = size;
  return Status();
}

template <class Device>
Status DeviceStoreImpl<Device>::Planned::Find(int64_t key, uint64_t,
                                              RowStatistics::Word** words) const {
  *words = nullptr;
  // A write since the last lookup may have changed or erased any of these rows.
  const uint64_t version = store_->versions_.load(std::memory_order_relaxed);
  if (version != version_) num_keys_ = 0;
  version_ = version;
  size_t place = std::find(keys_, keys_ + num_keys_, key) - keys_;
  if (place == num_keys_) {
    place = num_ahead_;
    ahead_[num_ahead_++] = key;
    TF_EMBED_RETURN_IF_ERROR(LookUp());
  }
  // The planner gets a copy: it only reads ranks, and NoteUses writes uses on the device.
  if (!exists_[place]) return Status();
  const size_t size = store_->options_.policy.statistics.size();
  for (size_t i = 0; i < size; ++i) {
    words_[i].store(statistics_[place * size + i], std::memory_order_relaxed);
  }
  *words = words_;
  return Status();
}

template <class Device>
Status DeviceStoreImpl<Device>::Planned::FindExpired(const Moment& now, size_t num_absent,
                                                     RankList* expired) {
  const RowPolicy& policy = store_->options_.policy;
  const uint64_t buckets = store_->content_->index().num_buckets();
  if (policy.ttl_milliseconds == 0 || buckets == 0) return Status();
  const ExecContext context = ExecContext::Serial();
  const Reading reading(store_, context);
  const uint64_t searched = std::min(BucketsToSweep(num_absent), buckets);
  const FindExpiredKernel find{store_->View(), Expiry{policy.ttl_milliseconds, now.milliseconds},
                               next_bucket_, FoundRanks()};
  // Advanced before the search. If it fails, these buckets are merely searched one round later.
  next_bucket_ = (next_bucket_ + searched) & (buckets - 1);
  return store_->CollectFound(context, searched, kPlaceCost * DeviceBucket::kLanes, find, expired);
}

template <class Device>
template <class Kernel>
Status DeviceStoreImpl<Device>::CollectFound(const ExecContext& context, size_t count, size_t cost,
                                             Kernel kernel, RankList* ranks) const {
  Array<uint64_t> counters(device_, context);
  Array<Rank> found(device_, context);
  TF_EMBED_RETURN_IF_ERROR(counters.MakeZeros(2));
  // Without room for ranks, this launch only counts.
  kernel.found.count = counters.data();
  device_.Launch(context, count, cost, kernel);
  uint64_t size = 0;
  device_.CopyOut(context, counters.data(), sizeof(size), &size);
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  if (size == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(found.Make(size));
  // A second counter, so that the first need not be reset between the launches.
  kernel.found = FoundRanks{found.data(), size, counters.data() + 1};
  device_.Launch(context, count, cost, kernel);
  // Rows may have been used since they were counted.
  uint64_t collected = 0;
  device_.CopyOut(context, counters.data() + 1, sizeof(collected), &collected);
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  collected = std::min(collected, size);
  Buffer<Rank> host(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(host.Resize(collected));
  device_.CopyOut(context, found.data(), collected * sizeof(Rank), host.data());
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  return ranks->Append(host.data(), collected);
}

template <class Device>
size_t DeviceStoreImpl<Device>::num_rows() const {
  const int64_t known = known_rows_.load(std::memory_order_relaxed);
  if (known != kUnknown) return static_cast<size_t>(known);
  const ExecContext context = ExecContext::Serial();
  const Reading reading(this, context);
  uint64_t rows = 0;
  // If the read fails, nothing is remembered, so the next call reads again.
  if (!content_->Rows(context, &rows).ok()) return last_rows_.load(std::memory_order_relaxed);
  last_rows_.store(rows, std::memory_order_relaxed);
  // Still under the shared lock. A writer that resets the number runs later, so no stale number
  // stays.
  known_rows_.store(static_cast<int64_t>(rows), std::memory_order_relaxed);
  return rows;
}

template <class Device>
Status DeviceStoreImpl<Device>::Touch(const ExecContext& context, const KeyBatch& batch,
                                      bool* exists) const {
  const Reading reading(this, context);
  device_.Launch(context, batch.size, kFindCost, TouchKernel{View(), BatchView(batch), exists});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::SetChanged(const ExecContext& context, const KeyBatch& batch,
                                           bool changed) const {
  const Reading reading(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 SetChangedKernel{View(), BatchView(batch), changed});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::FindMarks(const ExecContext& context, const KeyBatch& batch,
                                          uint8_t* marks, bool* exists) const {
  const Reading reading(this, context);
  device_.Launch(context, batch.size, kFindCost,
                 FindMarksKernel{View(), BatchView(batch), marks, exists});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::NoteUses(const ExecContext& context, const KeyBatch& batch,
                                         Found* found) {
  const Reading reading(this, context);
  TF_EMBED_RETURN_IF_ERROR(GiveBefore(context, batch.keys, batch.size));
  // A shared lock suffices, because the words are atomics on the device. But copies of them are
  // stale now.
  ForgetStatistics();
  device_.Launch(context, batch.size, kFindCost,
                 NoteUsesKernel{View(), BatchView(batch), ExpiryAt(context), context.now, found});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::CollectAges(const ExecContext& context, size_t one_in,
                                            uint8_t least_age, RankList* ranks) const {
  const Reading reading(this, context);
  return CollectFound(context, content_->index().num_places(), kPlaceCost,
                      CollectAgesKernel{View(), one_in, least_age, FoundRanks()}, ranks);
}

template <class Device>
Status DeviceStoreImpl<Device>::AddUnchanged(const ExecContext& context, const WholeRows& rows) {
  if (rows.size == 0) return Status();
  const Writing writing(this, context, /*keeps_keys=*/true);
  TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(rows.size));
  const uint32_t size = static_cast<uint32_t>(rows.size);
  WholeRowArrays<Device> arrays(device_, context);
  TF_EMBED_RETURN_IF_ERROR(arrays.CopyIn(rows, content_->layout()));
  bool all = false;
  if (!HasRoom(context, size, &all) || !all) {
    // All keys are new; MakeRoom reads this number like the total of any write.
    Array<uint32_t> coming(device_, context);
    TF_EMBED_RETURN_IF_ERROR(coming.Make(1));
    device_.CopyIn(context, &size, sizeof(size), coming.data());
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, size, coming.data(), &all));
  }
  // The store over the cache bounds it, so a lack of room here means a lack of memory.
  if (!all) return NoMemory(context);
  const StoreView store = View();
  device_.Launch(context, size, kRowCost, AddRowsKernel{store, arrays.view()});
  device_.Launch(context, 1, 0, CommitAddedKernel{store.counts, size});
  Status status = Launched(context, size);
  const int64_t known = known_rows_.load(std::memory_order_relaxed);
  if (known != kUnknown) {
    // Keep the number known: the next call for room asks for it, and would have to wait for the
    // device.
    known_rows_.store(status.ok() ? known + size : kUnknown, std::memory_order_relaxed);
  }
  return status;
}

template <class Device>
void DeviceStoreImpl<Device>::Drop(const ExecContext& context, const int64_t* keys, size_t count) {
  if (count == 0) return;
  const Writing writing(this, context);
  // The scratch memory is reused at once: launches of a stream run in order, and CopyIn is queued
  // after them.
  for (size_t first = 0; first < count; first += CacheScratch::kDropped) {
    const size_t size = std::min(CacheScratch::kDropped, count - first);
    device_.CopyIn(context, keys + first, size * sizeof(int64_t), scratch_->keys);
    device_.Launch(context, size, kFindCost,
                   FindPlacesKernel{content_->index(), scratch_->keys, scratch_->places});
    LaunchLanes(device_, context, size, kPlaceCost, DropKernel{View(), scratch_->places, size});
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_CACHE_INL_H_
