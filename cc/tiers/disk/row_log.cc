// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/row_log.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>

namespace tf_embed {
namespace {

constexpr uint64_t kMostSegmentBytes = uint64_t{64} << 20;
constexpr uint64_t kMostBlockBytes = uint64_t{1} << 30;
constexpr uint32_t kMostSegmentRows = 1 << 20;
constexpr uint32_t kLeastSegmentBlocks = 8;
// Target number of segments. An emptied segment is then a small part of the tier.
constexpr uint64_t kSegments = 16;
// Rows numbered in a segment; enough for any rule, because a page has fewer rows.
constexpr uint32_t kLeastStride = 4096;

uint32_t MostBlocks(const PaddedBlocks& blocks) {
  const uint64_t most =
      std::min<uint64_t>(kMostSegmentBytes / blocks.bytes, kMostSegmentRows / blocks.rows);
  return static_cast<uint32_t>(std::max<uint64_t>(most, 1));
}

// The part of the byte limit reserved for compaction, which needs a few segments before it can free
// space.
uint64_t Reserve(uint64_t most_disk_bytes, uint64_t segment_bytes) {
  return std::min(most_disk_bytes / 4, 2 * segment_bytes);
}

}  // namespace

Status RowLog::NoSpace(uint64_t bytes) const {
  return Status::ResourceExhausted([&] {
    return "The folder '" + folder_->path() + "' has " + std::to_string(disk_bytes()) +
           " bytes of rows and may have " + std::to_string(options_.most_disk_bytes) +
           ": no room for " + std::to_string(bytes) + " bytes more. Of the bound " +
           std::to_string(Reserve(options_.most_disk_bytes, SegmentBytes())) +
           " bytes are kept free for compaction, and " + std::to_string(buffered_) +
           " are for rows that wait to be written. Raise the bound, or erase rows.";
  });
}

Status RowLog::Append(const void* bytes, size_t size) {
  std::memcpy(buffer_.data() + buffered_, bytes, size);  // MakeRoom reserved the space
  buffered_ += size;
  return Status();
}

const char* RowLog::BytesOf(uint32_t block) const {
  return const_cast<AlignedBuffer&>(buffer_).data() + (open_->OffsetOf(block) - buffer_offset_);
}

uint64_t RowLog::SegmentBytes() const {
  const uint64_t wanted =
      std::max<uint64_t>(index_->live_bytes() / kSegments, options_.buffer_bytes / 8);
  return std::min(wanted, kMostSegmentBytes);
}

uint32_t RowLog::BlocksOfNext(const PaddedBlocks& blocks) const {
  const uint64_t wanted = std::max<uint64_t>(SegmentBytes() / blocks.bytes, kLeastSegmentBlocks);
  const uint64_t most = std::min<uint64_t>(MostBlocks(blocks), segments_->stride() / blocks.rows);
  return static_cast<uint32_t>(std::min(wanted, most));
}

Status RowLog::Open(const TierRule& rule) {
  RowFileHeader header;
  header.value_type = static_cast<StoredType>(options_.value_type);
  header.save = next_serial_;
  header.meta.value_type = options_.value_type;
  header.meta.dim = options_.dim;
  header.meta.rule = rule.rule;
  header.padded = true;
  const PaddedBlocks blocks = PaddedBlocks::Of(header);
  if (blocks.bytes > kMostBlockBytes) {
    return Status::InvalidArgument("A row of " + std::to_string(rule.slot_bytes) +
                                   " bytes of slots and a dim of " + std::to_string(options_.dim) +
                                   " is too large for a file.");
  }
  if (segments_->stride() == 1) {
    segments_->SetStride(
        std::max<uint32_t>(kLeastStride, MostBlocks(blocks) * static_cast<uint32_t>(blocks.rows)));
  }
  {
    // The buffers are empty, but a reader may check their size.
    std::lock_guard<OrderedMutex> lock(mutex_);
    const size_t capacity = std::max(options_.buffer_bytes, blocks.bytes);
    TF_EMBED_RETURN_IF_ERROR(buffer_.Resize(blocks.begin + capacity + PaddedBlocks::kEndBytes));
    TF_EMBED_RETURN_IF_ERROR(staged_keys_.Resize(blocks.rows));
    TF_EMBED_RETURN_IF_ERROR(staged_weights_.Resize(blocks.rows * header.weight_bytes()));
    TF_EMBED_RETURN_IF_ERROR(staged_slots_.Resize(blocks.rows * header.slot_bytes()));
    memory_bytes_.store(buffer_.bytes() + staged_keys_.size() * sizeof(int64_t) +
                            staged_weights_.size() + staged_slots_.size(),
                        std::memory_order_relaxed);
  }
  try {
    auto segment =
        std::make_unique<Segment>(folder_, next_serial_, rule.generation, header,
                                  BlocksOfNext(blocks), &disk_bytes_, options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(segment->Init(options_.statistics_per_row));
    if (const int error = folder_->Create(segment->serial, &segment->file)) {
      return FileFailure("Can't make '" + segment->path + "', a file of rows", error);
    }
    ++next_serial_;
    Segment* const opened = segment.get();
    TF_EMBED_RETURN_IF_ERROR(segments_->Add(std::move(segment)));
    std::lock_guard<OrderedMutex> lock(mutex_);
    writer_.emplace(static_cast<ByteSink*>(this), options_.allocator, 0);
    buffered_ = 0;
    buffer_offset_ = 0;
    encoded_blocks_ = 0;
    staged_ = 0;
    finished_ = false;
    Status status;
    try {
      status = writer_->Begin(header);
    } catch (const std::bad_alloc&) {
      status = Status::ResourceExhausted([] { return "No memory for a file of rows."; });
    }
    if (!status.ok()) {
      buffered_ = 0;
      segments_->Retire(opened);
      return status;
    }
    open_ = opened;
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory for a file of rows."; });
  }
  return Status();
}

Status RowLog::Flush() {
  if (buffered_ == 0) return Status();
  if (const int error = open_->file->WriteAll(buffer_.data(), buffered_, buffer_offset_)) {
    return FileFailure("Can't write " + std::to_string(buffered_) + " bytes of rows to '" +
                           open_->path + "', in a folder that has " + std::to_string(disk_bytes()) +
                           " bytes of rows",
                       error);
  }
  open_->file_bytes.fetch_add(buffered_);
  disk_bytes_.fetch_add(buffered_, std::memory_order_relaxed);
  flushed_bytes_.fetch_add(buffered_, std::memory_order_relaxed);
  std::lock_guard<OrderedMutex> lock(mutex_);
  buffer_offset_ += buffered_;
  buffered_ = 0;
  open_->flushed_blocks.store(encoded_blocks_);
  return Status();
}

Status RowLog::EncodeStaged(Purpose purpose) {
  const size_t bytes = open_->blocks.bytes;
  if (options_.most_disk_bytes > 0) {
    const uint64_t reserve =
        purpose == Purpose::kCompaction ? 0 : Reserve(options_.most_disk_bytes, SegmentBytes());
    const uint64_t wanted = bytes + PaddedBlocks::kEndBytes;
    over_bound_ = disk_bytes() + buffered_ + wanted > options_.most_disk_bytes - reserve;
    if (over_bound_) return NoSpace(wanted);
  }
  if (buffered_ + bytes + PaddedBlocks::kEndBytes > buffer_.size()) {
    TF_EMBED_RETURN_IF_ERROR(Flush());
  }
  RowsToWrite rows;
  rows.size = staged_;
  rows.keys = staged_keys_.data();
  rows.weights = staged_weights_.data();
  rows.slots = staged_slots_.data();
  std::lock_guard<OrderedMutex> lock(mutex_);
  TF_EMBED_RETURN_IF_ERROR(writer_->Append(rows));  // in memory: can't fail
  ++encoded_blocks_;
  staged_ = 0;
  return Status();
}

Status RowLog::Seal() {
  if (open_ == nullptr) return Status();
  if (staged_ > 0) TF_EMBED_RETURN_IF_ERROR(EncodeStaged(Purpose::kCompaction));
  if (!finished_) {
    std::lock_guard<OrderedMutex> lock(mutex_);
    TF_EMBED_RETURN_IF_ERROR(writer_->Finish());
    finished_ = true;
  }
  TF_EMBED_RETURN_IF_ERROR(Flush());
  Segment* const sealed = open_;
  const uint32_t number = sealed->number;
  {
    std::lock_guard<OrderedMutex> lock(mutex_);
    open_ = nullptr;
  }
  sealed->checksum = writer_->checksum();
  sealed->sealed.store(true);  // other threads may retire it from here on
  segments_->RetireIfEmpty(number);
  return Status();
}

void RowLog::Drop() {
  if (open_ == nullptr) return;
  Segment* const dropped = open_;
  {
    std::lock_guard<OrderedMutex> lock(mutex_);
    open_ = nullptr;
    buffered_ = 0;
    staged_ = 0;
  }
  segments_->Retire(dropped);
}

Status RowLog::MakeRoom(Purpose purpose, const TierRule& rule) {
  over_bound_ = false;
  for (;;) {
    if (open_ == nullptr) TF_EMBED_RETURN_IF_ERROR(Open(rule));
    if (finished_ || open_->generation != rule.generation ||
        (staged_ == 0 && encoded_blocks_ == open_->most_blocks)) {
      TF_EMBED_RETURN_IF_ERROR(Seal());
    } else if (staged_ < open_->blocks.rows) {
      return Status();
    } else {
      TF_EMBED_RETURN_IF_ERROR(EncodeStaged(purpose));
    }
  }
}

Status RowLog::Stage(Purpose purpose, const TierRule& rule, const RowsToWrite& rows, size_t begin,
                     size_t* staged, uint32_t* first_place) {
  TF_EMBED_RETURN_IF_ERROR(MakeRoom(purpose, rule));
  const size_t weight_bytes = open_->header.weight_bytes();
  const size_t slot_bytes = rule.slot_bytes;
  const size_t count = std::min(rows.size - begin, open_->blocks.rows - staged_);
  std::lock_guard<OrderedMutex> lock(mutex_);
  std::memcpy(staged_keys_.data() + staged_, rows.keys + begin, count * sizeof(int64_t));
  std::memcpy(staged_weights_.data() + staged_ * weight_bytes, rows.weights + begin * weight_bytes,
              count * weight_bytes);
  char* const slots = staged_slots_.data() + staged_ * slot_bytes;
  if (slot_bytes > 0 && rows.slots != nullptr) {
    std::memcpy(slots, rows.slots + begin * slot_bytes, count * slot_bytes);
  } else if (slot_bytes > 0) {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(slots + i * slot_bytes, rule.initial_slots.data(), slot_bytes);
    }
  }
  *first_place =
      segments_->PlaceOf(*open_, encoded_blocks_ * static_cast<uint32_t>(open_->blocks.rows) +
                                     static_cast<uint32_t>(staged_));
  staged_ += count;
  open_->rows.fetch_add(static_cast<uint32_t>(count), std::memory_order_relaxed);
  *staged = count;
  return Status();
}

}  // namespace tf_embed
