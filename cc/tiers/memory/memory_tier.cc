// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/memory/memory_tier.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "cc/core/base/hash.h"
#include "cc/core/rows/stored_slots.h"

namespace tf_embed {
namespace {

using Shared = std::shared_lock<FairSharedMutex>;
using Alone = std::unique_lock<FairSharedMutex>;

// Prefetch distance for buckets, in keys.
constexpr size_t kAhead = 16;
// Buckets that the hand passes at a time, under a stripe's mutex.
constexpr size_t kBucketsOfSweep = 64;
// Spare places to make, as a share of the rows, so that few writes have to make places.
constexpr size_t kSpareDivisor = 32;

}  // namespace

Status MemoryTier::Create(const MemoryTierOptions& options, std::unique_ptr<MemoryTier>* tier) {
  try {
    tier->reset(new MemoryTier(options));
  } catch (const std::bad_alloc&) {
    return NoMemoryForRow(options.table, 0);
  }
  size_t capacity;
  TF_EMBED_RETURN_IF_ERROR((*tier)->CheckCapacity(RuleSlots(), &capacity));
  (*tier)->capacity_ = capacity;
  return Status();
}

MemoryTier::MemoryTier(const MemoryTierOptions& options)
    : options_(options),
      name_("the host memory of table '" + options.table + "'"),
      content_(
          new Content(options.allocator, options.init_size, LayoutOf(RuleSlots()), RuleSlots())) {}

RowLayout MemoryTier::LayoutOf(const RuleSlots& rule) const {
  RowLayout layout(options_.value_type, options_.dim, rule, options_.statistics.size());
  layout.has_marks = true;
  return layout;
}

Status MemoryTier::CheckCapacity(const RuleSlots& rule, size_t* capacity) const {
  const size_t row_bytes =
      LayoutOf(rule).stride + options_.statistics.size() * sizeof(uint64_t) + sizeof(RowMark::Byte);
  *capacity = options_.most_bytes / row_bytes;
  if (*capacity > 0) return Status();
  return Status::InvalidArgument(
      "`host_bytes` must have room for a row of table '" + options_.table + "', which takes " +
      std::to_string(row_bytes) +
      " bytes. Received: host_bytes=" + std::to_string(options_.most_bytes) + " for each shard.");
}

template <typename Visit>
bool MemoryTier::WithRow(int64_t key, const Visit& visit) const {
  const uint64_t hash = HashKey(key);
  const StripedIndex& index = content_->index;
  const std::lock_guard<OrderedMutex> lock(index.StripeMutex(StripedIndex::StripeOf(hash)));
  const StripedIndex::Entry entry = index.Find(key, hash);
  if (entry.found()) visit(entry.row_id);
  return entry.found();
}

template <typename Visit>
bool MemoryTier::WithColdRow(int64_t key, const Visit& visit) const {
  bool result = false;
  WithRow(key, [&](uint32_t row_id) { result = !IsShared(row_id) && visit(row_id); });
  return result;
}

void MemoryTier::SetMark(uint32_t row_id, uint8_t mark) const {
  RowMark::Byte* const byte = content_->rows.Mark(row_id);
  const uint8_t before = byte->load(std::memory_order_relaxed);
  byte->store(mark, std::memory_order_relaxed);
  if ((mark & kShared) > (before & kShared)) shared_.fetch_add(1, std::memory_order_relaxed);
  if ((mark & kShared) < (before & kShared)) shared_.fetch_sub(1, std::memory_order_relaxed);
}

void MemoryTier::SetStatistics(uint32_t row_id, const uint64_t* statistics) {
  for (size_t i = 0; i < options_.statistics.size(); ++i) {
    content_->rows.Statistics(row_id)[i].store(statistics[i], std::memory_order_relaxed);
  }
}

void MemoryTier::Append(int64_t key, uint32_t row_id, WholeRows* rows) const {
  const RowLayout& layout = content_->rows.layout();
  const char* const row = content_->rows.Row(row_id);
  const size_t i = rows->size++;
  char* const slots = rows->slots.data() + i * layout.wide_slot_bytes;
  rows->keys[i] = key;
  std::memcpy(rows->weights.data() + i * layout.weight_bytes, row, layout.weight_bytes);
  if (layout.narrow_slots) {
    WidenSlots(content_->rule, layout.value_type, row + layout.slot_offset, slots);
  } else if (layout.slot_bytes > 0) {
    std::memcpy(slots, row + layout.slot_offset, layout.slot_bytes);
  }
  for (size_t word = 0; word < layout.statistics_per_row; ++word) {
    rows->statistics[i * layout.statistics_per_row + word] =
        content_->rows.Statistics(row_id)[word].load(std::memory_order_relaxed);
  }
}

void MemoryTier::Write(const WholeRows& rows, size_t i, uint32_t row_id, uint8_t mark) {
  const RowLayout& layout = content_->rows.layout();
  char* const row = content_->rows.Row(row_id);
  const char* const slots = rows.slots.data() + i * layout.wide_slot_bytes;
  std::memcpy(row, rows.weights.data() + i * layout.weight_bytes, layout.weight_bytes);
  if (layout.narrow_slots) {
    NarrowSlots(content_->rule, layout.value_type, slots, row + layout.slot_offset);
  } else if (layout.slot_bytes > 0) {
    std::memcpy(row + layout.slot_offset, slots, layout.slot_bytes);
  }
  SetStatistics(row_id, rows.statistics.data() + i * layout.statistics_per_row);
  SetMark(row_id, mark);
}

void MemoryTier::Contains(const int64_t* keys, size_t count, bool* exists) const {
  const Shared inside(inside_);
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(content_->index.HomeOf(HashKey(keys[i + kAhead])));
    exists[i] = WithRow(keys[i], [](uint32_t) {});
  }
}

Status MemoryTier::Get(const ExecContext&, const int64_t* keys, size_t count, After after,
                       WholeRows* rows) {
  const Shared inside(inside_);
  const RowLayout& layout = content_->rows.layout();
  rows->size = 0;
  TF_EMBED_RETURN_IF_ERROR(
      rows->Resize(count, layout.weight_bytes, layout.wide_slot_bytes, layout.statistics_per_row));
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(content_->index.HomeOf(HashKey(keys[i + kAhead])));
    WithRow(keys[i], [&](uint32_t row_id) {
      Append(keys[i], row_id, rows);
      // A promoted row may give up its place to others.
      SetMark(row_id, after == After::kShared
                          ? kShared
                          : content_->rows.Mark(row_id)->load(std::memory_order_relaxed) | kUsed);
    });
  }
  return Status();
}

void MemoryTier::Share(const int64_t* keys, size_t count) {
  const Shared inside(inside_);
  for (size_t i = 0; i < count; ++i) {
    WithRow(keys[i], [&](uint32_t row_id) { SetMark(row_id, kShared); });
  }
}

Status MemoryTier::TakePlace() {
  while (size_.fetch_add(1, std::memory_order_relaxed) >= capacity()) {
    size_.fetch_sub(1, std::memory_order_relaxed);
    size_t forgotten = 0;
    TF_EMBED_RETURN_IF_ERROR(
        SweepFor(capacity() / kSpareDivisor + 1, nullptr, nullptr, &forgotten));
    if (forgotten > 0) continue;
    return Status::ResourceExhausted([&] {
      return "Table '" + options_.table + "' has no room for another row in host memory, where " +
             std::to_string(capacity()) +
             " rows fit within host_bytes=" + std::to_string(options_.most_bytes) +
             " for each shard.";
    });
  }
  return Status();
}

Status MemoryTier::PutRow(const WholeRows& rows, size_t i, uint8_t mark) {
  const int64_t key = rows.keys[i];
  const uint64_t hash = HashKey(key);
  const size_t stripe = StripedIndex::StripeOf(hash);
  Content& content = *content_;
  if (WithRow(key, [&](uint32_t row_id) { Write(rows, i, row_id, mark); })) return Status();
  TF_EMBED_RETURN_IF_ERROR(TakePlace());
  Status status;
  {
    const std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
    // Another thread may have put it meanwhile.
    const StripedIndex::Entry entry = content.index.Find(key, hash);
    if (entry.found()) {
      Write(rows, i, entry.row_id, mark);
      size_.fetch_sub(1, std::memory_order_relaxed);
      return status;
    }
    const uint32_t row_id = content.rows.Take(&content.pools[stripe]);
    if (row_id != kNoRowId) {
      status = content.index.Insert(key, hash, row_id);
      if (status.ok()) {
        content.rows.Mark(row_id)->store(0, std::memory_order_relaxed);
        Write(rows, i, row_id, mark);
      } else {
        content.rows.Free(&content.pools[stripe], row_id);
      }
    } else {
      status = NoMemoryForRow(options_.table, content.index.size());
    }
    if (!status.ok()) size_.fetch_sub(1, std::memory_order_relaxed);
  }
  // Lookups hold the stripe's mutex too, so outgrown arrays can be freed.
  if (content.index.has_retired()) content.index.DropRetired();
  return status;
}

Status MemoryTier::Put(const ExecContext&, const WholeRows& rows, After after) {
  const Shared inside(inside_);
  if (rows.slots.size() < rows.size * content_->rows.layout().wide_slot_bytes) {
    return Status::FailedPrecondition("Rows for " + name_ +
                                      " have other slots than its rule, which was changed.");
  }
  const uint8_t mark = after == After::kShared ? kShared | kUsed : kUsed;
  for (size_t i = 0; i < rows.size; ++i) {
    if (i + kAhead < rows.size) {
      __builtin_prefetch(content_->index.HomeOf(HashKey(rows.keys[i + kAhead])));
    }
    TF_EMBED_RETURN_IF_ERROR(PutRow(rows, i, mark));
  }
  return Status();
}

void MemoryTier::Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) {
  const Shared inside(inside_);
  for (size_t i = 0; i < count; ++i) {
    WithRow(keys[i], [&](uint32_t row_id) {
      if (!IsShared(row_id)) return;
      if (statistics != nullptr) SetStatistics(row_id, statistics + i * options_.statistics.size());
      SetMark(row_id, kUsed);
    });
  }
}

bool MemoryTier::EraseRow(int64_t key, bool if_shared) {
  const uint64_t hash = HashKey(key);
  const size_t stripe = StripedIndex::StripeOf(hash);
  Content& content = *content_;
  const std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
  const StripedIndex::Entry entry = content.index.Find(key, hash);
  if (!entry.found() || (if_shared && !IsShared(entry.row_id))) return false;
  SetMark(entry.row_id, 0);
  content.index.Erase(key, hash);
  content.rows.Free(&content.pools[stripe], entry.row_id);
  size_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void MemoryTier::Erase(const int64_t* keys, size_t count) {
  const Shared inside(inside_);
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(content_->index.HomeOf(HashKey(keys[i + kAhead])));
    EraseRow(keys[i], false);
  }
}

Status MemoryTier::Sweep(size_t count, Buffer<int64_t>* cold, size_t* num_cold,
                         size_t* num_forgotten) {
  const Shared inside(inside_);
  TF_EMBED_RETURN_IF_ERROR(cold->Resize(count));
  return SweepFor(count, cold, num_cold, num_forgotten);
}

Status MemoryTier::SweepFor(size_t count, Buffer<int64_t>* cold, size_t* num_cold,
                            size_t* num_forgotten) {
  const std::lock_guard<OrderedMutex> lock(sweep_);
  Buffer<int64_t> leaving(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(leaving.Resize(count));
  size_t num_leaving = 0;
  size_t found = 0;
  if (num_cold != nullptr) *num_cold = 0;
  *num_forgotten = 0;
  const StripedIndex& index = content_->index;
  // Two rounds, or a little more: the first round clears the second chance of used rows.
  size_t buckets = 2 * (index.bytes() / sizeof(Bucket) + StripedIndex::kStripes);
  for (; found < count && buckets > 0; buckets -= std::min(buckets, kBucketsOfSweep)) {
    num_leaving = 0;
    index.ForSome(
        kBucketsOfSweep, &content_->hand, [&](const Bucket&, int64_t key, uint32_t row_id) {
          const uint8_t mark = content_->rows.Mark(row_id)->load(std::memory_order_relaxed);
          if (found == count || (cold == nullptr && (mark & kShared) == 0)) return;
          if ((mark & kUsed) != 0) return SetMark(row_id, mark & ~kUsed);
          ++found;
          if ((mark & kShared) != 0) {
            leaving[num_leaving++] = key;
          } else {
            (*cold)[(*num_cold)++] = key;
          }
        });
    for (size_t i = 0; i < num_leaving; ++i) *num_forgotten += EraseRow(leaving[i], true);
  }
  return Status();
}

bool MemoryTier::FindStatistics(int64_t key, uint64_t* statistics) const {
  const Shared inside(inside_);
  return WithColdRow(key, [&](uint32_t row_id) {
    for (size_t i = 0; i < options_.statistics.size(); ++i) {
      statistics[i] = content_->rows.Statistics(row_id)[i].load(std::memory_order_relaxed);
    }
    return true;
  });
}

bool MemoryTier::AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) {
  const Shared inside(inside_);
  return WithColdRow(key, [&](uint32_t row_id) {
    RowStatistics row = StatisticsOf(row_id);
    for (const Statistic statistic : kAllStatistics) {
      if (set.Has(statistic)) row.Set(statistic, statistics[set.IndexOf(statistic)]);
    }
    return true;
  });
}

bool MemoryTier::NoteUse(int64_t key, const Moment& now) {
  const Shared inside(inside_);
  return WithColdRow(key, [&](uint32_t row_id) {
    StatisticsOf(row_id).Use(now);
    return true;
  });
}

bool MemoryTier::TakeForSnapshot(int64_t key, const WantedRows& wanted) {
  const Shared inside(inside_);
  return WithColdRow(key, [&](uint32_t row_id) {
    RowStatistics::Word* const words = content_->rows.Statistics(row_id);
    return RowChange::Take(words + options_.statistics.IndexOf(Statistic::kChange), wanted);
  });
}

Status MemoryTier::CollectRanks(EvictionOrder order, size_t one_in, const Rank& low,
                                const Rank& high, RankList* ranks, size_t* below) const {
  const Shared inside(inside_);
  Status status;
  for (size_t i = 0; i < StripedIndex::kStripes / one_in && status.ok(); ++i) {
    const size_t stripe = i * one_in;
    const std::lock_guard<OrderedMutex> lock(content_->index.StripeMutex(stripe));
    content_->index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
      if (!status.ok() || IsShared(row_id)) return;
      const Rank rank = RankOf(order, StatisticsOf(row_id), HashKey(key));
      if (rank < low) {
        ++*below;
      } else if (rank < high || high == kHighestRank) {
        status = ranks->Append(rank);
      }
    });
  }
  return status;
}

Status MemoryTier::FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                               RankList* expired) {
  const Shared inside(inside_);
  Status status;
  content_->index.ForSome(BucketsToSearch(num_absent), &content_->expiry_cursor,
                          [&](const Bucket&, int64_t key, uint32_t row_id) {
                            if (!status.ok() || IsShared(row_id)) return;
                            if (policy.Expired(StatisticsOf(row_id), now)) {
                              status = expired->Append(Rank(0, HashKey(key)));
                            }
                          });
  return status;
}

Status MemoryTier::Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
                        WholeRows* rows) const {
  const Shared inside(inside_);
  const RowLayout& layout = content_->rows.layout();
  const auto make_room = [&](size_t count) {
    return rows->Resize(count, layout.weight_bytes, layout.wide_slot_bytes,
                        layout.statistics_per_row);
  };
  rows->size = 0;
  max_rows = std::min(std::max<size_t>(1, max_rows), size() + 1);
  TF_EMBED_RETURN_IF_ERROR(make_room(max_rows));
  for (; cursor->next < StripedIndex::kStripes; ++cursor->next) {
    const std::lock_guard<OrderedMutex> lock(content_->index.StripeMutex(cursor->next));
    const size_t stripe_size = content_->index.StripeSize(cursor->next);
    if (rows->size > 0 && rows->size + stripe_size > max_rows) break;
    if (stripe_size > max_rows) TF_EMBED_RETURN_IF_ERROR(make_room(stripe_size));
    content_->index.ForEach(cursor->next, [&](const Bucket&, int64_t key, uint32_t row_id) {
      if (IsShared(row_id)) return;
      if (wanted.snapshot != 0 &&
          !RowChange::IsWanted(
              content_->rows.Statistics(row_id)[options_.statistics.IndexOf(Statistic::kChange)],
              wanted)) {
        return;
      }
      Append(key, row_id, rows);
    });
  }
  cursor->done = cursor->next == StripedIndex::kStripes;
  return Status();
}

Status MemoryTier::SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) {
  size_t capacity;
  TF_EMBED_RETURN_IF_ERROR(CheckCapacity(rule, &capacity));
  const Alone inside(inside_);
  const RuleSlots before = content_->rule;
  const RowLayout layout = LayoutOf(rule);
  if (SameSlotTypes(before, rule)) {
    TF_EMBED_RETURN_IF_ERROR(change_cache());
  } else {
    const bool same = SameRule(before, rule);
    Buffer<char> wide(options_.allocator);
    Buffer<char> slots(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(wide.Resize(layout.wide_slot_bytes));
    TF_EMBED_RETURN_IF_ERROR(slots.Resize(layout.slot_bytes));
    std::fill_n(slots.data(), layout.slot_bytes, char{0});  // also clears padding of groups
    DispatchSlots(options_.value_type, [&](auto tag) {
      StoreInitialSlots<typename decltype(tag)::Type>(rule, slots.data());
    });
    const auto new_slots = [&](const char* present) -> const void* {
      if (same) {
        WidenSlots(before, options_.value_type, present, wide.data());
        NarrowSlots(rule, options_.value_type, wide.data(), slots.data());
      }
      return slots.data();
    };
    TF_EMBED_RETURN_IF_ERROR(
        content_->rows.ChangeLayout(layout, std::cref(new_slots), change_cache));
  }
  content_->rule = rule;
  capacity_ = capacity;
  return Status();
}

Status MemoryTier::Clear() {
  const Alone inside(inside_);
  const RowLayout layout = content_->rows.layout();
  const RuleSlots rule = content_->rule;
  // Clear in place, because memory may be exhausted. Nothing here allocates.
  content_->~Content();
  new (content_.get()) Content(options_.allocator, options_.init_size, layout, rule);
  size_ = 0;
  shared_ = 0;
  return Status();
}

Status MemoryTier::Compact(const ExecContext&) {
  std::unique_ptr<Content> content;  // holds the old content, freed after the locks
  const Alone inside(inside_);
  const RowLayout& layout = content_->rows.layout();
  try {
    content = std::make_unique<Content>(options_.allocator, size(), layout, content_->rule);
  } catch (const std::bad_alloc&) {
    return NoMemoryForRow(options_.table, size());
  }
  Status status;
  for (size_t stripe = 0; stripe < StripedIndex::kStripes && status.ok(); ++stripe) {
    content_->index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
      if (!status.ok()) return;
      const uint32_t to = content->rows.Take(&content->pools[stripe]);
      if (to == kNoRowId) {
        status = NoMemoryForRow(options_.table, size());
        return;
      }
      std::memcpy(content->rows.Row(to), content_->rows.Row(row_id), layout.stride);
      for (size_t word = 0; word < layout.statistics_per_row; ++word) {
        content->rows.Statistics(to)[word].store(content_->rows.Statistics(row_id)[word].load());
      }
      content->rows.Mark(to)->store(content_->rows.Mark(row_id)->load());
      status = content->index.Insert(key, HashKey(key), to);
    });
  }
  if (status.ok()) content_.swap(content);
  return status;
}

LowerTierStats MemoryTier::Stats() const {
  const Shared inside(inside_);
  const RowLayout& layout = content_->rows.layout();
  LowerTierStats stats;
  stats.rows = size();
  stats.shared_rows = shared();
  stats.index_bytes = content_->index.bytes();
  stats.host_rows = stats.rows;
  stats.host_bytes = stats.rows * (layout.weight_bytes + layout.slot_bytes +
                                   layout.statistics_per_row * sizeof(RowStatistics::Word));
  stats.live_bytes = stats.host_bytes;
  const uint64_t row_bytes = content_->rows.bytes();
  stats.buffer_bytes = row_bytes - std::min(row_bytes, stats.host_bytes);
  return stats;
}

}  // namespace tf_embed
