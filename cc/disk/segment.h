// SPDX-License-Identifier: Apache-2.0
// A segment: a file of rows that is a part of a store's log, and the list of all of them.
//
// A segment is a padded row file (cc/core/files/row_file.h). The last one of a log is open: rows
// are appended to it, and its last blocks may still be in memory. The others are sealed, which
// means that the file is whole and never changes.
//
// A place is the number of a row in the log, 31 bits: segment number * stride + number in the
// segment. Numbers of segments are used again; serial numbers, by which files are named, are not.
//
// Invariants
//   - `live` counts the index entries with places in the segment. It is raised before the entry is
//     made, and lowered after it is gone, within the critical section of its stripe. So a thread
//     that sees an entry and holds the stripe's mutex may use the segment.
//   - A sealed segment without live rows is retired: it leaves the list once it has no pins. A
//     number is used again only then, so a place means one row while its segment is pinned.
//   - The file is removed when the segment leaves the list.
//
// Thread safety: as the fields say. SegmentList has a mutex of its own; Of takes none.
#ifndef TF_EMBED_CC_DISK_SEGMENT_H_
#define TF_EMBED_CC_DISK_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/files/row_file.h"
#include "cc/core/rows/row_statistics.h"
#include "cc/disk/file.h"
#include "cc/disk/folder.h"

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

  // Makes room for what is kept in memory of its rows.
  Status Init(size_t statistics_per_row) {
    const size_t most_rows = size_t{most_blocks} * blocks.rows;
    TF_EMBED_RETURN_IF_ERROR(statistics.Resize(most_rows * statistics_per_row));
    TF_EMBED_RETURN_IF_ERROR(cold_.Resize((most_rows + 63) / 64));
    for (size_t i = 0; i < cold_.size(); ++i) cold_[i].store(0, std::memory_order_relaxed);
    return Status();
  }

  uint64_t OffsetOf(uint32_t block) const { return blocks.begin + uint64_t{block} * blocks.bytes; }

  // Whether a row is a live one that the cache does not have. What the index says of its key, by
  // place; set in the same critical section.
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
  const uint64_t generation;  // of the rule whose slots the rows have
  const RowFileHeader header;
  const PaddedBlocks blocks;
  const uint32_t most_blocks;
  const size_t row_bytes;  // of the file, for each row
  const std::string path;
  std::atomic<uint64_t>* const disk_bytes;  // of all segments
  std::unique_ptr<File> file;
  uint32_t number = 0;
  // By row; those of live rows, each under the mutex of its key's stripe.
  Buffer<RowStatistics::Word> statistics;

  std::atomic<uint32_t> live{0};
  std::atomic<uint32_t> rows{0};            // written, with those that wait to be
  std::atomic<uint32_t> flushed_blocks{0};  // in the file; changes under the log's tail mutex
  std::atomic<uint64_t> file_bytes{0};
  uint32_t checksum = 0;  // of the file, once it is sealed
  std::atomic<bool> sealed{false};
  std::atomic<bool> unreadable{false};  // compaction failed to read it

  // Of SegmentList's mutex.
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

  // The numbers that a segment has for its rows. Set once, before the first Add.
  void SetStride(uint32_t stride) { stride_.store(stride, std::memory_order_relaxed); }
  uint32_t stride() const { return stride_.load(std::memory_order_relaxed); }
  uint32_t NumberOf(uint32_t place) const { return place / stride(); }
  uint32_t RowOf(uint32_t place) const { return place % stride(); }
  uint32_t PlaceOf(const Segment& segment, uint32_t row) const {
    return segment.number * stride() + row;
  }

  // Takes a segment and numbers it. Fails if there is no number or no memory.
  Status Add(std::unique_ptr<Segment> segment);

  // The segment of a number. REQUIRES: there is one, and the caller knows that it stays, by a pin
  // or by an entry of the index and its stripe's mutex.
  Segment* Of(uint32_t number) const {
    return parts_[number / kPart].load(std::memory_order_acquire)[number % kPart].load(
        std::memory_order_acquire);
  }

  // Keeps a segment where it is until Unpin. Null if there is none or it is retired.
  Segment* Pin(uint32_t number);
  void Unpin(Segment* segment);

  // Retires a segment if it is sealed and has no live rows.
  void RetireIfEmpty(uint32_t number);
  // Retires an open one. REQUIRES: it has no live rows, and nobody writes to it.
  void Retire(Segment* segment);

  // Calls visit(segment) for each that is not retired. The mutex is held: `visit` takes no lock.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    std::lock_guard<OrderedMutex> lock(mutex_);
    for (uint32_t number = 0; number < end_; ++number) {
      Segment* const segment = At(number);
      if (segment != nullptr && !segment->retired) visit(segment);
    }
  }
  // Pins the segment for which less(a, b) holds against all others that `wanted` wants; null if it
  // wants none.
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

  // The segment of a number, or null. REQUIRES: mutex_ held.
  Segment* At(uint32_t number) const {
    std::atomic<Segment*>* const part = parts_[number / kPart].load(std::memory_order_acquire);
    return part == nullptr ? nullptr : part[number % kPart].load(std::memory_order_acquire);
  }
  // REQUIRES: mutex_ held. Takes a segment out of the list if nothing keeps it; the caller deletes
  // it without the mutex.
  std::unique_ptr<Segment> TakeOut(Segment* segment);

  mutable OrderedMutex mutex_{LockRank::kSegments};
  std::atomic<uint32_t> stride_{1};
  // Parts of 256 segments each, made when they are needed and kept.
  std::atomic<std::atomic<Segment*>*> parts_[kMost / kPart] = {};
  uint32_t end_ = 0;    // numbers in use are below
  uint32_t first_ = 0;  // numbers below are in use
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DISK_SEGMENT_H_
