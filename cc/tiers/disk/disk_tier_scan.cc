// SPDX-License-Identifier: Apache-2.0
// Scan. Reads the log by rising serial number. Returns rows that are cold and that the index still
// places there.
//
//     cursor = | serial number of the segment : 40 | block : 24 |
#include <algorithm>
#include <cstring>
#include <mutex>

#include "cc/tiers/disk/disk_tier.h"

namespace tf_embed {
namespace {

constexpr int kBlockBits = 24;
constexpr size_t kReadBytes = size_t{1} << 20;

}  // namespace

void DiskTier::ScanBlock(const Segment& segment, const TierRule& rule, uint32_t block,
                         const RowBlock& found, WholeRows* rows) const {
  const uint32_t first =
      segments_.PlaceOf(segment, block * static_cast<uint32_t>(segment.blocks.rows));
  const size_t slot_bytes = rule.slot_bytes;
  for (size_t i = 0; i < found.size; ++i) {
    uint64_t* const statistics = rows->statistics.data() + rows->size * options_.statistics.size();
    const PlaceIndex::Found entry = index_.Find(found.keys[i], statistics);
    if (entry.place != first + static_cast<uint32_t>(i) || entry.shared) continue;
    const size_t row = rows->size++;
    rows->keys[row] = found.keys[i];
    std::memcpy(rows->weights.data() + row * weight_bytes_, found.weights + i * weight_bytes_,
                weight_bytes_);
    if (slot_bytes == 0) continue;
    const char* const slots = segment.generation == rule.generation ? found.slots + i * slot_bytes
                                                                    : rule.initial_slots.data();
    std::memcpy(rows->slots.data() + row * slot_bytes, slots, slot_bytes);
  }
}

bool DiskTier::HasWanted(const Segment& segment, uint32_t block, const WantedRows& wanted) const {
  if (wanted.snapshot == 0) return true;
  const size_t first = block * segment.blocks.rows;
  const size_t end = std::min<size_t>(first + segment.blocks.rows, segment.rows.load());
  for (size_t row = first; row < end; ++row) {
    if (IsWanted(segment, row, wanted)) return true;
  }
  return false;
}

Status DiskTier::ScanSegment(Segment* segment, const TierRule& rule, size_t most_rows,
                             const WantedRows& wanted, uint32_t* block, bool* ended,
                             WholeRows* rows) const {
  const size_t block_bytes = segment->blocks.bytes;
  const uint32_t at_once = static_cast<uint32_t>(std::max<size_t>(1, kReadBytes / block_bytes));
  AlignedBuffer buffer(options_.allocator);
  *ended = false;
  for (;;) {
    const size_t room = (most_rows - rows->size) / segment->blocks.rows;
    if (room == 0) return Status();
    const uint32_t flushed = segment->flushed_blocks.load();
    while (*block < flushed && !HasWanted(*segment, *block, wanted)) ++*block;
    if (*block < flushed) {
      const uint32_t most =
          static_cast<uint32_t>(std::min<size_t>({room, at_once, flushed - *block}));
      uint32_t count = 1;
      while (count < most && HasWanted(*segment, *block + count, wanted)) ++count;
      TF_EMBED_RETURN_IF_ERROR(buffer.Resize(count * block_bytes));
      if (const int error = segment->file->ReadAll(buffer.data(), count * block_bytes,
                                                   segment->OffsetOf(*block))) {
        return FileFailure("Can't read '" + segment->path + "', which has the rows of " +
                               std::to_string(segment->live.load()) + " keys",
                           error);
      }
      for (uint32_t i = 0; i < count; ++i, ++*block) {
        RowBlock found(nullptr);
        TF_EMBED_RETURN_IF_ERROR(
            ParseRowBlock(segment->header, segment->path, segment->OffsetOf(*block),
                          buffer.data() + i * block_bytes, block_bytes, &found));
        ScanBlock(*segment, rule, *block, found, rows);
      }
      continue;
    }
    // Rows not yet written. The index must not be locked under the mutex of the log's end.
    TF_EMBED_RETURN_IF_ERROR(buffer.Resize(block_bytes));
    RowBlock found(nullptr);
    {
      std::lock_guard<OrderedMutex> lock(log_.mutex());
      if (*block < segment->flushed_blocks.load()) continue;
      if (segment != log_.open_segment() || *block > log_.encoded_blocks()) {
        *ended = true;
        return Status();
      }
      if (*block < log_.encoded_blocks()) {
        std::memcpy(buffer.data(), log_.BytesOf(*block), block_bytes);
      } else {
        found.size = log_.staged();
        char* const keys = buffer.data();
        char* const weights = keys + found.size * sizeof(int64_t);
        const size_t slot_bytes = found.size * segment->header.slot_bytes();
        char* const slots = weights + found.size * weight_bytes_;
        if (found.size > 0) {
          std::memcpy(keys, log_.staged_keys(), found.size * sizeof(int64_t));
          std::memcpy(weights, log_.staged_weights(), found.size * weight_bytes_);
          if (slot_bytes > 0) std::memcpy(slots, log_.staged_slots(), slot_bytes);
        }
        found.keys = reinterpret_cast<const int64_t*>(keys);
        found.weights = weights;
        found.slots = slots;
      }
    }
    if (found.keys == nullptr) {
      TF_EMBED_RETURN_IF_ERROR(ParseRowBlock(segment->header, segment->path,
                                             segment->OffsetOf(*block), buffer.data(), block_bytes,
                                             &found));
    }
    ScanBlock(*segment, rule, *block, found, rows);
    ++*block;
  }
}

Status DiskTier::Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
                      WholeRows* rows) const {
  rows->size = 0;
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  const std::shared_ptr<const TierRule> rule = this->rule();
  // Take at least one block, or the scan would never advance.
  size_t most_block_rows = 0;
  segments_.ForEach(
      [&](Segment* segment) { most_block_rows = std::max(most_block_rows, segment->blocks.rows); });
  const size_t most_rows = std::max(std::min(max_rows, size()), size_t{1}) + most_block_rows;
  TF_EMBED_RETURN_IF_ERROR(
      rows->Resize(most_rows, weight_bytes_, rule->slot_bytes, options_.statistics.size()));
  uint64_t serial = cursor->next >> kBlockBits;
  uint32_t block = static_cast<uint32_t>(cursor->next & ((uint64_t{1} << kBlockBits) - 1));
  for (;;) {
    Segment* const segment = segments_.PinLeast(
        [&](const Segment& one) {
          return one.serial >= serial &&
                 (cursor->linked == nullptr ||
                  !std::binary_search(cursor->linked->files.begin(), cursor->linked->files.end(),
                                      one.serial));
        },
        [](const Segment& one, const Segment& other) { return one.serial < other.serial; });
    if (segment == nullptr) {
      cursor->done = true;
      return Status();
    }
    if (segment->serial > serial) block = 0;
    serial = segment->serial;
    bool ended = false;
    const Status status =
        segment->blocks.rows > most_block_rows
            ? Status()  // opened meanwhile; left for the next call
            : ScanSegment(segment, *rule, most_rows, wanted, &block, &ended, rows);
    segments_.Unpin(segment);
    if (!status.ok()) {
      rows->size = 0;
      return status;
    }
    if (!ended) break;
    ++serial;
    block = 0;
  }
  cursor->next = serial << kBlockBits | block;
  return Status();
}

}  // namespace tf_embed
