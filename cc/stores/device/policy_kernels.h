// SPDX-License-Identifier: Apache-2.0
// Kernels that insert rows into a bounded store and evict them. The rules of row_kernels.h apply.
//
// A planned write: SurveyKernel looks up each distinct key, notes the uses and marks the keys that
// want rows. Expired rows are removed. Candidates are sorted by eviction set, within a set in batch
// order or by score. ChooseVictimsKernel (victim_kernels.h) chooses the rows that leave for them,
// and EraseRowsKernel removes these. Then the write continues like any other.
#ifndef TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/policy/row_policy.h"
#include "cc/stores/device/row_kernels.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

// ProbeKernel with the policy: present rows are used, and expired rows count as absent, with their
// places in `expired` [batch size, all kNoPlace].
struct SurveyKernel {
  StoreView store;
  BatchView batch;
  GroupsView groups;
  const bool* exists;
  Expiry expiry;
  Moment now;
  uint32_t* rows;
  uint32_t* marks;
  uint64_t* expired;  // null if rows don't expire

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (!groups.Has(i)) return;
    const DeviceGroup group = groups.groups[i];
    uint32_t row;
    const uint64_t place = store.index.Find(tile, group.key, HashKey(group.key), &row);
    if (tile.lane() != 0) return;
    rows[i] = kNoRow;
    if (row != kNoRow) {
      const DeviceStatistics<Tile> statistics = store.StatisticsAt<Tile>(row);
      if (!expiry.Has(statistics)) {
        statistics.Use(now);
        rows[i] = row;
        return;
      }
      // Erased by a later launch, because this launch looks up keys.
      expired[i] = place;
    }
    if (exists == nullptr || FirstAbsent(group, batch.positions, exists) < group.count) {
      marks[i] = 1;
    }
  }
};

// Removes the row at each lane's place, or none for kNoPlace, and counts it. All lanes call it.
template <class Tile>
TF_EMBED_DEVICE void EraseAndCount(const Tile& tile, const StoreView& store, uint64_t place,
                                   uint64_t* left) {
  const uint32_t count = EraseTogether(tile, store, place);
  if (count > 0 && tile.lane() == 0) Tile::Add(left, count);
}

// For as many places as a tile has lanes, some of them kNoPlace: removes the rows, and counts them.
struct EraseRowsKernel {
  StoreView store;
  const uint64_t* places;
  uint64_t size;
  uint64_t* left;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    EraseAndCount(tile, store, number < size ? places[number] : IndexView::kNoPlace, left);
  }
};

// For as many places as a tile has lanes, some of them kNoPlace.
struct ForgetRanksKernel {
  IndexView index;
  const uint64_t* places;
  uint64_t size;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    const uint64_t number = i * Tile::kLanes + tile.lane();
    if (number < size && places[number] != IndexView::kNoPlace) {
      index.ForgetRank<Tile>(places[number]);
    }
  }
};

// For each bucket of [first, end): removes rows, or finds their places if the host is told of them
// first.
struct Finder {
  uint64_t first = 0;
  uint64_t end = 0;
  uint64_t* left = nullptr;    // counts the removed rows
  uint64_t* places = nullptr;  // places of the found rows, by lane

  template <class Tile, typename Leaves>
  TF_EMBED_DEVICE void Look(const Tile& tile, const StoreView& store, size_t i, uint64_t bucket,
                            const Leaves& leaves) const {
    // Not ForEachLane, because all lanes must call EraseAndCount equally often.
    for (size_t lanes = 0; lanes < DeviceBucket::kLanes; lanes += Tile::kLanes) {
      const size_t lane = lanes + tile.lane();
      const uint64_t place = bucket * DeviceBucket::kLanes + lane;
      const bool found =
          lane < DeviceBucket::kLanes && store.index.template Holds<Tile>(place) && leaves(place);
      if (places == nullptr) {
        EraseAndCount(tile, store, found ? place : IndexView::kNoPlace, left);
      } else if (found) {
        // Nothing is erased yet: the host gets a copy of these rows first.
        places[i * DeviceBucket::kLanes + lane] = place;
      }
    }
  }
};

// Finds expired rows in the buckets that are searched on behalf of `wanted` new keys, from the end
// of the last search on. The launch covers at most all buckets.
struct SweepKernel : Finder {
  SweepKernel(const StoreView& store, const Expiry& expiry, const uint32_t* wanted)
      : store(store), expiry(expiry), wanted(wanted) {}

  StoreView store;
  Expiry expiry;
  const uint32_t* wanted;  // null: searches all buckets

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    // The host launches tiles for all keys of the batch, because only the device knows how many are
    // new.
    if (wanted != nullptr && first + i >= BucketsToSweep(*wanted)) return;
    const uint64_t bucket =
        (store.counts->buckets_swept + first + i) & (store.index.num_buckets() - 1);
    Look(tile, store, i, bucket, [&](uint64_t place) {
      return expiry.Has(store.StatisticsAt<Tile>(store.index.EntryAt(place).row));
    });
  }
};

// Finds the rows that rank below the limit.
struct EvictBelowKernel : Finder {
  EvictBelowKernel(const StoreView& store, EvictionOrder order, const Rank& limit, bool no_limit)
      : store(store), order(order), limit(limit), no_limit(no_limit) {}

  StoreView store;
  EvictionOrder order;
  Rank limit;
  bool no_limit;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    Look(tile, store, i, first + i, [&](uint64_t place) {
      return RankBelow(RankAt<Tile>(store, place, order), limit, no_limit);
    });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_POLICY_KERNELS_H_
