// SPDX-License-Identifier: Apache-2.0
// The index of a store on disk: from a key to the place of its row in the log, whether the row is
// shared with the cache, and the statistics of the row.
//
//     row id of the StripedIndex = | shared : 1 | place : 31 |
//
// Statistics lie in the memory of the segment, by place. The index keeps them, and the counts of
// live rows of segments, right: each change of an entry changes them in the same critical section.
//
// Thread safety: any thread may call any method at any time. Each takes the mutex of the key's
// stripe, also to find, so that outgrown arrays can be freed at any time.
#ifndef TF_EMBED_CC_DISK_PLACE_INDEX_H_
#define TF_EMBED_CC_DISK_PLACE_INDEX_H_

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
#include "cc/disk/segment.h"

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

  // The cache line that Find of the key reads first.
  void Prefetch(int64_t key) const { __builtin_prefetch(index_.HomeOf(HashKey(key))); }

  // Copies the statistics too if they are wanted.
  Found Find(int64_t key, uint64_t* statistics = nullptr) const;

  // Gives a key the place of its new row. On failure nothing has changed.
  Status Put(int64_t key, uint32_t place, bool shared, const uint64_t* statistics);
  // Gives a key the place that its row was copied to. False if the row is no longer at `from`.
  bool Move(int64_t key, uint32_t from, uint32_t to);
  // False if there is no such key.
  bool Erase(int64_t key);
  // Removes all keys.
  void Clear();
  // Gives back memory that the present keys do not need.
  Status Shrink();

  enum class Shared : uint8_t { kNow, kBefore, kMoved };
  // Makes the row of a key shared, unless it is no longer at `place`.
  Shared Share(int64_t key, uint32_t place);
  // Makes it cold, if there is one, with these statistics, or with those that it had if null.
  void Unshare(int64_t key, const uint64_t* statistics);

  // See BackingStore.
  bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics);
  bool TakeForSnapshot(int64_t key, const WantedRows& wanted);
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const;
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                     RankList* expired);

  size_t size() const { return index_.size(); }
  size_t shared() const { return shared_.load(std::memory_order_relaxed); }
  size_t bytes() const { return index_.bytes(); }
  // Of all rows.
  uint64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kSharedBit = 0x80000000u;
  static constexpr uint32_t kNoSegment = ~uint32_t{0};

  // Valid while the stripe's mutex is held, as the segment is. `row_id` may have the shared bit.
  RowStatistics::Word* WordsOf(uint32_t row_id) const;
  void SetWords(uint32_t row_id, const uint64_t* statistics);
  // Segment::SetCold, of the row at a place.
  void SetCold(uint32_t row_id, bool cold);
  void AddLive(uint32_t place);
  // The number of the segment, if that was its last live row; else kNoSegment.
  uint32_t DropLive(uint32_t row_id);

  StripedIndex index_;
  const StatisticSet statistics_;
  SegmentList* const segments_;
  StripedIndex::Cursor expiry_cursor_;  // of who plans writes
  std::atomic<size_t> shared_{0};
  std::atomic<uint64_t> live_bytes_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DISK_PLACE_INDEX_H_
