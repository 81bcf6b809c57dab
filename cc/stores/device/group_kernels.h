// SPDX-License-Identifier: Apache-2.0
// Kernels that group the equal keys of a batch, without a sort.
//
//   1. ClaimKernel: each key finds its place in a hash table of the batch, which has the first
//      position of the key and a count. The count ranks the positions, in the order of arrival.
//   2. MakeGroupsKernel: the first position of each key becomes a group, with as much room for
//      positions as the key has.
//   3. ScatterKernel: each position of a repeated key goes to the room, by its rank.
//   4. OrderKernel puts the positions of a group in the order of the batch.
//
// A caller that needs only the first position of each key and the count stops after 2.
#ifndef TF_EMBED_CC_STORES_DEVICE_GROUP_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_GROUP_KERNELS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/stores/device/batch_view.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

// A place of the hash table. Initially zeros.
struct alignas(16) ClaimedPlace {
  uint64_t claim;  // 0: free; otherwise half of the key's hash, and ~ its first position
  uint64_t count;  // positions of the key

  TF_EMBED_DEVICE static uint32_t PositionOf(uint64_t claim) {
    return ~static_cast<uint32_t>(claim);
  }
};

// For as many positions as a tile has lanes.
struct ClaimKernel {
  using MayWait = void;
  const int64_t* keys;
  uint64_t size;
  uint64_t salt;         // keeps chosen keys from making it slow
  ClaimedPlace* places;  // [mask + 1], more than keys
  uint64_t mask;
  uint32_t* numbers;  // the place of each position
  uint32_t* ranks;    // may be null

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    const bool has = number < size;
    const uint64_t place = has ? Claim<Tile>(number) : ~uint64_t{tile.lane()};
    // Once for all equal keys of a tile, because atomics on an address wait for each other.
    const uint32_t equal = tile.Equal(place);
    const uint32_t leader = LowestBit(equal);
    uint64_t rank = 0;
    if (has && tile.lane() == leader) rank = Tile::Add(&places[place].count, CountBits(equal));
    rank = tile.From(rank, leader) + CountBits(equal & ((1u << tile.lane()) - 1));
    if (!has) return;
    numbers[number] = static_cast<uint32_t>(place);
    if (ranks != nullptr) ranks[number] = static_cast<uint32_t>(rank);
  }

 private:
  template <class Tile>
  TF_EMBED_DEVICE uint64_t Claim(uint64_t number) const {
    const int64_t key = keys[number];
    const uint64_t hash = Mix64(static_cast<uint64_t>(key) ^ salt);
    // Not 0, since CheckBatchSize keeps ~0 out of the positions. Of two claims with the same half
    // of a hash, the first position is the larger.
    const uint64_t mine = (hash & ~uint64_t{0xffffffff}) | (~number & 0xffffffff);
    uint64_t place = hash & mask;
    for (;; place = (place + 1) & mask) {
      uint64_t* const claim = &places[place].claim;
      // A plain load first: the place of a frequent key is mostly taken.
      uint64_t there = Tile::Load(claim);
      if (there == 0 && Tile::CompareExchange(claim, &there, mine)) return place;
      // Half a hash saves the load of the other key in nearly all collisions.
      if ((there ^ mine) >> 32 != 0 || keys[ClaimedPlace::PositionOf(there)] != key) continue;
      if (there < mine) Tile::Max(claim, mine);
      return place;
    }
  }
};

// The groups of a batch while they are made.
struct GroupsInProgress {
  const int64_t* keys = nullptr;
  uint64_t size = 0;
  const ClaimedPlace* places = nullptr;
  uint32_t* numbers = nullptr;  // from ClaimKernel: places. From MakeGroupsKernel: groups
  DeviceGroup* groups = nullptr;
  // Null if the caller needs only the first member of each group.
  const uint32_t* ranks = nullptr;
  uint32_t* members = nullptr;
  uint32_t* unordered = nullptr;  // the members before OrderKernel
  uint32_t* repeated = nullptr;
  uint32_t* frequent = nullptr;
  BatchCounters* counters = nullptr;  // initially 0
};

// For as many positions as a tile has lanes.
struct MakeGroupsKernel {
  using MayWait = void;
  GroupsInProgress made;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    const bool has = number < made.size;
    uint32_t count = 0;
    if (has) {
      const ClaimedPlace place = made.places[made.numbers[number]];
      const uint32_t first = ClaimedPlace::PositionOf(place.claim);
      if (first == number) count = static_cast<uint32_t>(place.count);
      made.numbers[number] = first;
    }
    // Of a group, the first member is its own number.
    const uint32_t* members = made.numbers + number;
    if (made.ranks != nullptr && tile.Where(count > 1) != 0) {
      const uint32_t room = Reserve(tile, count > 1 ? count : 0, number);
      if (count > 1) members = made.members + room;
    }
    if (has) made.groups[number] = DeviceGroup{made.keys[number], members, count};
  }

 private:
  // Lists each lane's group of `count` members, if any, and returns where its members go.
  template <class Tile>
  TF_EMBED_DEVICE uint32_t Reserve(const Tile& tile, uint32_t count, uint64_t number) const {
    uint32_t before = 0;
    uint32_t total = 0;
    for (size_t lane = 0; lane < Tile::kLanes; ++lane) {
      const uint32_t its = tile.From(count, lane);
      if (lane < tile.lane()) before += its;
      total += its;
    }
    // Both numbers in one atomic of a tile, because all tiles wait for each other there.
    const uint32_t who = tile.Where(count > 0);
    uint64_t reserved = 0;
    if (tile.lane() == 0) {
      reserved =
          Tile::Add(&made.counters->repeated, BatchCounters::Repeated(CountBits(who), total));
    }
    reserved = tile.From(reserved, 0);
    const uint32_t lower = CountBits(who & ((1u << tile.lane()) - 1));
    if (count > 0) {
      made.repeated[BatchCounters::GroupsOf(reserved) + lower] = static_cast<uint32_t>(number);
    }
    uint32_t num_frequent;
    const uint64_t at =
        AddTogether(tile, count > kFrequentCount, &made.counters->frequent, &num_frequent);
    if (count > kFrequentCount) made.frequent[at] = static_cast<uint32_t>(number);
    return BatchCounters::MembersOf(reserved) + before;
  }
};

// For as many positions as a tile has lanes.
struct ScatterKernel {
  using MayWait = void;
  GroupsInProgress made;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number >= made.size) return;
    const DeviceGroup& group = made.groups[made.numbers[number]];
    if (group.count == 1) return;
    made.unordered[group.members - made.members + made.ranks[number]] =
        static_cast<uint32_t>(number);
  }
};

// For each repeated key: orders its positions. See LaunchBlocks.
struct OrderKernel {
  using MayWait = void;
  GroupsInProgress made;

  TF_EMBED_DEVICE size_t NumTiles() const {
    return BatchCounters::GroupsOf(made.counters->repeated);
  }
  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (i >= NumTiles()) return;
    const DeviceGroup group = made.groups[made.repeated[i]];
    if (group.count > kFrequentCount) return OrderFrequent(tile, group);
    const size_t begin = group.members - made.members;
    const uint32_t* const from = made.unordered + begin;
    ForEachLane(tile, group.count, [&](size_t k) {
      const uint32_t member = from[k];
      uint32_t rank = 0;
      for (uint32_t j = 0; j < group.count; ++j) rank += from[j] < member ? 1 : 0;
      made.members[begin + rank] = member;
    });
  }

  TF_EMBED_DEVICE size_t NumForBlocks() const { return made.counters->frequent; }
  template <class Block>
  TF_EMBED_DEVICE void OnBlock(size_t i) const {
    Block::Order(made, made.groups[made.frequent[i]]);
  }

 private:
  template <class Tile>
  TF_EMBED_DEVICE void OrderFrequent(const Tile& tile, const DeviceGroup& group) const {
#if !defined(__CUDACC__)
    if (tile.lane() != 0) return;
    const size_t begin = group.members - made.members;
    std::copy_n(made.unordered + begin, group.count, made.members + begin);
    std::sort(made.members + begin, made.members + begin + group.count);
#endif
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_GROUP_KERNELS_H_
