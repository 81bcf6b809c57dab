// SPDX-License-Identifier: Apache-2.0
// Hard links of segments, for snapshots. A sealed segment is a complete, immutable row file, so a
// snapshot can link to it. Rows are selected by their places in memory, without a read.
//
// The cursor is Scan's. Compaction moves rows to higher serial numbers, so moved rows are met again
// after the cursor, or by Scan.
#include <algorithm>
#include <mutex>
#include <new>

#include "cc/tiers/disk/disk_tier.h"

namespace tf_embed {
namespace {

constexpr int kBlockBits = 24;
// Bytes of a segment covered by one TakeLinked call. Writers wait during the call, and a load reads
// as much at a time.
constexpr size_t kTakenBytes = size_t{1} << 20;

}  // namespace

RowChange::Word* DiskTier::ChangeOf(const Segment& segment, size_t row) const {
  const StatisticSet set = options_.statistics;
  return const_cast<RowChange::Word*>(segment.statistics.data()) + row * set.size() +
         set.IndexOf(Statistic::kChange);
}

bool DiskTier::IsWanted(const Segment& segment, size_t row, const WantedRows& wanted) const {
  return segment.IsCold(row) &&
         (wanted.snapshot == 0 || RowChange::IsWanted(*ChangeOf(segment, row), wanted));
}

Status DiskTier::LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                          LinkedRows* rows) {
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  const std::shared_ptr<const TierRule> rule = this->rule();
  rows->size = 0;
  for (uint64_t serial = cursor->next >> kBlockBits;; ++serial) {
    // Rows of an older rule have other slots in the file.
    Segment* const segment = segments_.PinLeast(
        [&](const Segment& one) {
          return one.serial >= serial && one.sealed.load() && !one.unreadable.load() &&
                 one.generation == rule->generation;
        },
        [](const Segment& one, const Segment& other) { return one.serial < other.serial; });
    if (segment == nullptr) {
      cursor->done = true;
      return Status();
    }
    serial = segment->serial;
    const size_t count = segment->rows.load();
    size_t found = 0;
    for (size_t row = 0; row < count; ++row) {
      found += IsWanted(*segment, row, wanted);
    }
    const bool linked =
        found > 0 && found >= count - found &&
        linker->Link(segment->path, segment->file_bytes.load(), segment->checksum, &rows->file);
    segments_.Unpin(segment);
    if (linked) {
      try {
        rows->files.push_back(serial);
      } catch (const std::bad_alloc&) {
        return Status::ResourceExhausted([] { return "No memory for a list of linked files."; });
      }
      cursor->next = serial << kBlockBits;
      rows->ended = false;
      return Status();
    }
  }
}

Status DiskTier::TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) {
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  const uint64_t serial = cursor->next >> kBlockBits;
  const size_t block = cursor->next & ((uint64_t{1} << kBlockBits) - 1);
  const size_t words = options_.statistics.size();
  rows->size = 0;
  // Keeps compaction from moving rows.
  std::lock_guard<OrderedMutex> lock(writers_);
  Segment* const segment =
      segments_.PinLeast([&](const Segment& one) { return one.serial == serial; },
                         [](const Segment&, const Segment&) { return false; });
  rows->ended = segment == nullptr;  // all its rows have left
  if (rows->ended) {
    cursor->next = (serial + 1) << kBlockBits;
    return Status();
  }
  const size_t blocks = std::max<size_t>(1, kTakenBytes / segment->blocks.bytes);
  const size_t first = block * segment->blocks.rows;
  const size_t count = segment->rows.load();
  const size_t end = std::min(count, first + blocks * segment->blocks.rows);
  Status status = rows->places.Resize(end - first);
  if (status.ok()) status = rows->statistics.Resize((end - first) * words);
  for (size_t row = first; status.ok() && row < end; ++row) {
    if (!IsWanted(*segment, row, wanted)) continue;
    for (size_t i = 0; i < words; ++i) {
      rows->statistics[rows->size * words + i] =
          segment->statistics[row * words + i].load(std::memory_order_relaxed);
    }
    // A lookup that notes a use has claimed the row first, and hands it over.
    if (wanted.snapshot != 0 && !RowChange::Take(ChangeOf(*segment, row), wanted)) continue;
    rows->places[rows->size++] = static_cast<uint32_t>(row - first);
  }
  rows->block = static_cast<uint32_t>(block);
  rows->ended = end == count;
  cursor->next = rows->ended ? (serial + 1) << kBlockBits : serial << kBlockBits | (block + blocks);
  segments_.Unpin(segment);
  return status;
}

}  // namespace tf_embed
