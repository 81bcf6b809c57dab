// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/memory/two_tiers.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <utility>

namespace tf_embed {
namespace {

using Shared = std::shared_lock<FairSharedMutex>;
using Alone = std::unique_lock<FairSharedMutex>;
using Writing = std::lock_guard<OrderedMutex>;

// Rows put together: at most this many, and at most this share of the bound.
constexpr size_t kPutTogether = 4096;
constexpr size_t kPutDivisor = 8;
// Keys looked up together in the tier below.
constexpr size_t kLookedForTogether = 256;
// Rows moved down together.
constexpr size_t kMovedTogether = 4096;
// Extra room to make, as a share of the bound, so that few writes have to make room.
constexpr size_t kSpareDivisor = 32;

// The sizes of one row.
struct RowSizes {
  size_t weight_bytes;
  size_t slot_bytes;
  size_t words;
};

// Copies a row to the end of `to`. REQUIRES: `to` has room.
void Append(const WholeRows& from, size_t i, const RowSizes& sizes, WholeRows* to) {
  const size_t end = to->size++;
  to->keys[end] = from.keys[i];
  std::memcpy(to->weights.data() + end * sizes.weight_bytes,
              from.weights.data() + i * sizes.weight_bytes, sizes.weight_bytes);
  if (sizes.slot_bytes > 0) {
    std::memcpy(to->slots.data() + end * sizes.slot_bytes, from.slots.data() + i * sizes.slot_bytes,
                sizes.slot_bytes);
  }
  std::copy_n(from.statistics.data() + i * sizes.words, sizes.words,
              to->statistics.data() + end * sizes.words);
}

}  // namespace

Status TwoTiers::Create(const MemoryTierOptions& options, std::unique_ptr<LowerTier> below,
                        std::unique_ptr<TwoTiers>* tier) {
  std::unique_ptr<MemoryTier> above;
  TF_EMBED_RETURN_IF_ERROR(MemoryTier::Create(options, &above));
  try {
    tier->reset(new TwoTiers(options, std::move(above), std::move(below)));
  } catch (const std::bad_alloc&) {
    return NoMemoryForRow(options.table, 0);
  }
  return Status();
}

TwoTiers::TwoTiers(const MemoryTierOptions& options, std::unique_ptr<MemoryTier> above,
                   std::unique_ptr<LowerTier> below)
    : options_(options), above_(std::move(above)), below_(std::move(below)) {}

void TwoTiers::Contains(const int64_t* keys, size_t count, bool* exists) const {
  const Shared inside(inside_);
  const auto look = [&] {
    above_->Contains(keys, count, exists);
    bool all = true;
    for (size_t next = 0; next < count;) {
      int64_t absent[kLookedForTogether];
      size_t places[kLookedForTogether];
      bool found[kLookedForTogether];
      size_t num_absent = 0;
      for (; next < count && num_absent < kLookedForTogether; ++next) {
        if (exists[next]) continue;
        absent[num_absent] = keys[next];
        places[num_absent++] = next;
      }
      below_->Contains(absent, num_absent, found);
      for (size_t i = 0; i < num_absent; ++i) {
        exists[places[i]] = found[i];
        all = all && found[i];
      }
    }
    return all;
  };
  const uint64_t ups = ups_.load(std::memory_order_acquire);
  if (look() || ups == ups_.load(std::memory_order_acquire)) return;
  const Writing writing(writers_);
  look();
}

Status TwoTiers::GetFromBoth(const ExecContext& context, const int64_t* keys, size_t count,
                             After after, WholeRows* rows, bool* missed) const {
  const uint64_t ups = ups_.load(std::memory_order_acquire);
  *missed = false;
  // Makes room for all keys. Rows become shared only once nothing can fail.
  TF_EMBED_RETURN_IF_ERROR(above_->Get(context, keys, count, After::kCold, rows));
  const size_t num_above = rows->size;
  if (num_above < count && below_->size() > 0) {
    Buffer<int64_t> got(options_.allocator);
    Buffer<int64_t> absent(options_.allocator);
    WholeRows lower(options_.allocator);
    Status status = got.Resize(num_above);
    if (status.ok()) status = absent.Resize(count);
    size_t num_absent = 0;
    if (status.ok()) {
      std::copy_n(rows->keys.data(), num_above, got.data());
      std::sort(got.data(), got.data() + num_above);
      for (size_t i = 0; i < count; ++i) {
        if (std::binary_search(got.data(), got.data() + num_above, keys[i])) continue;
        absent[num_absent++] = keys[i];
      }
      status = below_->Get(context, absent.data(), num_absent, after, &lower);
    }
    if (!status.ok()) {
      rows->size = 0;
      return status;
    }
    const RowSizes sizes{options_.dim * SizeOf(options_.value_type), slot_bytes(),
                         options_.statistics.size()};
    for (size_t i = 0; i < lower.size; ++i) Append(lower, i, sizes, rows);
  }
  if (after == After::kShared) above_->Share(rows->keys.data(), num_above);
  *missed = rows->size < count && ups != ups_.load(std::memory_order_acquire);
  return Status();
}

Status TwoTiers::Get(const ExecContext& context, const int64_t* keys, size_t count, After after,
                     WholeRows* rows) {
  const Shared inside(inside_);
  bool missed = true;
  if (after == After::kCold) {
    TF_EMBED_RETURN_IF_ERROR(GetFromBoth(context, keys, count, after, rows, &missed));
  }
  if (!missed) return Status();
  const Writing writing(writers_);
  return GetFromBoth(context.InSerial(), keys, count, after, rows, &missed);
}

Status TwoTiers::MoveDown(const ExecContext& context, const int64_t* keys, size_t count) {
  WholeRows rows(options_.allocator);
  downs_.fetch_add(1, std::memory_order_release);
  Status status = above_->Get(context, keys, count, After::kCold, &rows);
  if (status.ok()) {
    status = below_->Put(context, rows, After::kCold);
    (status.ok() ? static_cast<LowerTier*>(above_.get()) : below_.get())
        ->Erase(rows.keys.data(), rows.size);
  }
  downs_.fetch_add(1, std::memory_order_release);
  return status;
}

Status TwoTiers::MakeRoom(const ExecContext& context, const WholeRows* coming) {
  const size_t capacity = above_->capacity();
  const size_t count = coming == nullptr ? 0 : coming->size;
  Buffer<int64_t> cold(options_.allocator);
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(count));
  for (;;) {
    size_t wanted = 0;
    if (count > 0) above_->Contains(coming->keys.data(), count, exists.data());
    for (size_t i = 0; i < count; ++i) wanted += exists[i] ? 0 : 1;
    const size_t size = above_->size();
    if (size + wanted <= capacity || size == 0) return Status();
    const size_t most = size + wanted - capacity + capacity / kSpareDivisor;
    size_t num_cold;
    size_t num_forgotten;
    TF_EMBED_RETURN_IF_ERROR(
        above_->Sweep(std::min(most, kMovedTogether), &cold, &num_cold, &num_forgotten));
    if (num_cold + num_forgotten == 0) return Status();
    if (num_cold > 0) TF_EMBED_RETURN_IF_ERROR(MoveDown(context, cold.data(), num_cold));
  }
}

Status TwoTiers::PutSome(const ExecContext& context, const WholeRows& rows, size_t begin,
                         size_t end, After after) {
  const RowSizes sizes{options_.dim * SizeOf(options_.value_type), slot_bytes(),
                       options_.statistics.size()};
  WholeRows upper(options_.allocator);
  WholeRows lower(options_.allocator);
  for (WholeRows* const part : {&upper, &lower}) {
    TF_EMBED_RETURN_IF_ERROR(
        part->Resize(end - begin, sizes.weight_bytes, sizes.slot_bytes, sizes.words));
  }
  uint64_t words[StatisticSet::kMax];
  const bool any_below = after == After::kCold && below_->size() > 0;
  for (size_t i = begin; i < end; ++i) {
    // A scan that has reached the tier below must meet the rows that were cold there throughout.
    const bool is_below = any_below && below_->FindStatistics(rows.keys[i], words);
    Append(rows, i, sizes, is_below ? &lower : &upper);
  }
  if (lower.size > 0) TF_EMBED_RETURN_IF_ERROR(below_->Put(context, lower, after));
  if (upper.size == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, &upper));
  const Status status = above_->Put(context, upper, after);
  if (status.ok()) {
    ups_.fetch_add(1, std::memory_order_release);
    below_->Erase(upper.keys.data(), upper.size);
    return status;
  }
  // Some rows may be above, although the Put has failed. These leave the tier below, one by one.
  for (size_t i = 0; i < upper.size; ++i) {
    bool exists;
    above_->Contains(upper.keys.data() + i, 1, &exists);
    if (!exists) continue;
    ups_.fetch_add(1, std::memory_order_release);
    below_->Erase(upper.keys.data() + i, 1);
  }
  return status;
}

Status TwoTiers::Put(const ExecContext& context, const WholeRows& rows, After after) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  if (rows.slots.size() < rows.size * slot_bytes()) {
    return Status::FailedPrecondition("Rows for " + name() +
                                      " have other slots than its rule, which was changed.");
  }
  const ExecContext serial = context.InSerial();
  const size_t together =
      std::max<size_t>(1, std::min(kPutTogether, above_->capacity() / kPutDivisor));
  for (size_t begin = 0; begin < rows.size; begin += together) {
    const size_t end = std::min(rows.size, begin + together);
    TF_EMBED_RETURN_IF_ERROR(PutSome(serial, rows, begin, end, after));
  }
  return Status();
}

void TwoTiers::Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  above_->Unshare(keys, count, statistics);
  below_->Unshare(keys, count, statistics);
}

void TwoTiers::Erase(const int64_t* keys, size_t count) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  above_->Erase(keys, count);
  below_->Erase(keys, count);
}

bool TwoTiers::FindStatistics(int64_t key, uint64_t* statistics) const {
  const Shared inside(inside_);
  const auto find = [&] {
    return above_->FindStatistics(key, statistics) || below_->FindStatistics(key, statistics);
  };
  const uint64_t ups = ups_.load(std::memory_order_acquire);
  if (find()) return true;
  if (ups == ups_.load(std::memory_order_acquire)) return false;
  const Writing writing(writers_);
  return find();
}

bool TwoTiers::AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  return above_->AssignStatistics(key, set, statistics) ||
         below_->AssignStatistics(key, set, statistics);
}

bool TwoTiers::NoteUse(int64_t key, const Moment& now) {
  const Shared inside(inside_);
  bool above = false;
  const auto note = [&] {
    above = above_->NoteUse(key, now);
    return above || below_->NoteUse(key, now);
  };
  // A lookup waits for the disk only if rows went up, or if this row may be going down. A use that
  // is noted twice counts once, because both notes are of the same step.
  const uint64_t ups = ups_.load(std::memory_order_acquire);
  const uint64_t downs = downs_.load(std::memory_order_acquire);
  const bool noted = note();
  const bool moved = above ? downs % 2 == 1 || downs != downs_.load(std::memory_order_acquire)
                           : !noted && ups != ups_.load(std::memory_order_acquire);
  if (!moved) return noted;
  const Writing writing(writers_);
  return note();
}

bool TwoTiers::TakeForSnapshot(int64_t key, const WantedRows& wanted) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  return above_->TakeForSnapshot(key, wanted) || below_->TakeForSnapshot(key, wanted);
}

Status TwoTiers::LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                          LinkedRows* rows) {
  const Shared inside(inside_);
  return below_->LinkNext(wanted, linker, cursor, rows);
}

Status TwoTiers::TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  return below_->TakeLinked(wanted, cursor, rows);
}

Status TwoTiers::CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                              RankList* ranks, size_t* below) const {
  const Shared inside(inside_);
  const Writing writing(writers_);  // keeps rows from moving, and so from being counted twice
  TF_EMBED_RETURN_IF_ERROR(above_->CollectRanks(order, one_in, low, high, ranks, below));
  return below_->CollectRanks(order, one_in, low, high, ranks, below);
}

Status TwoTiers::FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                             RankList* expired) {
  const Shared inside(inside_);
  const Writing writing(writers_);
  TF_EMBED_RETURN_IF_ERROR(above_->FindExpired(policy, now, num_absent, expired));
  return below_->FindExpired(policy, now, num_absent, expired);
}

Status TwoTiers::Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
                      WholeRows* rows) const {
  const Shared inside(inside_);
  ExportCursor part{cursor->next & ~kBelow, false, cursor->linked};
  if ((cursor->next & kBelow) == 0) {
    TF_EMBED_RETURN_IF_ERROR(above_->Scan(max_rows, wanted, &part, rows));
    cursor->next = part.done ? kBelow : part.next;
    return Status();
  }
  TF_EMBED_RETURN_IF_ERROR(below_->Scan(max_rows, wanted, &part, rows));
  cursor->next = part.next | kBelow;
  cursor->done = part.done;
  return Status();
}

Status TwoTiers::SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) {
  const Alone inside(inside_);
  const auto change_above = [&] { return above_->SetRule(rule, change_cache); };
  TF_EMBED_RETURN_IF_ERROR(below_->SetRule(rule, std::cref(change_above)));
  slot_bytes_ = rule.slots_per_row() * SlotSize(options_.value_type);
  // Fewer rows fit if they are larger. Excess rows that can't move down now stay until they can.
  const Writing writing(writers_);
  (void)MakeRoom(ExecContext::Serial(), nullptr);
  return Status();
}

Status TwoTiers::Clear() {
  const Alone inside(inside_);
  TF_EMBED_RETURN_IF_ERROR(below_->Clear());
  return above_->Clear();
}

Status TwoTiers::Compact(const ExecContext& context) {
  const Shared inside(inside_);
  TF_EMBED_RETURN_IF_ERROR(above_->Compact(context));
  return below_->Compact(context);
}

LowerTierStats TwoTiers::Stats() const {
  const Shared inside(inside_);
  const LowerTierStats above = above_->Stats();
  LowerTierStats stats = below_->Stats();
  stats.rows += above.rows;
  stats.shared_rows += above.shared_rows;
  stats.index_bytes += above.index_bytes;
  stats.buffer_bytes += above.buffer_bytes;
  stats.live_bytes += above.live_bytes;
  stats.host_rows += above.host_rows;
  stats.host_bytes += above.host_bytes;
  return stats;
}

}  // namespace tf_embed
