// SPDX-License-Identifier: Apache-2.0
// Batches whose keys are declared distinct (KeyBatch::distinct). Each key is a group, without a
// sort. But nothing may rely on the declaration: a device would handle equal keys at the same time,
// and make two rows of an absent key. So each key claims a place in an array of the batch, which
// detects equal keys. The keys that are too late are handled after all other keys, one after
// another.
#ifndef TF_EMBED_CC_STORES_DEVICE_DISTINCT_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_DISTINCT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

// For as many keys of a batch as a tile has lanes: makes each a group, which has no member if an
// equal key has claimed the place before.
struct ClaimKernel {
  const int64_t* keys;
  uint64_t size;
  uint64_t salt;     // keeps chosen keys from making it slow
  uint64_t* claims;  // [mask + 1, zeros]: half a hash, and 1 + the key's number
  uint64_t mask;     // + 1 = claims: a power of two, at least twice the keys
  DeviceGroup* groups;
  uint32_t* members;
  uint32_t* num_groups;
  uint32_t* late;      // numbers of keys that are too late
  uint64_t* num_late;  // initially 0

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    // All keys are groups; a late key's group has no member.
    if (number == 0) *num_groups = static_cast<uint32_t>(size);
    if (number >= size) return;
    const int64_t key = keys[number];
    const uint64_t hash = Mix64(static_cast<uint64_t>(key) ^ salt);
    // A claim of 0 is free, hence the 1. CheckBatchSize keeps the number within 32 bits.
    const uint64_t mine = (hash & kTag) | (number + 1);
    uint64_t place = hash & mask;
    bool first = false;
    for (;;) {
      uint64_t there = 0;
      first = Tile::CompareExchange(&claims[place], &there, mine);
      // Half a hash in the claim saves the load of the other key in nearly all collisions.
      if (first || (((there ^ mine) & kTag) == 0 && keys[(there & ~kTag) - 1] == key)) break;
      // Ends, because at least half of the claims stay free.
      place = (place + 1) & mask;
    }
    members[number] = static_cast<uint32_t>(number);
    groups[number] = DeviceGroup{key, members + number, first ? 1u : 0u};
    // Which of several equal keys is first depends on the order of tiles. This is allowed only for
    // keys declared distinct.
    if (!first) late[Tile::Add(num_late, 1)] = static_cast<uint32_t>(number);
  }

 private:
  static constexpr uint64_t kTag = ~uint64_t{0xffffffff};
};

// Handles the keys that are too late, whose rows exist or were refused by now. Runs on a single
// tile, after WriteKernel or the kernels that replace it.
template <class Verb>
struct DuplicateKeysKernel {
  WriteKernel<Verb> write;
  const uint32_t* late;
  const uint64_t* num_late;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t) const {
    // A single tile handles one key after another. Two late positions may have the same key, hence
    // the Sync at the end.
    for (uint64_t i = 0; i < *num_late; ++i) {
      DeviceGroup group = write.groups.groups[late[i]];
      // Was 0, so that WriteKernel skipped the group.
      group.count = 1;
      const uint32_t row = write.store.index.FindRow(tile, group.key);
      // WriteKernel has inserted all keys that had room, so this key was refused or is left to the
      // caller.
      if constexpr (Verb::kGives) {
        write.verb.Give(tile, write.store, group, row);
      }
      if (row == kNoRow) {
        write.Absent(tile, group);
      } else {
        if constexpr (Verb::kSums) write.verb.SumAll(tile, group);
        write.Present(tile, group, row);
      }
      tile.Sync();
    }
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DISTINCT_KERNELS_H_
