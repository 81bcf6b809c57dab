// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a batch in device memory, and their positions.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_GROUPS_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_GROUPS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/process_salt.h"
#include "cc/core/base/status.h"
#include "cc/core/store/store.h"
#include "cc/stores/device/device_content.h"
#include "cc/stores/device/group_kernels.h"

namespace tf_embed {

template <class Device>
class DeviceGroups {
 public:
  enum class Members : uint8_t {
    kAll,
    kFirst,  // a group knows the first of its members and their count
  };

  DeviceGroups(const Device& device, const ExecContext& context)
      : device_(device), context_(context), memory_(device, context) {}

  // Called once. The host does not wait, and learns nothing of the groups.
  Status Build(const KeyBatch& batch, Members known = Members::kAll) {
    TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(batch.size));
    if (batch.size == 0) return Status();
    const size_t n = batch.size;
    const size_t num_places = NumPlaces(n);
    // A single allocation for all arrays, in falling order of alignment.
    const bool all = known == Members::kAll;
    const size_t numbers = all ? 4 * n + n / 2 + n / kFrequentCount : n;
    const size_t bytes = num_places * sizeof(ClaimedPlace) + sizeof(BatchCounters) +
                         n * sizeof(DeviceGroup) + numbers * sizeof(uint32_t);
    TF_EMBED_RETURN_IF_ERROR(
        memory_.Make((bytes + sizeof(ClaimedPlace) - 1) / sizeof(ClaimedPlace)));
    auto* const places = memory_.data();
    auto* const counters = reinterpret_cast<BatchCounters*>(places + num_places);
    GroupsInProgress made{batch.keys, n, places};
    made.counters = counters;
    made.groups = reinterpret_cast<DeviceGroup*>(counters + 1);
    made.numbers = reinterpret_cast<uint32_t*>(made.groups + n);
    uint32_t* const ranks = all ? made.numbers + n : nullptr;
    if (all) {
      made.ranks = ranks;
      made.members = ranks + n;
      made.unordered = made.members + n;
      made.repeated = made.unordered + n;
      made.frequent = made.repeated + n / 2;
    }
    view_ = GroupsView{made.groups, n, made.numbers, made.repeated, made.frequent, counters};
    device_.Fill(context_, places, 0, num_places * sizeof(ClaimedPlace) + sizeof(BatchCounters));
    LaunchLanes(
        device_, context_, n, kKeyCost,
        ClaimKernel{batch.keys, n, ProcessSalt(), places, num_places - 1, made.numbers, ranks});
    LaunchLanes(device_, context_, n, kKeyCost, MakeGroupsKernel{made});
    if (all) {
      LaunchLanes(device_, context_, n, kKeyCost, ScatterKernel{made});
      LaunchBlocks(device_, context_, n / 2, kKeyCost, OrderKernel{made});
    }
    return device_.Check(context_);
  }

  const GroupsView& view() const { return view_; }

 private:
  static constexpr size_t kKeyCost = 10;  // nanoseconds, to split work over threads
  static constexpr size_t kUsualSize = size_t{1} << 18;

  // A power of two, so a mask finds the place. The search of a tile takes as long as its longest,
  // so there are more places while they are few.
  static size_t NumPlaces(size_t n) {
    const size_t least = n <= kUsualSize ? 3 * n : n + n / 2;
    size_t places = 2;
    while (places < least && places < size_t{1} << 32) places *= 2;  // a place has 32 bits
    return places;
  }

  const Device& device_;
  const ExecContext& context_;
  DeviceArray<Device, ClaimedPlace> memory_;
  GroupsView view_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_GROUPS_H_
