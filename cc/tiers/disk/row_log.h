// SPDX-License-Identifier: Apache-2.0
// The end of a tier's log, to which rows are appended.
//
//     staged rows -> blocks in the write buffer -> the file of the open segment
//
// Rows are staged until they fill a block. Blocks wait in the buffer until it is full, then go to
// the file in one write. RowFileWriter defines the format. A row has its final place from staging
// on, and readers find it at each stage.
//
// A failed write loses nothing: blocks stay buffered and rows stay staged. The next append retries
// the write. Each finished step is recorded, so that it runs only once.
//
// Appends require the tier's mutex of writers (LockRank::kRowLog). Readers hold mutex() while they
// access data in memory. No I/O runs under it.
#ifndef TF_EMBED_CC_TIERS_DISK_ROW_LOG_H_
#define TF_EMBED_CC_TIERS_DISK_ROW_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/files/row_file.h"
#include "cc/tiers/disk/aligned_buffer.h"
#include "cc/tiers/disk/folder.h"
#include "cc/tiers/disk/place_index.h"
#include "cc/tiers/disk/segment.h"

namespace tf_embed {

// The rule whose slots rows have. Immutable: each new rule is a new object. Rows in segments of an
// older generation have initial slots.
struct TierRule {
  explicit TierRule(Allocator* allocator) : initial_slots(allocator) {}

  RuleSlots rule;
  uint64_t generation = 0;
  size_t slot_bytes = 0;
  Buffer<char> initial_slots;  // of a row, in the compute type
};

class RowLog final : private ByteSink {
 public:
  struct Options {
    DataType value_type = DataType::kFloat;
    size_t dim = 1;
    size_t buffer_bytes = 0;
    uint64_t most_disk_bytes = 0;  // 0: unlimited
    size_t statistics_per_row = 0;
    Allocator* allocator = nullptr;
  };
  // The purpose of an append. Only compaction may use the reserve, because it ends up freeing
  // space.
  enum class Purpose : uint8_t { kPut, kCompaction };

  RowLog(const Options& options, Folder* folder, SegmentList* segments, const PlaceIndex* index)
      : options_(options),
        folder_(folder),
        segments_(segments),
        index_(index),
        buffer_(options.allocator),
        staged_keys_(options.allocator),
        staged_weights_(options.allocator),
        staged_slots_(options.allocator) {}

  // Stages at least one row from `begin` on, and as many as fit in a block. Null `slots` means
  // initial slots. A failure loses nothing; over_bound() tells whether it was the byte limit.
  Status Stage(Purpose purpose, const TierRule& rule, const RowsToWrite& rows, size_t begin,
               size_t* staged, uint32_t* first_place);
  bool over_bound() const { return over_bound_; }
  // Seals the open segment, if any.
  Status Seal();
  // Drops the open segment and its buffered rows. REQUIRES: no key has a place in it.
  void Drop();

  // Whether a row of the open segment was erased or replaced.
  bool OpenHasGarbage() const {
    return open_ != nullptr && open_->live.load() < open_->rows.load();
  }
  // Greater than the serial number of every segment.
  uint64_t next_serial() const { return next_serial_; }

  // Approximate size of a segment opened now.
  uint64_t SegmentBytes() const;

  // For readers, under mutex().
  OrderedMutex& mutex() const { return mutex_; }
  const Segment* open_segment() const { return open_; }
  uint32_t encoded_blocks() const { return encoded_blocks_; }
  // A block that is not yet in the file.
  const char* BytesOf(uint32_t block) const;
  // Rows of the next block.
  size_t staged() const { return staged_; }
  const int64_t* staged_keys() const { return staged_keys_.data(); }
  const char* staged_weights() const { return staged_weights_.data(); }
  const char* staged_slots() const { return staged_slots_.data(); }

  // Callable at any time.
  uint64_t buffer_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }
  uint64_t disk_bytes() const { return disk_bytes_.load(std::memory_order_relaxed); }
  uint64_t flushed_bytes() const { return flushed_bytes_.load(std::memory_order_relaxed); }
  std::atomic<uint64_t>* disk_bytes_counter() { return &disk_bytes_; }

 private:
  Status Append(const void* bytes, size_t size) override;  // to the buffer

  // Makes room for a staged row of the rule.
  Status MakeRoom(Purpose purpose, const TierRule& rule);
  Status Open(const TierRule& rule);
  Status EncodeStaged(Purpose purpose);
  Status Flush();
  uint32_t BlocksOfNext(const PaddedBlocks& blocks) const;
  Status NoSpace(uint64_t bytes) const;

  const Options options_;
  Folder* const folder_;
  SegmentList* const segments_;
  const PlaceIndex* const index_;

  mutable OrderedMutex mutex_{LockRank::kLogTail};
  // Written under both mutexes, so either suffices for reads.
  Segment* open_ = nullptr;
  AlignedBuffer buffer_;
  size_t buffered_ = 0;         // bytes in the buffer
  uint64_t buffer_offset_ = 0;  // file offset of the buffer's first byte
  uint32_t encoded_blocks_ = 0;
  size_t staged_ = 0;
  Buffer<int64_t> staged_keys_;
  Buffer<char> staged_weights_;
  Buffer<char> staged_slots_;

  // Guarded by the writers' mutex.
  std::optional<RowFileWriter> writer_;
  bool finished_ = false;  // the open segment's footer is in the buffer
  bool over_bound_ = false;
  uint64_t next_serial_ = 1;

  std::atomic<uint64_t> memory_bytes_{0};
  std::atomic<uint64_t> disk_bytes_{0};
  std::atomic<uint64_t> flushed_bytes_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_ROW_LOG_H_
