// SPDX-License-Identifier: Apache-2.0
// Reclaims the space of erased and replaced rows. Compaction reads the segment with the smallest
// share of live rows from start to end, appends its live rows to the log, and releases the segment.
//
// It runs in steps of a few blocks, which Put calls in proportion to the rows it takes, so no call
// waits long. The log stays below twice its live bytes. Compaction starts at kStart times the live
// bytes, when the chosen segment has at most 1 / kStart live rows. The rest of the room, up to
// twice the live bytes, is for the writes until compaction is done.
//
// Thread safety: REQUIRES the tier's mutex of writers held (LockRank::kRowLog).
#ifndef TF_EMBED_CC_TIERS_DISK_COMPACTION_H_
#define TF_EMBED_CC_TIERS_DISK_COMPACTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"
#include "cc/tiers/disk/aligned_buffer.h"
#include "cc/tiers/disk/place_index.h"
#include "cc/tiers/disk/row_log.h"
#include "cc/tiers/disk/segment.h"

namespace tf_embed {

class Compaction {
 public:
  Compaction(Allocator* allocator, size_t write_buffer_bytes, SegmentList* segments,
             PlaceIndex* index, RowLog* log)
      : allocator_(allocator),
        slack_bytes_(write_buffer_bytes / 2),
        segments_(segments),
        index_(index),
        log_(log),
        buffer_(allocator) {}
  ~Compaction() { Stop(); }

  // Whether there is too much garbage.
  bool IsDue() const;

  // The choice of the segment.
  enum class What : uint8_t {
    kDue,    // the segment with the most garbage
    kWorth,  // the same, if at least a tenth of it is garbage
    kAny,    // any with garbage, below a serial number
  };
  // Processes a few blocks and adds the number of rows examined. Sets `done` if no segment is left.
  // A failed step can be retried. Unreadable segments are skipped.
  Status Step(What what, uint64_t below_serial, const TierRule& rule, size_t* rows, bool* done);

  // Releases the current segment.
  void Stop();
  // Like Stop, without a lock, for a child of fork().
  void Forget() { segment_ = nullptr; }
  // Allows another attempt at unreadable segments.
  void Retry();

  // Callable at any time.
  uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  uint64_t moved_bytes() const { return moved_bytes_.load(std::memory_order_relaxed); }

 private:
  Status MoveRows(const TierRule& rule, uint32_t block, const RowBlock& rows);

  Allocator* const allocator_;
  const uint64_t slack_bytes_;
  SegmentList* const segments_;
  PlaceIndex* const index_;
  RowLog* const log_;
  AlignedBuffer buffer_;
  Segment* segment_ = nullptr;  // pinned
  uint32_t next_block_ = 0;
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> moved_bytes_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_COMPACTION_H_
