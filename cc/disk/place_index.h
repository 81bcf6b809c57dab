// SPDX-License-Identifier: Apache-2.0
// The index of a store on disk: from a key to the place of its row in the log, and whether the row
// is shared with the cache.
//
//     row id of the StripedIndex = | shared : 1 | place : 31 |
//
// It keeps the counts of live rows of segments right: each change of an entry changes them in the
// same critical section.
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
#include "cc/disk/segment.h"

namespace tf_embed {

class PlaceIndex {
 public:
  struct Found {
    uint32_t place = kNoPlace;
    bool shared = false;
    bool found() const { return place != kNoPlace; }
  };

  PlaceIndex(Allocator* allocator, size_t size_hint, SegmentList* segments)
      : index_(allocator, size_hint), segments_(segments) {}

  // The cache line that Find of the key reads first.
  void Prefetch(int64_t key) const { __builtin_prefetch(index_.HomeOf(HashKey(key))); }

  Found Find(int64_t key) const;

  // Gives a key the place of its new row, which is cold. On failure nothing has changed.
  Status Put(int64_t key, uint32_t place);
  // Gives a key the place that its row was copied to. False if the row is no longer at `from`.
  bool Move(int64_t key, uint32_t from, uint32_t to);
  // False if there is no such key.
  bool Erase(int64_t key);
  // Removes all keys.
  void Clear();

  enum class Shared : uint8_t { kNow, kBefore, kMoved };
  // Makes the row of a key shared, unless it is no longer at `place`.
  Shared Share(int64_t key, uint32_t place);
  // Makes it cold, if there is one.
  void Unshare(int64_t key);

  size_t size() const { return index_.size(); }
  size_t shared() const { return shared_.load(std::memory_order_relaxed); }
  size_t bytes() const { return index_.bytes(); }
  // Of all rows.
  uint64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kSharedBit = 0x80000000u;
  static constexpr uint32_t kNoSegment = ~uint32_t{0};

  void AddLive(uint32_t place);
  // The number of the segment, if that was its last live row; else kNoSegment.
  uint32_t DropLive(uint32_t row_id);

  StripedIndex index_;
  SegmentList* const segments_;
  std::atomic<size_t> shared_{0};
  std::atomic<uint64_t> live_bytes_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DISK_PLACE_INDEX_H_
