// SPDX-License-Identifier: Apache-2.0
// Gives back the space of rows that were erased or replaced: reads the segment with the smallest
// share of live rows from its beginning to its end, appends the live ones to the log, and lets the
// segment go.
//
// It works in steps of a few blocks each, which Put calls in proportion to the rows that it takes.
// So no call waits long, and the log stays below twice its live bytes: it begins at kStart of
// them, where the segment that it picks has at most 1 / kStart live rows, and the room up to twice
// is that of the steps until it is done.
//
// Thread safety: REQUIRES the store's mutex of writers held (LockRank::kRowLog).
#ifndef TF_EMBED_CC_DISK_COMPACTION_H_
#define TF_EMBED_CC_DISK_COMPACTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"
#include "cc/disk/aligned_buffer.h"
#include "cc/disk/place_index.h"
#include "cc/disk/row_log.h"
#include "cc/disk/segment.h"

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

  // Whether there is more garbage than there should be.
  bool IsDue() const;

  // What is compacted.
  enum class What : uint8_t {
    kDue,    // the segment with the most garbage
    kWorth,  // the same, if at least a tenth of it is garbage
    kAny,    // any with garbage, below a serial number
  };
  // Goes on for a few blocks and adds the rows that it looked at. `done` if there is no segment to
  // work at. On failure the step can be made again; a segment that can't be read is left alone.
  Status Step(What what, uint64_t below_serial, const StoreRule& rule, size_t* rows, bool* done);

  // Lets go of the segment that it works at.
  void Stop();
  // The same, without a lock: for a child of fork().
  void Forget() { segment_ = nullptr; }
  // Segments that could not be read may be tried again.
  void Retry();

  // Any time.
  uint64_t read_bytes() const { return read_bytes_.load(std::memory_order_relaxed); }
  uint64_t moved_bytes() const { return moved_bytes_.load(std::memory_order_relaxed); }

 private:
  Status MoveRows(const StoreRule& rule, uint32_t block, const RowBlock& rows);

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

#endif  // TF_EMBED_CC_DISK_COMPACTION_H_
