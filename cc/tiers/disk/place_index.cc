// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/place_index.h"

#include <mutex>

namespace tf_embed {

PlaceIndex::Found PlaceIndex::Find(int64_t key, uint64_t* statistics) const {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found()) return Found();
  if (statistics != nullptr) {
    for (size_t i = 0; i < statistics_.size(); ++i) {
      statistics[i] = WordsOf(entry.row_id)[i].load(std::memory_order_relaxed);
    }
  }
  return Found{entry.row_id & ~kSharedBit, (entry.row_id & kSharedBit) != 0};
}

RowStatistics::Word* PlaceIndex::WordsOf(uint32_t row_id) const {
  const uint32_t place = row_id & ~kSharedBit;
  return segments_->Of(segments_->NumberOf(place))->statistics.data() +
         segments_->RowOf(place) * statistics_.size();
}

void PlaceIndex::SetWords(uint32_t row_id, const uint64_t* statistics) {
  for (size_t i = 0; i < statistics_.size(); ++i) {
    WordsOf(row_id)[i].store(statistics[i], std::memory_order_relaxed);
  }
}

void PlaceIndex::SetCold(uint32_t row_id, bool cold) {
  const uint32_t place = row_id & ~kSharedBit;
  segments_->Of(segments_->NumberOf(place))->SetCold(segments_->RowOf(place), cold);
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
  if ((row_id & kSharedBit) != 0) {
    shared_.fetch_sub(1, std::memory_order_relaxed);
  } else {
    SetCold(row_id, false);
  }
  return segment->live.fetch_sub(1) == 1 ? number : kNoSegment;
}

Status PlaceIndex::Put(int64_t key, uint32_t place, bool shared, const uint64_t* statistics) {
  const uint32_t row_id = shared ? place | kSharedBit : place;
  const uint64_t hash = HashKey(key);
  uint32_t emptied = kNoSegment;
  {
    std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
    const StripedIndex::Entry entry = index_.Find(key, hash);
    AddLive(place);
    SetWords(place, statistics);
    if (shared) {
      shared_.fetch_add(1, std::memory_order_relaxed);
    } else {
      SetCold(place, true);
    }
    if (entry.found()) {
      index_.Replace(entry, key, row_id);
      emptied = DropLive(entry.row_id);
    } else {
      Status status = index_.Insert(key, hash, row_id);
      if (!status.ok()) {
        DropLive(row_id);
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
  for (size_t i = 0; i < statistics_.size(); ++i) {
    WordsOf(to)[i].store(WordsOf(from)[i].load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
  }
  const uint32_t shared = entry.row_id & kSharedBit;
  if (shared == 0) SetCold(to, true);
  index_.Replace(entry, key, to | shared);
  DropLive(from);  // a shared row stays shared; compaction retires the segment
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

Status PlaceIndex::Shrink() {
  Status status;
  for (size_t stripe = 0; stripe < StripedIndex::kStripes && status.ok(); ++stripe) {
    {
      std::lock_guard<OrderedMutex> lock(index_.StripeMutex(stripe));
      status = index_.Shrink(stripe);
    }
    index_.DropRetired();  // one stripe at a time, to need little extra memory
  }
  return status;
}

PlaceIndex::Shared PlaceIndex::Share(int64_t key, uint32_t place) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & ~kSharedBit) != place) return Shared::kMoved;
  if ((entry.row_id & kSharedBit) != 0) return Shared::kBefore;
  index_.Replace(entry, key, place | kSharedBit);
  SetCold(place, false);
  shared_.fetch_add(1, std::memory_order_relaxed);
  return Shared::kNow;
}

void PlaceIndex::Unshare(int64_t key, const uint64_t* statistics) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & kSharedBit) == 0) return;
  if (statistics != nullptr) SetWords(entry.row_id, statistics);
  index_.Replace(entry, key, entry.row_id & ~kSharedBit);
  SetCold(entry.row_id, true);
  shared_.fetch_sub(1, std::memory_order_relaxed);
}

bool PlaceIndex::AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & kSharedBit) != 0) return false;
  RowStatistics row(statistics_, WordsOf(entry.row_id));
  for (const Statistic statistic : kAllStatistics) {
    if (set.Has(statistic)) row.Set(statistic, statistics[set.IndexOf(statistic)]);
  }
  return true;
}

bool PlaceIndex::NoteUse(int64_t key, const Moment& now) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & kSharedBit) != 0) return false;
  RowStatistics(statistics_, WordsOf(entry.row_id)).Use(now);
  return true;
}

bool PlaceIndex::TakeForSnapshot(int64_t key, const WantedRows& wanted) {
  const uint64_t hash = HashKey(key);
  std::lock_guard<OrderedMutex> lock(index_.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index_.Find(key, hash);
  if (!entry.found() || (entry.row_id & kSharedBit) != 0) return false;
  return RowChange::Take(WordsOf(entry.row_id) + statistics_.IndexOf(Statistic::kChange), wanted);
}

Status PlaceIndex::CollectRanks(EvictionOrder order, size_t one_in, const Rank& low,
                                const Rank& high, RankList* ranks, size_t* below) const {
  Status status;
  // Work in small groups, so that misses on statistics overlap.
  constexpr size_t kTogether = 32;
  int64_t keys[kTogether];
  RowStatistics::Word* words[kTogether];
  size_t count = 0;
  const auto visit_them = [&] {
    for (size_t i = 0; i < count && status.ok(); ++i) {
      const Rank rank = RankOf(order, RowStatistics(statistics_, words[i]), HashKey(keys[i]));
      if (rank < low) {
        ++*below;
      } else if (rank < high || high == kHighestRank) {
        status = ranks->Append(rank);
      }
    }
    count = 0;
  };
  for (size_t i = 0; i < StripedIndex::kStripes / one_in && status.ok(); ++i) {
    const size_t stripe = i * one_in;
    std::lock_guard<OrderedMutex> lock(index_.StripeMutex(stripe));
    index_.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
      if ((row_id & kSharedBit) != 0) return;
      keys[count] = key;
      words[count] = WordsOf(row_id);
      __builtin_prefetch(words[count]);
      if (++count == kTogether) visit_them();
    });
    visit_them();
  }
  return status;
}

Status PlaceIndex::FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                               RankList* expired) {
  Status status;
  index_.ForSome(BucketsToSearch(num_absent), &expiry_cursor_,
                 [&](const Bucket&, int64_t key, uint32_t row_id) {
                   if (!status.ok() || (row_id & kSharedBit) != 0) return;
                   if (policy.Expired(RowStatistics(statistics_, WordsOf(row_id)), now)) {
                     status = expired->Append(Rank(0, HashKey(key)));
                   }
                 });
  return status;
}

}  // namespace tf_embed
