// SPDX-License-Identifier: Apache-2.0
#include "cc/disk/place_index.h"

#include <mutex>

namespace tf_embed {

PlaceIndex::Found PlaceIndex::Find(int64_t key) const {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found()) return Found();
  return Found{entry.row_id & ~kSharedBit, (entry.row_id & kSharedBit) != 0};
}

void PlaceIndex::AddLive(uint32_t place) {
  Segment* const segment = segments_->Of(segments_->NumberOf(place));
  segment->live.fetch_add(1);
  live_bytes_.fetch_add(segment->row_bytes, std::memory_order_relaxed);
}

uint32_t PlaceIndex::DropLive(uint32_t row_id) {
  const uint32_t number = segments_->NumberOf(row_id & ~kSharedBit);
  Segment* const segment = segments_->Of(number);
  live_bytes_.fetch_sub(segment->row_bytes, std::memory_order_relaxed);
  if ((row_id & kSharedBit) != 0) shared_.fetch_sub(1, std::memory_order_relaxed);
  return segment->live.fetch_sub(1) == 1 ? number : kNoSegment;
}

Status PlaceIndex::Put(int64_t key, uint32_t place) {
  const uint64_t hash = HashKey(key);
  uint32_t emptied = kNoSegment;
  {
    std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
    const StripedIndex::Entry entry = index_.Find(key, hash);
    AddLive(place);
    if (entry.found()) {
      index_.Replace(entry, key, place);
      emptied = DropLive(entry.row_id);
    } else {
      Status status = index_.Insert(key, hash, place);
      if (!status.ok()) {
        DropLive(place);
        return status;
      }
    }
  }
  if (index_.has_retired()) index_.DropRetired();
  if (emptied != kNoSegment) segments_->RetireIfEmpty(emptied);
  return Status();
}

bool PlaceIndex::Move(int64_t key, uint32_t from, uint32_t to) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & ~kSharedBit) != from) return false;
  AddLive(to);
  index_.Replace(entry, key, to | (entry.row_id & kSharedBit));
  DropLive(from);  // a row that is shared stays so; whoever compacts retires the segment
  return true;
}

bool PlaceIndex::Erase(int64_t key) {
  const uint64_t hash = HashKey(key);
  uint32_t emptied;
  {
    std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
    const uint32_t row_id = index_.Erase(key, hash);
    if (row_id == kNoRowId) return false;
    emptied = DropLive(row_id);
  }
  if (emptied != kNoSegment) segments_->RetireIfEmpty(emptied);
  return true;
}

void PlaceIndex::Clear() {
  for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
    std::lock_guard<OrderedMutex> lock(index_.StripeMutex(stripe));
    index_.ForEach(stripe, [&](const Bucket&, int64_t, uint32_t row_id) { DropLive(row_id); });
    index_.EraseStripe(stripe);
  }
  index_.DropRetired();
}

PlaceIndex::Shared PlaceIndex::Share(int64_t key, uint32_t place) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & ~kSharedBit) != place) return Shared::kMoved;
  if ((entry.row_id & kSharedBit) != 0) return Shared::kBefore;
  index_.Replace(entry, key, place | kSharedBit);
  shared_.fetch_add(1, std::memory_order_relaxed);
  return Shared::kNow;
}

void PlaceIndex::Unshare(int64_t key) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & kSharedBit) == 0) return;
  index_.Replace(entry, key, entry.row_id & ~kSharedBit);
  shared_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace tf_embed
