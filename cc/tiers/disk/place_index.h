// SPDX-License-Identifier: Apache-2.0
// The index of a disk tier. Maps a key to its row's place in the log, whether the row is shared
// with the cache, and the row's statistics.
//
//     row id of the StripedIndex = | shared : 1 | place : 31 |
//
// Statistics are in the segment's memory, by place. Each change of an entry also updates them, and
// the live-row count of the segment, in the same critical section.
//
// Thread-safe. Each method takes the mutex of the key's stripe, finds included, so that outgrown
// arrays can be freed at any time.
#ifndef TF_EMBED_CC_TIERS_DISK_PLACE_INDEX_H_
#define TF_EMBED_CC_TIERS_DISK_PLACE_INDEX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"
#include "cc/core/index/striped_index.h"
#include "cc/core/policy/eviction_order.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/rows/row_change.h"
#include "cc/core/rows/row_statistics.h"
#include "cc/tiers/disk/segment.h"

namespace tf_embed {

class PlaceIndex {
 public:
  struct Found {
    uint32_t place = kNoPlace;
    bool shared = false;
    bool found() const { return place != kNoPlace; }
  };

  PlaceIndex(Allocator* allocator, size_t size_hint, StatisticSet statistics, SegmentList* segments)
      : index_(allocator, size_hint), statistics_(statistics), segments_(segments) {}

  // Prefetches the first cache line that Find reads.
  void Prefetch(int64_t key) const { __builtin_prefetch(index_.HomeOf(HashKey(key))); }

  // Also copies the statistics, unless `statistics` is null.
  Found Find(int64_t key, uint64_t* statistics = nullptr) const;

  // Sets the place of a key's new row. A failure changes nothing.
  Status Put(int64_t key, uint32_t place, bool shared, const uint64_t* statistics);
  // Updates the place of a copied row. False if the row is no longer at `from`.
  bool Move(int64_t key, uint32_t from, uint32_t to);
  // False if the key is absent.
  bool Erase(int64_t key);
  // Removes all keys.
  void Clear();
  // Frees memory that the present keys do not need.
  Status Shrink();

  enum class Shared : uint8_t { kNow, kBefore, kMoved };
  // Makes a key's row shared, if it is still at `place`.
  Shared Share(int64_t key, uint32_t place);
  // Makes a key's row cold, if present, and sets its statistics unless null.
  void Unshare(int64_t key, const uint64_t* statistics);

  // See LowerTier.
  bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics);
  bool NoteUse(int64_t key, const Moment& now);
  bool TakeForSnapshot(int64_t key, const WantedRows& wanted);
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const;
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                     RankList* expired);

  size_t size() const { return index_.size(); }
  size_t shared() const { return shared_.load(std::memory_order_relaxed); }
  size_t bytes() const { return index_.bytes(); }
  // Total over all rows.
  uint64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kSharedBit = 0x80000000u;
  static constexpr uint32_t kNoSegment = ~uint32_t{0};

  // Valid while the stripe's mutex is held, like the segment. `row_id` may have the shared bit.
  RowStatistics::Word* WordsOf(uint32_t row_id) const;
  void SetWords(uint32_t row_id, const uint64_t* statistics);
  // Segment::SetCold for the row at a place.
  void SetCold(uint32_t row_id, bool cold);
  void AddLive(uint32_t place);
  // The segment's number if that was its last live row, else kNoSegment.
  uint32_t DropLive(uint32_t row_id);

  StripedIndex index_;
  const StatisticSet statistics_;
  SegmentList* const segments_;
  StripedIndex::Cursor expiry_cursor_;  // owned by the write planner
  std::atomic<size_t> shared_{0};
  std::atomic<uint64_t> live_bytes_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_PLACE_INDEX_H_
