// SPDX-License-Identifier: Apache-2.0
// A segment, which is a row file in a tier's log, and the list of all segments.
//
// A segment is a padded row file (cc/core/files/row_file.h). The last segment of a log is open:
// rows are appended, and its last blocks may still be in memory. The others are sealed: complete
// and immutable.
//
// A place is the 31-bit number of a row in the log: segment number * stride + row in the segment.
// Segment numbers are reused; serial numbers, which name the files, are not.
//
// Invariants
//   - `live` counts the index entries with places in the segment. It is raised before the entry is
//     made, and lowered after it is gone, within the critical section of its stripe. So a thread
//     that sees an entry and holds the stripe's mutex may use the segment.
//   - A sealed segment without live rows is retired: it leaves the list once it has no pins. A
//     number is used again only then, so a place means one row while its segment is pinned.
//   - The file is removed when the segment leaves the list.
//
// Thread safety: as noted at each field. SegmentList has a mutex, which Of does not take.
#ifndef TF_EMBED_CC_TIERS_DISK_SEGMENT_H_
#define TF_EMBED_CC_TIERS_DISK_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/base/thread_annotations.h"
#include "cc/core/files/row_file.h"
#include "cc/core/rows/row_statistics.h"
#include "cc/tiers/disk/file.h"
#include "cc/tiers/disk/folder.h"

namespace tf_embed {

inline constexpr uint32_t kNoPlace = 0x7fffffffu;

struct Segment {
  Segment(Folder* folder, uint64_t serial, uint64_t generation, const RowFileHeader& header,
          uint32_t most_blocks, std::atomic<uint64_t>* disk_bytes, Allocator* allocator)
      : folder(folder),
        serial(serial),
        generation(generation),
        header(header),
        blocks(PaddedBlocks::Of(header)),
        most_blocks(most_blocks),
        row_bytes(blocks.bytes / blocks.rows),
        path(folder->FileOf(serial)),
        disk_bytes(disk_bytes),
        statistics(allocator),
        cold_(allocator) {}
  // Removes the file.
  ~Segment() {
    if (file == nullptr) return;
    file.reset();
    folder->Remove(serial);
    disk_bytes->fetch_sub(file_bytes.load());
  }

  // Allocates the in-memory state of its rows.
  Status Init(size_t statistics_per_row) {
    const size_t most_rows = size_t{most_blocks} * blocks.rows;
    TF_EMBED_RETURN_IF_ERROR(statistics.Resize(most_rows * statistics_per_row));
    TF_EMBED_RETURN_IF_ERROR(cold_.Resize((most_rows + 63) / 64));
    for (size_t i = 0; i < cold_.size(); ++i) cold_[i].store(0, std::memory_order_relaxed);
    return Status();
  }

  uint64_t OffsetOf(uint32_t block) const { return blocks.begin + uint64_t{block} * blocks.bytes; }

  // Whether a row is live and not in the cache. Mirrors the index by place; set in the same
  // critical section.
  bool IsCold(size_t row) const {
    return (cold_[row / 64].load(std::memory_order_relaxed) >> (row % 64) & 1) != 0;
  }
  void SetCold(size_t row, bool cold) {
    const uint64_t bit = uint64_t{1} << (row % 64);
    if (cold) {
      cold_[row / 64].fetch_or(bit, std::memory_order_relaxed);
    } else {
      cold_[row / 64].fetch_and(~bit, std::memory_order_relaxed);
    }
  }

  Folder* const folder;
  const uint64_t serial;
  const uint64_t generation;  // of the rule of the rows' slots
  const RowFileHeader header;
  const PaddedBlocks blocks;
  const uint32_t most_blocks;
  const size_t row_bytes;  // file bytes per row
  const std::string path;
  std::atomic<uint64_t>* const disk_bytes;  // total over all segments
  std::unique_ptr<File> file;
  uint32_t number = 0;
  // By row. Statistics of live rows are guarded by their keys' stripe mutexes.
  Buffer<RowStatistics::Word> statistics;

  std::atomic<uint32_t> live{0};
  std::atomic<uint32_t> rows{0};            // written, buffered rows included
  std::atomic<uint32_t> flushed_blocks{0};  // in the file; changes under the log's tail mutex
  std::atomic<uint64_t> file_bytes{0};
  uint32_t checksum = 0;  // of the file, once sealed
  std::atomic<bool> sealed{false};
  std::atomic<bool> unreadable{false};  // compaction failed to read it

  // Guarded by SegmentList's mutex.
  uint32_t pins = 0;
  bool retired = false;

 private:
  Buffer<std::atomic<uint64_t>> cold_;
};

class SegmentList {
 public:
  static constexpr uint32_t kMost = 65536;

  SegmentList() = default;
  ~SegmentList();
  SegmentList(const SegmentList&) = delete;
  SegmentList& operator=(const SegmentList&) = delete;

  // Sets the number of rows numbered per segment. Called once, before the first Add.
  void SetStride(uint32_t stride) { stride_.store(stride, std::memory_order_relaxed); }
  uint32_t stride() const { return stride_.load(std::memory_order_relaxed); }
  uint32_t NumberOf(uint32_t place) const { return place / stride(); }
  uint32_t RowOf(uint32_t place) const { return place % stride(); }
  uint32_t PlaceOf(const Segment& segment, uint32_t row) const {
    return segment.number * stride() + row;
  }

  // Takes over a segment and numbers it. Fails if numbers or memory run out.
  Status Add(std::unique_ptr<Segment> segment);

  // The segment with a number. REQUIRES: it exists, and is kept by a pin, or by an index entry
  // whose stripe's mutex is held.
  Segment* Of(uint32_t number) const {
    return parts_[number / kPart].load(std::memory_order_acquire)[number % kPart].load(
        std::memory_order_acquire);
  }

  // Pins a segment until Unpin. Null if there is none or it is retired.
  Segment* Pin(uint32_t number);
  void Unpin(Segment* segment);

  // Retires a segment if it is sealed and has no live rows.
  void RetireIfEmpty(uint32_t number);
  // Retires an open segment. REQUIRES: no live rows, no writers.
  void Retire(Segment* segment);

  // Calls visit(segment) for each segment that is not retired. `visit` must take no lock, because
  // the mutex is held.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    std::lock_guard<OrderedMutex> lock(mutex_);
    for (uint32_t number = 0; number < end_; ++number) {
      Segment* const segment = At(number);
      if (segment != nullptr && !segment->retired) visit(segment);
    }
  }
  // Pins the least segment by `less` among the segments that `wanted` accepts; null if there is
  // none.
  template <typename Wanted, typename Less>
  Segment* PinLeast(const Wanted& wanted, const Less& less) {
    std::lock_guard<OrderedMutex> lock(mutex_);
    Segment* least = nullptr;
    for (uint32_t number = 0; number < end_; ++number) {
      Segment* const segment = At(number);
      if (segment == nullptr || segment->retired || !wanted(*segment)) continue;
      if (least == nullptr || less(*segment, *least)) least = segment;
    }
    if (least != nullptr) ++least->pins;
    return least;
  }

 private:
  static constexpr uint32_t kPart = 256;

  // The segment with a number, or null.
  Segment* At(uint32_t number) const TF_EMBED_REQUIRES(mutex_) {
    std::atomic<Segment*>* const part = parts_[number / kPart].load(std::memory_order_acquire);
    return part == nullptr ? nullptr : part[number % kPart].load(std::memory_order_acquire);
  }
  // Removes a segment from the list if nothing pins it; the caller deletes it outside the mutex.
  std::unique_ptr<Segment> TakeOut(Segment* segment) TF_EMBED_REQUIRES(mutex_);

  mutable OrderedMutex mutex_{LockRank::kSegments};
  std::atomic<uint32_t> stride_{1};
  // Blocks of 256 segments, allocated on demand and kept.
  std::atomic<std::atomic<Segment*>*> parts_[kMost / kPart] = {};
  uint32_t end_ TF_EMBED_GUARDED_BY(mutex_) = 0;    // bound on the numbers in use
  uint32_t first_ TF_EMBED_GUARDED_BY(mutex_) = 0;  // all lower numbers are in use
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_SEGMENT_H_
