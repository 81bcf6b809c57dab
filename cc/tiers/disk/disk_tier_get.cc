// SPDX-License-Identifier: Apache-2.0
// Get. Finds the rows of a batch in the index, sorts them by place, and reads all their blocks in
// parallel. Rows may move meanwhile, so a round has these steps:
//
//     find places -> pin segments -> read and check keys -> make shared, if places still hold
//
// A key whose row has moved goes through another round.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "cc/core/base/first_failure.h"
#include "cc/tiers/disk/disk_tier.h"

namespace tf_embed {

class DiskTier::BatchReader final : public BlockReader::Visitor {
 public:
  BatchReader(DiskTier* tier, const TierRule& rule, const int64_t* keys, After after,
              WholeRows* rows)
      : tier_(tier),
        rule_(rule),
        keys_(keys),
        after_(after),
        rows_(rows),
        wants_(tier->options_.allocator),
        states_(tier->options_.allocator),
        blocks_(tier->options_.allocator),
        reads_(tier->options_.allocator),
        pins_(tier->options_.allocator) {}
  ~BatchReader() override { Unpin(); }

  Status Run(size_t count) {
    TF_EMBED_RETURN_IF_ERROR(FindAll(count));
    TF_EMBED_RETURN_IF_ERROR(rows_->Resize(num_rows_, tier_->weight_bytes_, rule_.slot_bytes,
                                           tier_->options_.statistics.size()));
    for (size_t i = 0; i < num_rows_; ++i) rows_->keys[i] = keys_[wants_[i].key];
    Status status;
    for (int round = 0; num_wants_ > 0 && status.ok(); ++round) {
      status = round < kMostRounds ? Round() : Status::DataLoss("An index of rows is damaged.");
      Unpin();
    }
    if (!status.ok()) {
      for (size_t i = 0; i < num_rows_; ++i) {
        if (states_[i] == State::kNowShared) tier_->index_.Unshare(rows_->keys[i], nullptr);
      }
      return status;
    }
    const size_t words = tier_->options_.statistics.size();
    std::fill_n(rows_->statistics.data(), num_rows_ * words, uint64_t{0});
    for (size_t i = 0; words > 0 && i < num_rows_; ++i) {  // the row may have been erased meanwhile
      tier_->index_.Find(rows_->keys[i], rows_->statistics.data() + i * words);
    }
    DropHoles();
    rows_->size = num_rows_;
    return status;
  }

  void Visit(size_t i, const char* bytes, int error) override {
    const Wanted& wanted = blocks_[i];
    const Segment& segment = *wanted.segment;
    if (error == 0) {
      TakeBlock(wanted, bytes);
    } else {
      failed_keys_.fetch_add(wanted.count, std::memory_order_relaxed);
      failure_.Note(FileFailure("Can't read rows from '" + segment.path + "'", error));
    }
  }

 private:
  static constexpr int kMostRounds = 1000;

  enum class State : uint8_t {
    kWanted,
    kRead,
    kOtherKey,   // another key at its place
    kNoRow,      // no row at its place
    kShared,     // read; was shared before
    kNowShared,  // read; shared by this call
    kGone,       // erased meanwhile
  };
  struct Want {
    uint32_t place;
    uint32_t key;  // index in the batch
    uint32_t row;  // index in the output rows
  };
  // A block and its wants, [first, first + count).
  struct Wanted {
    Segment* segment;
    uint32_t block;
    uint32_t first;
    uint32_t count;
  };

  Status FindAll(size_t count) {
    constexpr size_t kAhead = 16;
    TF_EMBED_RETURN_IF_ERROR(wants_.Resize(count));
    for (size_t i = 0; i < count; ++i) {
      if (i + kAhead < count) tier_->index_.Prefetch(keys_[i + kAhead]);
      const PlaceIndex::Found found = tier_->index_.Find(keys_[i]);
      if (!found.found()) continue;
      const uint32_t row = static_cast<uint32_t>(num_wants_);
      wants_[num_wants_++] = {found.place, static_cast<uint32_t>(i), row};
    }
    num_rows_ = num_wants_;
    TF_EMBED_RETURN_IF_ERROR(states_.Resize(num_rows_));
    std::fill_n(states_.data(), num_rows_, State::kWanted);
    TF_EMBED_RETURN_IF_ERROR(blocks_.Resize(num_rows_));
    return reads_.Resize(num_rows_);
  }

  Status Round() {
    std::sort(wants_.data(), wants_.data() + num_wants_,
              [](const Want& one, const Want& other) { return one.place < other.place; });
    TF_EMBED_RETURN_IF_ERROR(FindBlocks());
    TakeFromMemory();
    size_t most_bytes = 0;
    for (size_t i = 0; i < num_blocks_; ++i) {
      const Segment& segment = *blocks_[i].segment;
      reads_[i] = {segment.file.get(), segment.OffsetOf(blocks_[i].block),
                   static_cast<uint32_t>(segment.blocks.bytes)};
      most_bytes = std::max(most_bytes, segment.blocks.bytes);
      tier_->bytes_read_.fetch_add(segment.blocks.bytes, std::memory_order_relaxed);
    }
    tier_->read_requests_.fetch_add(num_blocks_, std::memory_order_relaxed);
    if (num_blocks_ > 0) {
      TF_EMBED_RETURN_IF_ERROR(tier_->reader_->Read(reads_.data(), num_blocks_, most_bytes, this));
    }
    return Conclude();
  }

  // Pins the segments of the wants and lists their blocks.
  Status FindBlocks() {
    const SegmentList& segments = tier_->segments_;
    size_t num_segments = 0;
    for (size_t i = 0; i < num_wants_; ++i) {
      num_segments +=
          i == 0 || segments.NumberOf(wants_[i].place) != segments.NumberOf(wants_[i - 1].place);
    }
    TF_EMBED_RETURN_IF_ERROR(pins_.Resize(num_segments));
    num_blocks_ = 0;
    Segment* segment = nullptr;
    for (uint32_t i = 0; i < num_wants_; ++i) {
      const uint32_t number = segments.NumberOf(wants_[i].place);
      if (i == 0 || number != segments.NumberOf(wants_[i - 1].place)) {
        segment = tier_->segments_.Pin(number);
        if (segment != nullptr) pins_[num_pins_++] = segment;
      }
      if (segment == nullptr) {
        states_[wants_[i].row] = State::kNoRow;
        continue;
      }
      const uint32_t block =
          segments.RowOf(wants_[i].place) / static_cast<uint32_t>(segment->blocks.rows);
      Wanted* const last = num_blocks_ == 0 ? nullptr : &blocks_[num_blocks_ - 1];
      if (last != nullptr && last->segment == segment && last->block == block) {
        ++last->count;
      } else {
        blocks_[num_blocks_++] = {segment, block, i, 1};
      }
    }
    return Status();
  }

  // Copies rows that are still in memory, and keeps the blocks that must be read.
  void TakeFromMemory() {
    const RowLog& log = tier_->log_;
    std::lock_guard<OrderedMutex> lock(log.mutex());
    size_t kept = 0;
    for (size_t i = 0; i < num_blocks_; ++i) {
      const Wanted wanted = blocks_[i];
      if (wanted.block < wanted.segment->flushed_blocks.load()) {
        blocks_[kept++] = wanted;
      } else if (wanted.segment != log.open_segment() || wanted.block > log.encoded_blocks()) {
        NoRows(wanted);
      } else if (wanted.block < log.encoded_blocks()) {
        TakeBlock(wanted, log.BytesOf(wanted.block));
      } else {
        RowBlock staged(nullptr);
        staged.size = log.staged();
        staged.keys = log.staged_keys();
        staged.weights = log.staged_weights();
        staged.slots = log.staged_slots();
        TakeRows(wanted, staged);
      }
    }
    num_blocks_ = kept;
  }

  void NoRows(const Wanted& wanted) {
    for (uint32_t i = 0; i < wanted.count; ++i) {
      states_[wants_[wanted.first + i].row] = State::kNoRow;
    }
  }

  void TakeBlock(const Wanted& wanted, const char* bytes) {
    const Segment& segment = *wanted.segment;
    RowBlock block(nullptr);  // rows without strings take no memory
    Status status = ParseRowBlock(segment.header, segment.path, segment.OffsetOf(wanted.block),
                                  bytes, segment.blocks.bytes, &block);
    if (status.ok()) {
      TakeRows(wanted, block);
    } else {
      failed_keys_.fetch_add(wanted.count, std::memory_order_relaxed);
      failure_.Note(std::move(status));
    }
  }

  void TakeRows(const Wanted& wanted, const RowBlock& block) {
    const Segment& segment = *wanted.segment;
    const size_t weight_bytes = tier_->weight_bytes_;
    const size_t slot_bytes = rule_.slot_bytes;
    for (uint32_t i = wanted.first; i < wanted.first + wanted.count; ++i) {
      const Want& want = wants_[i];
      const size_t number = tier_->segments_.RowOf(want.place) - wanted.block * segment.blocks.rows;
      if (number >= block.size) {
        states_[want.row] = State::kNoRow;
      } else if (block.keys[number] != keys_[want.key]) {
        states_[want.row] = State::kOtherKey;
      } else {
        std::memcpy(rows_->weights.data() + want.row * weight_bytes,
                    block.weights + number * weight_bytes, weight_bytes);
        if (slot_bytes > 0) {
          const char* const slots = segment.generation == rule_.generation
                                        ? block.slots + number * slot_bytes
                                        : rule_.initial_slots.data();
          std::memcpy(rows_->slots.data() + want.row * slot_bytes, slots, slot_bytes);
        }
        states_[want.row] = State::kRead;
      }
    }
  }

  // Makes rows shared, and keeps the wants that need another round.
  Status Conclude() {
    if (failure_.failed()) return Failure();
    size_t kept = 0;
    for (size_t i = 0; i < num_wants_; ++i) {
      Want want = wants_[i];
      const int64_t key = keys_[want.key];
      State& state = states_[want.row];
      if (state == State::kRead) {
        if (after_ == After::kCold) continue;
        const PlaceIndex::Shared shared = tier_->index_.Share(key, want.place);
        if (shared != PlaceIndex::Shared::kMoved) {
          state = shared == PlaceIndex::Shared::kNow ? State::kNowShared : State::kShared;
          continue;
        }
      }
      const PlaceIndex::Found found = tier_->index_.Find(key);
      if (!found.found()) {
        state = State::kGone;
        continue;
      }
      if (state == State::kOtherKey && found.place == want.place) {
        // The pin keeps the place from being reused, so it still denotes the row that was read.
        const Segment* const segment = tier_->segments_.Of(tier_->segments_.NumberOf(want.place));
        failed_keys_.fetch_add(1, std::memory_order_relaxed);
        failure_.Note(Status::DataLoss("'" + segment->path +
                                       "' is damaged: it has another row in place of one."));
        continue;
      }
      state = State::kWanted;
      want.place = found.place;
      wants_[kept++] = want;
    }
    num_wants_ = kept;
    return failure_.failed() ? Failure() : Status();
  }

  Status Failure() {
    const Status first = failure_.Take();
    const std::string message = first.message() + " Keys of the batch that can't be read: " +
                                std::to_string(failed_keys_.load()) + " of " +
                                std::to_string(num_rows_) + ".";
    if (first.code() == StatusCode::kDataLoss) return Status::DataLoss(message);
    if (first.code() == StatusCode::kUnavailable) return Status::Unavailable(message);
    return Status::ResourceExhausted([&] { return message; });
  }

  void DropHoles() {
    for (size_t i = 0; i < num_rows_;) {
      if (states_[i] != State::kGone) {
        ++i;
        continue;
      }
      const size_t last = --num_rows_;
      states_[i] = states_[last];
      rows_->keys[i] = rows_->keys[last];
      MoveBytes(&rows_->weights, tier_->weight_bytes_, last, i);
      MoveBytes(&rows_->slots, rule_.slot_bytes, last, i);
      const size_t words = tier_->options_.statistics.size();
      std::copy_n(rows_->statistics.data() + last * words, words,
                  rows_->statistics.data() + i * words);
    }
  }
  static void MoveBytes(Buffer<char>* rows, size_t bytes, size_t from, size_t to) {
    if (bytes > 0 && from != to) {
      std::memcpy(rows->data() + to * bytes, rows->data() + from * bytes, bytes);
    }
  }

  void Unpin() {
    while (num_pins_ > 0) tier_->segments_.Unpin(pins_[--num_pins_]);
  }

  DiskTier* const tier_;
  const TierRule& rule_;
  const int64_t* const keys_;
  const After after_;
  WholeRows* const rows_;

  size_t num_rows_ = 0;
  size_t num_wants_ = 0;
  size_t num_blocks_ = 0;
  size_t num_pins_ = 0;
  Buffer<Want> wants_;
  Buffer<State> states_;  // by row
  Buffer<Wanted> blocks_;
  Buffer<BlockRead> reads_;
  Buffer<Segment*> pins_;
  FirstFailure failure_;
  std::atomic<size_t> failed_keys_{0};
};

Status DiskTier::Get(const ExecContext&, const int64_t* keys, size_t count, After after,
                     WholeRows* rows) {
  rows->size = 0;
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  const std::shared_ptr<const TierRule> rule = this->rule();
  BatchReader reader(this, *rule, keys, after, rows);
  TF_EMBED_RETURN_IF_ERROR(reader.Run(count));
  rows_read_.fetch_add(rows->size, std::memory_order_relaxed);
  return Status();
}

}  // namespace tf_embed
