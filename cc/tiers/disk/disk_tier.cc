// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/disk_tier.h"

#include <algorithm>
#include <new>

#include "cc/core/rows/stored_slots.h"

namespace tf_embed {
namespace {

// Rows that compaction examines for each row added or removed. At the share of live rows at which
// compaction begins, less than half of this would suffice.
constexpr int64_t kCompactedPerRow = 8;
// Limit on compaction work carried over from rows that left since the last Put.
constexpr int64_t kMostCredit = 1 << 16;
constexpr uint64_t kAnySerial = ~uint64_t{0};

// Fills the slots of a new row as Get returns them, rounded to their stored types.
Status FillInitial(const RuleSlots& rule, DataType value_type, TierRule* made) {
  TF_EMBED_RETURN_IF_ERROR(made->initial_slots.Resize(made->slot_bytes));
  if (made->slot_bytes == 0) return Status();
  DispatchSlots(value_type, [&](auto tag) {
    using C = typename decltype(tag)::Type;
    C* slots = reinterpret_cast<C*>(made->initial_slots.data());
    for (uint32_t i = 0; i < rule.num_groups; ++i) {
      const SlotGroup& group = rule.groups[i];
      C value = static_cast<C>(group.initial_value);
      if (group.type == SlotType::kHalf) {
        value = StoredSlot<Half, C>::Load(StoredSlot<Half, C>::Store(value));
      } else if (group.type == SlotType::kBFloat16) {
        value = StoredSlot<BFloat16, C>::Load(StoredSlot<BFloat16, C>::Store(value));
      }
      slots = std::fill_n(slots, group.width, value);
    }
  });
  return Status();
}

}  // namespace

Status DiskTier::Open(const DiskTierOptions& options, std::unique_ptr<DiskTier>* tier) {
  const auto no_memory = [] {
    return Status::ResourceExhausted([] { return "No memory for a tier on disk."; });
  };
  try {
    std::unique_ptr<Folder> folder;
    TF_EMBED_RETURN_IF_ERROR(
        Folder::Open(options.path, options.name, options.keep_leftovers, options.files, &folder));
    TF_EMBED_RETURN_IF_ERROR(folder->Probe(options.use_direct_io));
    std::unique_ptr<BlockReader> reader;
    if (options.use_io_uring) reader = NewIoUringReader(options.allocator);
    const bool uses_io_uring = reader != nullptr;
    if (reader == nullptr) reader = NewPreadReader(options.allocator);
    if (reader == nullptr) return no_memory();
    tier->reset(new DiskTier(options, std::move(folder), std::move(reader), uses_io_uring));
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
  return Status();
}

DiskTier::DiskTier(const DiskTierOptions& options, std::unique_ptr<Folder> folder,
                   std::unique_ptr<BlockReader> reader, bool uses_io_uring)
    : options_(options),
      name_("the folder '" + folder->path() + "'"),
      weight_bytes_(options.dim * SizeOf(options.value_type)),
      folder_(std::move(folder)),
      index_(options.allocator, options.init_size, options.statistics, &segments_),
      log_({options.value_type, options.dim, options.buffer_bytes, options.most_disk_bytes,
            options.statistics.size(), options.allocator},
           folder_.get(), &segments_, &index_),
      compaction_(options.allocator, options.buffer_bytes, &segments_, &index_, &log_),
      reader_(std::move(reader)),
      uses_io_uring_(uses_io_uring),
      rule_(std::make_shared<TierRule>(options.allocator)) {}

DiskTier::~DiskTier() {
  if (folder_->Owned()) return;
  // A child of fork() lacks the reader's threads, so its destructor would wait forever. A mutex may
  // also have been held at the fork.
  (void)reader_.release();
  compaction_.Forget();
}

Status DiskTier::CheckOwned() const {
  if (folder_->Owned()) return Status();
  return Status::FailedPrecondition("A child process must not use " + name_ +
                                    ", which belongs to the process that was forked.");
}

std::shared_ptr<const TierRule> DiskTier::rule() const {
  std::lock_guard<std::mutex> lock(rule_mutex_);
  return rule_;
}

void DiskTier::Contains(const int64_t* keys, size_t count, bool* exists) const {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) index_.Prefetch(keys[i + kAhead]);
    exists[i] = index_.Find(keys[i]).found();
  }
}

Status DiskTier::Put(const ExecContext&, const WholeRows& rows, After after) {
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  std::lock_guard<OrderedMutex> lock(writers_);
  const std::shared_ptr<const TierRule> rule = this->rule();
  if (rows.slots.size() < rows.size * rule->slot_bytes) {
    return Status::FailedPrecondition("Rows for " + name_ +
                                      " have other slots than its rule, which was changed.");
  }
  size_t taken = 0;
  Status status = PutSome(*rule, rows, after, &taken);
  while (!status.ok() && log_.over_bound() && MakeSpace(*rule)) {
    status = PutSome(*rule, rows, after, &taken);
  }
  rows_written_.fetch_add(taken, std::memory_order_relaxed);
  CompactSome(*rule, taken);
  if (status.ok()) return status;
  const auto describe = [&] {
    return status.message() + " The rows that were to be written stay in memory.";
  };
  if (status.code() == StatusCode::kResourceExhausted) return Status::ResourceExhausted(describe);
  if (status.code() == StatusCode::kUnavailable) return Status::Unavailable(describe());
  return status;
}

Status DiskTier::PutSome(const TierRule& rule, const WholeRows& rows, After after, size_t* taken) {
  RowsToWrite given;
  given.size = rows.size;
  given.keys = rows.keys.data();
  given.weights = rows.weights.data();
  given.slots = rule.slot_bytes > 0 ? rows.slots.data() : nullptr;
  while (*taken < rows.size) {
    size_t staged = 0;
    uint32_t place = 0;
    TF_EMBED_RETURN_IF_ERROR(
        log_.Stage(RowLog::Purpose::kPut, rule, given, *taken, &staged, &place));
    // A staged row without an index entry is garbage.
    for (size_t i = 0; i < staged; ++i, ++place, ++*taken) {
      const uint64_t* const statistics =
          rows.statistics.data() + *taken * options_.statistics.size();
      TF_EMBED_RETURN_IF_ERROR(
          index_.Put(rows.keys[*taken], place, after == After::kShared, statistics));
    }
  }
  return Status();
}

void DiskTier::CompactSome(const TierRule& rule, size_t rows) {
  const uint64_t came_and_left = rows + erased_.exchange(0, std::memory_order_relaxed);
  compaction_credit_ += kCompactedPerRow * static_cast<int64_t>(came_and_left);
  compaction_credit_ =
      std::min(compaction_credit_, kCompactedPerRow * static_cast<int64_t>(rows) + kMostCredit);
  while (compaction_credit_ > 0 && compaction_.IsDue()) {
    size_t looked_at = 0;
    bool done = false;
    // The caller's rows are stored. A full disk or a damaged file that stops compaction is reported
    // by Compact, or by the Put or Get that it blocks.
    if (!compaction_.Step(Compaction::What::kDue, kAnySerial, rule, &looked_at, &done).ok()) break;
    if (done) break;
    compaction_credit_ -= static_cast<int64_t>(std::max<size_t>(looked_at, 1));
  }
  compaction_credit_ = std::min<int64_t>(compaction_credit_, kMostCredit);
  if (!compaction_.IsDue()) compaction_credit_ = std::min<int64_t>(compaction_credit_, 0);
}

bool DiskTier::MakeSpace(const TierRule& rule) {
  const uint64_t before = log_.disk_bytes();
  const uint64_t enough = log_.SegmentBytes();
  bool done = false;
  while (!done && log_.disk_bytes() + enough > before) {
    size_t looked_at = 0;
    if (!compaction_.Step(Compaction::What::kWorth, kAnySerial, rule, &looked_at, &done).ok()) {
      break;
    }
  }
  return log_.disk_bytes() < before;
}

void DiskTier::Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) {
  if (!folder_->Owned()) return;
  for (size_t i = 0; i < count; ++i) {
    index_.Unshare(keys[i],
                   statistics == nullptr ? nullptr : statistics + i * options_.statistics.size());
  }
}

bool DiskTier::FindStatistics(int64_t key, uint64_t* statistics) const {
  const PlaceIndex::Found found = index_.Find(key, statistics);
  return found.found() && !found.shared;
}

bool DiskTier::AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) {
  return index_.AssignStatistics(key, set, statistics);
}

void DiskTier::Erase(const int64_t* keys, size_t count) {
  if (!folder_->Owned()) return;
  size_t erased = 0;
  for (size_t i = 0; i < count; ++i) erased += index_.Erase(keys[i]);
  erased_.fetch_add(erased, std::memory_order_relaxed);
}

Status DiskTier::SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) {
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  const std::shared_ptr<const TierRule> old = this->rule();
  const bool same = SameRule(old->rule, rule);
  try {
    auto made = std::make_shared<TierRule>(options_.allocator);
    made->rule = rule;
    made->generation = same ? old->generation : old->generation + 1;
    made->slot_bytes = rule.slots_per_row() * SlotSize(options_.value_type);
    if (same) {
      // Rows without slots of this rule keep the initial slots that they were given.
      TF_EMBED_RETURN_IF_ERROR(made->initial_slots.Resize(made->slot_bytes));
      std::copy_n(old->initial_slots.data(), made->slot_bytes, made->initial_slots.data());
    } else {
      TF_EMBED_RETURN_IF_ERROR(FillInitial(rule, options_.value_type, made.get()));
    }
    TF_EMBED_RETURN_IF_ERROR(change_cache());
    std::lock_guard<OrderedMutex> lock(writers_);
    std::lock_guard<std::mutex> rule_lock(rule_mutex_);
    rule_ = std::move(made);
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory for a rule."; });
  }
  return Status();
}

Status DiskTier::Clear() {
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  std::lock_guard<OrderedMutex> lock(writers_);
  index_.Clear();
  compaction_.Stop();
  log_.Drop();
  // All rows are gone: without writers, none was added.
  for (uint32_t number = 0; number < SegmentList::kMost; ++number) {
    segments_.RetireIfEmpty(number);
  }
  return Status();
}

Status DiskTier::Compact(const ExecContext&) {
  TF_EMBED_RETURN_IF_ERROR(CheckOwned());
  uint64_t below_serial = 0;
  {
    std::lock_guard<OrderedMutex> lock(writers_);
    const std::shared_ptr<const TierRule> rule = this->rule();
    compaction_.Retry();
    if (log_.OpenHasGarbage()) TF_EMBED_RETURN_IF_ERROR(log_.Seal());
    below_serial = log_.next_serial();
  }
  // Puts may run between the steps.
  for (;;) {
    std::lock_guard<OrderedMutex> lock(writers_);
    const std::shared_ptr<const TierRule> rule = this->rule();
    size_t looked_at = 0;
    bool done = false;
    TF_EMBED_RETURN_IF_ERROR(
        compaction_.Step(Compaction::What::kAny, below_serial, *rule, &looked_at, &done));
    if (done) return index_.Shrink();
  }
}

LowerTierStats DiskTier::Stats() const {
  LowerTierStats stats;
  stats.rows = index_.size();
  stats.shared_rows = index_.shared();
  stats.index_bytes = index_.bytes();
  segments_.ForEach([&](const Segment* segment) {
    stats.index_bytes += segment->statistics.size() * sizeof(RowStatistics::Word);
  });
  stats.buffer_bytes = log_.buffer_bytes();
  stats.live_bytes = index_.live_bytes();
  stats.disk_bytes = log_.disk_bytes();
  stats.rows_read = rows_read_.load(std::memory_order_relaxed);
  stats.bytes_read = bytes_read_.load(std::memory_order_relaxed);
  stats.rows_written = rows_written_.load(std::memory_order_relaxed);
  const uint64_t flushed = log_.flushed_bytes();
  const uint64_t moved = compaction_.moved_bytes();
  stats.bytes_written = flushed - std::min(flushed, moved);
  stats.compacted_bytes = compaction_.read_bytes() + moved;
  stats.read_requests = read_requests_.load(std::memory_order_relaxed);
  stats.max_queue_depth = reader_->max_depth();
  return stats;
}

}  // namespace tf_embed
