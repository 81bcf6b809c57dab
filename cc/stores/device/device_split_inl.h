// SPDX-License-Identifier: Apache-2.0
// DeviceSplit on a device: a stable sort of the batch's positions by shard, which makes the result
// independent of the order of tiles.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_INL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/table/shard_split.h"
#include "cc/stores/device/device_content.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

// For as many keys as a tile has lanes: writes the shard and the number of each key.
struct OwnerKernel {
  const int64_t* keys;
  const int32_t* owners;  // null: DefaultShard
  uint64_t size;
  uint64_t num_shards;
  bool unsigned_keys;
  uint64_t* shards;
  uint32_t* places;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number >= size) return;
    shards[number] = owners != nullptr ? static_cast<uint64_t>(owners[number])
                                       : DefaultShard(keys[number], num_shards, unsigned_keys);
    places[number] = static_cast<uint32_t>(number);
  }
};

// For as many sorted places as a tile has lanes: gathers the keys. The first place of a shard also
// writes the start of the shard, and of the shards without keys before it.
struct SpreadKernel {
  const int64_t* keys;
  const uint64_t* shards;
  const uint32_t* positions;
  uint64_t size;
  uint64_t num_shards;
  int64_t* spread;
  uint32_t* begins;  // [num_shards + 1]; the last is the end

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number >= size) return;
    spread[number] = keys[positions[number]];
    const uint64_t shard = shards[number];
    for (uint64_t s = number == 0 ? 0 : shards[number - 1] + 1; s <= shard; ++s) {
      begins[s] = static_cast<uint32_t>(number);
    }
    if (number + 1 < size) return;
    for (uint64_t s = shard + 1; s <= num_shards; ++s) begins[s] = static_cast<uint32_t>(size);
  }
};

// Checks that owners [size], in host memory, are shards. Accepts null.
template <class Device>
Status CheckOwnersOn(const Device& device, const ExecContext& context, const int64_t* keys,
                     size_t size, const int32_t* owners, size_t num_shards) {
  const size_t wrong = FirstWrongOwner(owners, size, num_shards);
  if (wrong == size) return Status();
  int64_t key;
  device.CopyOut(context, keys + wrong, sizeof(key), &key);
  return WrongOwner(owners[wrong], key, num_shards);
}

template <class Device>
class DeviceSplitOn final : public DeviceSplit {
 public:
  DeviceSplitOn(const Device& device, Allocator* host)
      : device_(device), keys_(device_, context_), positions_(device_, context_), begins_(host) {}

  Status Build(const ExecContext& context, const int64_t* keys, size_t size, const int32_t* owners,
               size_t num_shards, bool unsigned_keys) override {
    TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(size));
    const typename Device::Current current(device_);
    context_ = context;
    TF_EMBED_RETURN_IF_ERROR(CheckOwnersOn(device_, context_, keys, size, owners, num_shards));
    whole_.keys = keys;
    whole_.size = size;
    num_shards_ = num_shards;
    if (num_shards == 1 || size == 0) return Status();

    Array<int32_t> given(device_, context_);
    Array<uint64_t> shards(device_, context_), sorted_shards(device_, context_);
    Array<uint32_t> places(device_, context_), begins(device_, context_);
    if (owners != nullptr) {
      TF_EMBED_RETURN_IF_ERROR(given.Make(size));
      device_.CopyIn(context_, owners, size * sizeof(int32_t), given.data());
    }
    TF_EMBED_RETURN_IF_ERROR(shards.Make(size));
    TF_EMBED_RETURN_IF_ERROR(sorted_shards.Make(size));
    TF_EMBED_RETURN_IF_ERROR(places.Make(size));
    TF_EMBED_RETURN_IF_ERROR(begins.Make(num_shards + 1));
    TF_EMBED_RETURN_IF_ERROR(keys_.Make(size));
    TF_EMBED_RETURN_IF_ERROR(positions_.Make(size));
    TF_EMBED_RETURN_IF_ERROR(begins_.Resize(num_shards + 1));
    constexpr size_t kTogether = Device::Tile::kLanes;
    const size_t tiles = (size + kTogether - 1) / kTogether;
    device_.Launch(context_, tiles, kKeyCost * kTogether,
                   OwnerKernel{keys, given.data(), size, num_shards, unsigned_keys, shards.data(),
                               places.data()});
    int bits = 1;
    // A radix sort takes a pass for each few bits, so it sorts only by the bits of shard numbers.
    while (num_shards > size_t{1} << bits) ++bits;
    TF_EMBED_RETURN_IF_ERROR(device_.Sort(context_, shards.data(), places.data(), size, bits,
                                          sorted_shards.data(), positions_.data()));
    device_.Launch(context_, tiles, kKeyCost * kTogether,
                   SpreadKernel{keys, sorted_shards.data(), positions_.data(), size, num_shards,
                                keys_.data(), begins.data()});
    // The only wait of an op on several shards: the verbs need the sizes of their batches.
    device_.CopyOut(context_, begins.data(), (num_shards + 1) * sizeof(uint32_t), begins_.data());
    return device_.Check(context_);
  }

  KeyBatch shard(size_t number) const override {
    if (num_shards_ == 1 || whole_.size == 0) return whole_;
    KeyBatch batch;
    batch.keys = keys_.data() + begins_[number];
    batch.size = begins_[number + 1] - begins_[number];
    batch.positions = positions_.data() + begins_[number];
    return batch;
  }

 private:
  template <typename T>
  using Array = DeviceArray<Device, T>;
  static constexpr size_t kKeyCost = 5;  // nanoseconds, for splitting work over threads

  const Device device_;
  ExecContext context_ = ExecContext::Serial();
  KeyBatch whole_;
  size_t num_shards_ = 1;
  Array<int64_t> keys_;
  Array<uint32_t> positions_;
  Buffer<uint32_t> begins_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_SPLIT_INL_H_
