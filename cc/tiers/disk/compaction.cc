// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/compaction.h"

#include <algorithm>

namespace tf_embed {
namespace {

// Compaction begins when the disk holds this multiple of the live bytes.
constexpr double kStart = 1.6;
// Bytes read in one step.
constexpr size_t kStepBytes = size_t{64} << 10;

uint32_t BlocksOf(const Segment& segment) { return segment.flushed_blocks.load(); }

}  // namespace

bool Compaction::IsDue() const {
  return static_cast<double>(log_->disk_bytes()) >
         kStart * static_cast<double>(index_->live_bytes()) + static_cast<double>(slack_bytes_);
}

void Compaction::Stop() {
  if (segment_ != nullptr) segments_->Unpin(segment_);
  segment_ = nullptr;
}

void Compaction::Retry() {
  segments_->ForEach([](Segment* segment) { segment->unreadable.store(false); });
}

Status Compaction::MoveRows(const TierRule& rule, uint32_t block, const RowBlock& rows) {
  const uint32_t first =
      segments_->PlaceOf(*segment_, block * static_cast<uint32_t>(segment_->blocks.rows));
  const auto is_live = [&](size_t i) {
    return index_->Find(rows.keys[i]).place == first + static_cast<uint32_t>(i);
  };
  RowsToWrite run;
  run.keys = rows.keys;
  run.weights = rows.weights;
  run.slots = segment_->generation == rule.generation ? rows.slots : nullptr;
  for (size_t begin = 0; begin < rows.size;) {
    if (!is_live(begin)) {
      ++begin;
      continue;
    }
    run.size = begin + 1;
    while (run.size < rows.size && is_live(run.size)) ++run.size;
    while (begin < run.size) {
      size_t staged = 0;
      uint32_t place = 0;
      TF_EMBED_RETURN_IF_ERROR(
          log_->Stage(RowLog::Purpose::kCompaction, rule, run, begin, &staged, &place));
      for (size_t i = 0; i < staged; ++i, ++begin, ++place) {
        // If the row was erased or replaced meanwhile, the copy is garbage.
        index_->Move(rows.keys[begin], first + static_cast<uint32_t>(begin), place);
      }
      moved_bytes_.fetch_add(staged * segment_->row_bytes, std::memory_order_relaxed);
    }
  }
  return Status();
}

Status Compaction::Step(What what, uint64_t below_serial, const TierRule& rule, size_t* rows,
                        bool* done) {
  *done = false;
  if (segment_ == nullptr) {
    const auto share = [](const Segment& segment) {
      return static_cast<double>(segment.live.load()) /
             static_cast<double>(std::max<uint32_t>(1, segment.rows.load()));
    };
    segment_ = segments_->PinLeast(
        [&](const Segment& segment) {
          if (!segment.sealed.load() || segment.unreadable.load()) return false;
          if (what == What::kAny && segment.serial >= below_serial) return false;
          return share(segment) < (what == What::kWorth ? 0.9 : 1.0);
        },
        [&](const Segment& one, const Segment& other) { return share(one) < share(other); });
    next_block_ = 0;
    if (segment_ == nullptr) {
      *done = true;
      return Status();
    }
  }
  const size_t block_bytes = segment_->blocks.bytes;
  const uint32_t blocks = BlocksOf(*segment_);
  const uint32_t count = std::min<uint32_t>(
      blocks - next_block_, static_cast<uint32_t>(std::max<size_t>(1, kStepBytes / block_bytes)));
  // The segment may have lost its last row concurrently.
  if (segment_->live.load() == 0) next_block_ = blocks;
  if (next_block_ < blocks) {
    TF_EMBED_RETURN_IF_ERROR(buffer_.Resize(count * block_bytes));
    if (const int error = segment_->file->ReadAll(buffer_.data(), count * block_bytes,
                                                  segment_->OffsetOf(next_block_))) {
      const Status status = FileFailure("Can't read '" + segment_->path + "' to compact it, with " +
                                            std::to_string(segment_->live.load()) + " keys",
                                        error);
      segment_->unreadable.store(true);
      Stop();
      return status;
    }
    read_bytes_.fetch_add(count * block_bytes, std::memory_order_relaxed);
    for (uint32_t i = 0; i < count; ++i) {
      RowBlock block(allocator_);
      const Status status =
          ParseRowBlock(segment_->header, segment_->path, segment_->OffsetOf(next_block_),
                        buffer_.data() + i * block_bytes, block_bytes, &block);
      if (!status.ok()) {
        segment_->unreadable.store(true);
        Stop();
        return status;
      }
      TF_EMBED_RETURN_IF_ERROR(MoveRows(rule, next_block_, block));
      *rows += block.size;
      ++next_block_;
    }
  }
  if (next_block_ < blocks) return Status();
  // If live rows are left, their index entries match no row of the file. Compaction must not choose
  // the segment again.
  const uint32_t number = segment_->number;
  if (segment_->live.load() > 0) segment_->unreadable.store(true);
  segments_->RetireIfEmpty(number);
  Stop();
  return Status();
}

}  // namespace tf_embed
