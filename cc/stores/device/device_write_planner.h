// SPDX-License-Identifier: Apache-2.0
// Plans a write of a DeviceStore whose policy bounds, admits or expires rows, and removes rows that
// leave: the counterpart of WritePlanner on the host. Kernels make the decisions
// (policy_kernels.h).
//
// For one verb, which has exclusive access:
//   1. Survey looks up the distinct keys, notes uses, removes expired rows, asks the admission,
//      and marks the keys that want rows.
//   2. Choose, if there may not be room for all of them, marks the keys that get rows, and removes
//      the rows that leave for them.
//   3. ForgetAdmitted tells the admission which keys get rows.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_WRITE_PLANNER_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_WRITE_PLANNER_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cc/core/policy/write_planner.h"
#include "cc/core/store/change_log.h"
#include "cc/stores/device/device_changes.h"
#include "cc/stores/device/device_content.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/policy_kernels.h"
#include "cc/stores/device/table_kernels.h"
#include "cc/stores/device/victim_kernels.h"

namespace tf_embed {

template <class Device>
class DeviceWritePlanner {
 public:
  using Content = DeviceContent<Device>;

  // `tallies` are in device memory; `held_back` counts keys that were not admitted; `changes` may
  // be null. All arguments outlive the planner.
  DeviceWritePlanner(const ExecContext& context, const Device& device, const RowPolicy& policy,
                     Allocator* allocator, Content* content, StoreTallies* tallies,
                     std::atomic<uint64_t>* held_back, ChangeLog* changes)
      : context_(context),
        device_(device),
        policy_(policy),
        allocator_(allocator),
        content_(*content),
        tallies_(tallies),
        held_back_(held_back),
        changes_(changes),
        candidates_(allocator) {}

  // Looks up the groups, as SurveyKernel does, removes expired rows, asks the admission, and turns
  // `wanted` [batch size + 1] into a running sum of marks.
  Status Survey(const KeyBatch& batch, const GroupsView& groups, const bool* exists, Admits admits,
                uint32_t* rows, uint32_t* wanted);

  // Allocates the memory that ForgetAdmitted needs. Called before Choose: once rows have left,
  // nothing may fail.
  Status ReserveCandidates(size_t size) { return candidates_.Resize(size); }

  // Marks in `coming` the keys that get rows, among the keys that want rows, and turns it into a
  // running sum. Removes the rows that leave for them.
  Status Choose(const KeyBatch& batch, const GroupsView& groups, const NewRows& wanted,
                uint32_t* coming);

  // Tells the admission which keys get rows. Waits for the device.
  Status ForgetAdmitted(const KeyBatch& batch, const NewRows& coming);

  // Tells the sink, which may be null, and the log of changes that the rows at `places` [count], of
  // which some are kNoPlace, are about to leave. If it fails, they stay. Waits for the device.
  Status Tell(const uint64_t* places, size_t count, EvictionSink* sink);

  // Removes all rows that `kernel` finds in the buckets from kernel.first on, and counts them in
  // `left`, in device memory. Waits for the device if the host must be told of them.
  template <class Kernel>
  Status EvictFound(Kernel kernel, uint64_t* left);

 private:
  template <typename T>
  using Array = DeviceArray<Device, T>;

  // Rough costs in nanoseconds, used to split work over threads.
  static constexpr size_t kFindCost = 80;
  static constexpr size_t kPlaceCost = 5;
  // Buckets searched at a time for rows that the host is told of.
  static constexpr uint64_t kBucketsTogether = uint64_t{1} << 14;

  // Keys of a batch on the host, and marks by number of the key.
  struct AdmissionCandidates {
    explicit AdmissionCandidates(Allocator* allocator) : keys(allocator), marks(allocator) {}
    Buffer<int64_t> keys;
    Buffer<uint32_t> marks;

    Status Resize(size_t size) {
      TF_EMBED_RETURN_IF_ERROR(keys.Resize(size));
      return marks.Resize(size + 1);
    }
  };

  StoreView View() const {
    StoreView view = content_.View(policy_.statistics);
    view.eviction = policy_.eviction;
    view.tallies = tallies_;
    return view;
  }
  Expiry ExpiryAt() const { return Expiry{policy_.ttl_milliseconds, context_.now.milliseconds}; }
  // Removes the marks of keys that are not admitted. Waits for the device.
  Status Admit(const KeyBatch& batch, Admits admits, uint32_t* wanted);
  // Removes the rows at `places` [count], of which some are kNoPlace, and counts them in `left`.
  Status Evict(const uint64_t* places, size_t count, uint64_t* left);
  // Whether the host is told of rows before they leave.
  bool tells() const { return policy_.sink != nullptr || changes_ != nullptr; }

  const ExecContext& context_;
  const Device& device_;
  const RowPolicy& policy_;
  Allocator* const allocator_;
  Content& content_;
  StoreTallies* const tallies_;
  std::atomic<uint64_t>* const held_back_;
  ChangeLog* const changes_;
  AdmissionCandidates candidates_;
};

template <class Device>
Status DeviceWritePlanner<Device>::Survey(const KeyBatch& batch, const GroupsView& groups,
                                          const bool* exists, Admits admits, uint32_t* rows,
                                          uint32_t* wanted) {
  const Expiry expiry = ExpiryAt();
  const bool expires = expiry.ttl_milliseconds > 0;
  Array<uint64_t> expired(device_, context_);
  // All bits set is kNoPlace.
  if (expires) TF_EMBED_RETURN_IF_ERROR(expired.MakeOnes(batch.size));
  device_.Launch(context_, batch.size, kFindCost,
                 SurveyKernel{View(), BatchView(batch), groups, exists, expiry, context_.now, rows,
                              wanted, expired.data()});
  if (expires) {
    TF_EMBED_RETURN_IF_ERROR(Evict(expired.data(), batch.size, &tallies_->expired));
  }
  if (policy_.admission != nullptr && admits != Admits::kAll) {
    TF_EMBED_RETURN_IF_ERROR(Admit(batch, admits, wanted));
  }
  TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context_, wanted, batch.size + 1));
  if (!expires) return Status();
  // After the lookup of the batch, so that its expired rows are already gone and are counted once.
  SweepKernel sweep{View(), expiry, wanted + batch.size};
  sweep.end = std::min<uint64_t>(BucketsToSweep(batch.size), content_.index().num_buckets());
  return EvictFound(sweep, &tallies_->expired);
}

template <class Device>
Status DeviceWritePlanner<Device>::Admit(const KeyBatch& batch, Admits admits, uint32_t* wanted) {
  Admission* const admission = policy_.admission.get();
  Buffer<bool> admitted(allocator_);
  TF_EMBED_RETURN_IF_ERROR(candidates_.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(admitted.Resize(batch.size));
  Buffer<uint32_t>& marks = candidates_.marks;
  Buffer<int64_t>& keys = candidates_.keys;
  // Admission is on the host, and counts in batch order. So it admits the same keys as for a store
  // on the host.
  device_.CopyOut(context_, wanted, batch.size * sizeof(uint32_t), marks.data());
  device_.CopyOut(context_, batch.keys, batch.size * sizeof(int64_t), keys.data());
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context_));
  size_t asked = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    if (marks[i] != 0) keys[asked++] = keys[i];
  }
  if (admits == Admits::kPeeked) {
    // The Apply of the same step counts the keys.
    admission->Peek(keys.data(), asked, admitted.data());
  } else {
    TF_EMBED_RETURN_IF_ERROR(admission->Count(keys.data(), asked, admitted.data()));
    const auto held_back = std::count(admitted.data(), admitted.data() + asked, false);
    held_back_->fetch_add(static_cast<uint64_t>(held_back), std::memory_order_relaxed);
  }
  asked = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    // `asked` counts from 0 again: the answers are in the order of the questions.
    if (marks[i] != 0) marks[i] = admitted[asked++] ? 1 : 0;
  }
  device_.CopyIn(context_, marks.data(), batch.size * sizeof(uint32_t), wanted);
  return Status();
}

template <class Device>
Status DeviceWritePlanner<Device>::ForgetAdmitted(const KeyBatch& batch, const NewRows& coming) {
  uint32_t count = 0;
  device_.CopyOut(context_, coming.marks + batch.size, sizeof(count), &count);
  if (count == 0) return device_.Check(context_);
  Buffer<uint32_t>& marks = candidates_.marks;
  Buffer<int64_t>& keys = candidates_.keys;
  device_.CopyOut(context_, coming.marks, (batch.size + 1) * sizeof(uint32_t), marks.data());
  device_.CopyOut(context_, batch.keys, batch.size * sizeof(int64_t), keys.data());
  uint64_t rows = 0;
  TF_EMBED_RETURN_IF_ERROR(content_.Rows(context_, &rows));  // also waits for the copies above
  // The same test as in WriteKernel, on the same numbers: victims have left, and no row was added
  // yet.
  const uint64_t room = coming.most_rows - std::min(rows, coming.most_rows);
  size_t came = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    if (marks[i + 1] != marks[i] && marks[i] < room) keys[came++] = keys[i];
  }
  policy_.admission->Forget(keys.data(), came);
  return Status();
}

template <class Device>
Status DeviceWritePlanner<Device>::Evict(const uint64_t* places, size_t count, uint64_t* left) {
  if (tells()) TF_EMBED_RETURN_IF_ERROR(Tell(places, count, policy_.sink));
  LaunchLanes(device_, context_, count, kPlaceCost, EraseRowsKernel{View(), places, count, left});
  return Status();
}

template <class Device>
Status DeviceWritePlanner<Device>::Tell(const uint64_t* places, size_t count, EvictionSink* sink) {
  const auto mark = [&](uint32_t* marks) {
    LaunchLanes(device_, context_, count, kPlaceCost, MarkPlacesKernel{places, count, marks});
  };
  StoreView copied = View();
  if (sink == nullptr) {  // keys are enough
    copied.layout.weight_bytes = copied.layout.slot_bytes = copied.layout.statistics = 0;
  }
  WholeRows rows(allocator_);
  TF_EMBED_RETURN_IF_ERROR(CopyRowsAt(device_, context_, copied, places, count, mark, &rows));
  if (rows.size == 0) return Status();
  if (changes_ != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(
        GiveWanted(device_, context_, View(), places, count, allocator_, changes_));
  }
  // If the sink has no memory, the rows stay and the verb fails.
  if (sink != nullptr) TF_EMBED_RETURN_IF_ERROR(sink->Evict(rows, content_.rule));
  // From here on nothing fails, so these keys leave.
  for (size_t i = 0; changes_ != nullptr && i < rows.size; ++i) changes_->NoteLeft(rows.keys[i]);
  return Status();
}

template <class Device>
template <class Kernel>
Status DeviceWritePlanner<Device>::EvictFound(Kernel kernel, uint64_t* left) {
  const uint64_t end = kernel.end;
  if (!tells()) {
    kernel.left = left;
    device_.Launch(context_, end, kPlaceCost * DeviceBucket::kLanes, kernel);
    return Status();
  }
  // In parts, because the copies of the rows that leave are in memory at once.
  for (uint64_t first = 0; first < end; first += kBucketsTogether) {
    const size_t buckets = std::min<uint64_t>(kBucketsTogether, end - first);
    Array<uint64_t> places(device_, context_);
    TF_EMBED_RETURN_IF_ERROR(places.MakeOnes(buckets * DeviceBucket::kLanes));
    kernel.first = first;
    kernel.places = places.data();
    device_.Launch(context_, buckets, kPlaceCost * DeviceBucket::kLanes, kernel);
    TF_EMBED_RETURN_IF_ERROR(Evict(places.data(), buckets * DeviceBucket::kLanes, left));
  }
  return Status();
}

template <class Device>
Status DeviceWritePlanner<Device>::Choose(const KeyBatch& batch, const GroupsView& groups,
                                          const NewRows& wanted, uint32_t* coming) {
  const size_t size = batch.size;
  // If memory ends before max_rows, the store evicts at the number that fits.
  const uint64_t bound = std::min<uint64_t>(policy_.max_rows, wanted.most_rows);
  const EvictionSets eviction_sets{EvictionSetBits(bound)};
  const bool by_scores = batch.scores != nullptr && policy_.eviction == EvictionOrder::kScore;
  Array<uint64_t> numbers(device_, context_), sorted_numbers(device_, context_);
  Array<uint32_t> order(device_, context_), sorted_order(device_, context_);
  Array<uint64_t> victims(device_, context_), scores(device_, context_);
  Array<uint64_t> num_firsts(device_, context_);
  TF_EMBED_RETURN_IF_ERROR(numbers.Make(size));
  TF_EMBED_RETURN_IF_ERROR(sorted_numbers.Make(size));
  TF_EMBED_RETURN_IF_ERROR(order.Make(size));
  TF_EMBED_RETURN_IF_ERROR(sorted_order.Make(size));
  TF_EMBED_RETURN_IF_ERROR(victims.MakeOnes(size));
  TF_EMBED_RETURN_IF_ERROR(num_firsts.MakeZeros(1));
  LaunchLanes(device_, context_, size, kPlaceCost, FillIndicesKernel{order.data(), size});
  uint32_t* from = order.data();
  uint32_t* to = sorted_order.data();
  if (by_scores) {
    TF_EMBED_RETURN_IF_ERROR(scores.Make(size));
    // Later members of a group have no score: they sort to the end.
    device_.Fill(context_, numbers.data(), 0xff, size * sizeof(uint64_t));
    LaunchLanes(device_, context_, size, kPlaceCost,
                ScoreKernel{BatchView(batch), groups, scores.data(), numbers.data()});
    TF_EMBED_RETURN_IF_ERROR(
        device_.Sort(context_, numbers.data(), from, size, 64, sorted_numbers.data(), to));
    std::swap(from, to);
  }
  LaunchLanes(
      device_, context_, size, kPlaceCost,
      EvictionSetKernel{batch.keys, wanted.marks, from, size, eviction_sets, numbers.data()});
  // The sort is stable, so an eviction set keeps the order of the batch, or of scores. There is one
  // more bit than set numbers have, for keys that are not inserted.
  TF_EMBED_RETURN_IF_ERROR(device_.Sort(context_, numbers.data(), from, size,
                                        static_cast<int>(eviction_sets.bits) + 1,
                                        sorted_numbers.data(), to));
  uint32_t* const firsts = from;  // no longer in use
  LaunchLanes(
      device_, context_, size, kPlaceCost,
      FirstCandidatesKernel{sorted_numbers.data(), size, eviction_sets, firsts, num_firsts.data()});
  device_.Launch(context_, size, kFindCost,
                 ChooseVictimsKernel{View(), eviction_sets, firsts, num_firsts.data(),
                                     sorted_numbers.data(), to, size, NewRows{wanted.marks, bound},
                                     scores.data(), context_.now.step, victims.data(), coming});
  Status status = device_.RunningSum(context_, coming, size + 1);
  // Only what tells the host can fail now.
  if (status.ok()) status = Evict(victims.data(), size, &tallies_->evicted);
  if (!status.ok()) {
    // The victims stay, but the priorities of their buckets no longer include them.
    LaunchLanes(device_, context_, size, kPlaceCost,
                ForgetRanksKernel{content_.index(), victims.data(), size});
  }
  return status;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_WRITE_PLANNER_H_
