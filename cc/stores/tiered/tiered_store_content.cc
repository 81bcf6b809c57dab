// SPDX-License-Identifier: Apache-2.0
// TieredStore's operations on its whole content. Verbs on rows: tiered_store.cc.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <shared_mutex>

#include "cc/core/rows/row_layout.h"
#include "cc/core/rules/rule_list.h"
#include "cc/stores/tiered/tiered_store.h"

namespace tf_embed {
namespace {

// Rows processed together in a pass over the lower tier.
constexpr size_t kPassRows = 16384;

}  // namespace

Status TieredStore::Clear(const ExecContext& context) {
  const ReplaceLocks replacing(locks_, context);
  victims_.Forget();
  planner_.Forget();
  next_tick_ = 0;
  if (changes_ != nullptr) changes_->Forget("was cleared");
  TF_EMBED_RETURN_IF_ERROR(lower_->Clear());
  return cache_->Clear(context.Holding(Held::kPaused));
}

void TieredStore::SetInitializer(const RowInitializer& initializer) {
  const std::unique_lock<FairSharedMutex> lock(locks_.content);
  cache_->maintenance()->SetInitializer(initializer);
}

Status TieredStore::SetRule(const ExecContext& context, const RuleSlots& rule) {
  const ReplaceLocks replacing(locks_, context);
  size_t capacity;
  TF_EMBED_RETURN_IF_ERROR(CheckCapacity(rule, &capacity));
  const auto change_cache = [&] {
    return cache_->maintenance()->SetRule(context.Holding(Held::kPaused), rule);
  };
  TF_EMBED_RETURN_IF_ERROR(lower_->SetRule(rule, std::cref(change_cache)));
  rule_ = rule;
  capacity_ = capacity;
  return MakeRoomAlone(context.Holding(Held::kWriting), KeyBatch(), 0);
}

Status TieredStore::LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                                double* largest) const {
  const ReadLocks reading(locks_, context);
  *largest = 0.0;
  if (!SameRule(rule_, rule) || slot >= rule.slots_per_row()) return Status();
  TF_EMBED_RETURN_IF_ERROR(
      cache_->maintenance()->LargestSlot(context.Holding(Held::kContent), rule, slot, largest));
  WholeRows rows(options_.allocator);
  const size_t slots = rule.slots_per_row();
  for (ExportCursor cursor; !cursor.done;) {
    TF_EMBED_RETURN_IF_ERROR(lower_->Scan(kPassRows, &cursor, &rows));
    DispatchSlots(options_.value_type, [&](auto tag) {
      using Slot = typename decltype(tag)::Type;
      for (size_t i = 0; i < rows.size; ++i) {
        Slot value;
        std::memcpy(&value, rows.slots.data() + (i * slots + slot) * sizeof(Slot), sizeof(Slot));
        *largest = std::max(*largest, static_cast<double>(value));
      }
    });
  }
  return Status();
}

Status TieredStore::UpdateAllRows(const ExecContext& context, const Rule& rule) {
  if (!AllRowsUpdate(rule).IsDue()) return Status();
  const ReplaceLocks alone(locks_, context);
  const ExecContext inner = context.Holding(Held::kWriting);
  // The scan comes first, because it may fail, and no row has changed then. The lower tier loses
  // its copies of shared rows before they change in the cache. Otherwise a failure in between would
  // bring the old copies back. Cold rows go through a temporary store in batches.
  Keys cold(options_.allocator);
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(cold.Resize(lower_->size()));
  for (ExportCursor cursor; !cursor.done;) {
    TF_EMBED_RETURN_IF_ERROR(lower_->Scan(kPassRows, &cursor, &rows));
    std::copy_n(rows.keys.data(), rows.size, cold.keys.data() + cold.size);
    cold.size += rows.size;
  }
  TF_EMBED_RETURN_IF_ERROR(EraseShared());
  TF_EMBED_RETURN_IF_ERROR(cache_->UpdateAllRows(inner, rule));
  for (size_t begin = 0; begin < cold.size; begin += kPassRows) {
    const size_t count = std::min(kPassRows, cold.size - begin);
    TF_EMBED_RETURN_IF_ERROR(
        lower_->Get(inner, cold.keys.data() + begin, count, LowerTier::After::kCold, &rows));
    NoteColdChange(&rows);
    const std::unique_ptr<Store> some =
        cache_->maintenance()->NewEmpty(rows.size, cache_->initializer());
    if (some == nullptr) return NoMemoryForRow(options_.name, cold.size);
    TF_EMBED_RETURN_IF_ERROR(some->maintenance()->SetRule(context.Holding(Held::kPaused), rule_));
    KeyBatch batch{rows.keys.data(), rows.size};
    batch.distinct = true;
    TF_EMBED_RETURN_IF_ERROR(
        some->InsertOrAssign(inner, batch, rows.weights.data(), {&rule_, rows.slots.data()}));
    TF_EMBED_RETURN_IF_ERROR(some->UpdateAllRows(inner, rule));
    TF_EMBED_RETURN_IF_ERROR(some->Find(inner, batch, DefaultRows(), rows.weights.data(), nullptr,
                                        {&rule_, rows.slots.data()}));
    TF_EMBED_RETURN_IF_ERROR(lower_->Put(inner, rows));
  }
  return Status();
}

Status TieredStore::EraseShared() const {
  if (lower_->shared() == 0) return Status();
  WholeRows rows(options_.allocator);
  for (ExportCursor cursor; !cursor.done;) {
    TF_EMBED_RETURN_IF_ERROR(cache_->maintenance()->ExportBatch(kPassRows, &cursor, &rows));
    lower_->Erase(rows.keys.data(), rows.size);
  }
  return Status();
}

Status TieredStore::Shrink(const ExecContext& context) {
  const ReplaceLocks alone(locks_, context);
  TF_EMBED_RETURN_IF_ERROR(cache_->maintenance()->Shrink(context.Holding(Held::kPaused)));
  return lower_->Compact(context);
}

Status TieredStore::ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  rows->size = 0;
  while (!cursor->done && rows->size == 0) {
    ExportCursor part{cursor->next & ~kInLowerTier, false, cursor->linked};
    bool in_lower_tier = (cursor->next & kInLowerTier) != 0;
    if (!in_lower_tier) {
      TF_EMBED_RETURN_IF_ERROR(cache_->maintenance()->ExportBatch(max_rows, &part, rows));
      in_lower_tier = part.done;
      if (part.done) part.next = 0;
      cursor->done = part.done && lower_->size() == lower_->shared();
    } else {
      TF_EMBED_RETURN_IF_ERROR(lower_->Scan(max_rows, &part, rows));
      cursor->done = part.done;
    }
    cursor->next = part.next | (in_lower_tier ? kInLowerTier : 0);
  }
  return Status();
}

std::unique_ptr<Store> TieredStore::NewEmpty(size_t init_size,
                                             const RowInitializer& initializer) const {
  try {
    StoreOptions options = options_;
    options.init_size = init_size;
    options.initializer = initializer;
    options.changes = nullptr;
    options.policy = RowPolicy();
    options.policy.statistics = options_.policy.statistics;
    std::unique_ptr<TieredStore> store;
    if (!Create(options, tiers_, &store).ok()) return nullptr;
    return store;
  } catch (const std::bad_alloc&) {  // null means that memory is short, which the caller reports
    return nullptr;
  }
}

Status TieredStore::TakeContent(const ExecContext& context, Store* other) {
  TieredStore* const from = static_cast<TieredStore*>(other);
  const ReplaceLocks replacing(locks_, context);
  victims_.Forget();
  planner_.Forget();
  next_tick_ = 0;
  TF_EMBED_RETURN_IF_ERROR(
      cache_->maintenance()->TakeContent(context.Holding(Held::kPaused), from->cache_.get()));
  lower_.swap(from->lower_);
  // A lookup that missed the cache earlier must look into the new cache.
  moves_.fetch_add(1, std::memory_order_release);
  rule_ = from->rule_;
  capacity_ = from->capacity_.load();
  return Status();
}

void TieredStore::DropOutgrown() const {
  std::unique_lock<FairSharedMutex> lock(locks_.content, std::try_to_lock);
  if (!lock.owns_lock()) {
    // Another verb is inside. As in a HostStore, the memory that waits for it has a limit. Here the
    // limit counts rows that were in the cache, because they make its index grow and be rebuilt.
    {
      const std::shared_lock<FairSharedMutex> inside(locks_.content);
      if (NumCached() + left_since_ <= 2 * cached_once_dropped_) return;
    }
    lock.lock();
  }
  DropOutgrownAlone();
}

void TieredStore::DropOutgrownAlone() const {
  cache_->DropOutgrown();  // no other verb is in the cache, so it doesn't wait
  cached_once_dropped_ = NumCached();
  left_since_ = 0;
}

StoreStats TieredStore::Stats() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  StoreStats stats = cache_->Stats();
  const LowerTierStats below = lower_->Stats();
  const auto count = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  const uint64_t read_below = count(counters_.read_below);
  stats.rows += below.rows - std::min(below.rows, below.shared_rows);
  stats.index_bytes += below.index_bytes;
  stats.slack_bytes += below.buffer_bytes;
  stats.hits += read_below;
  stats.hits -= std::min(stats.hits, count(counters_.copied_down));
  stats.misses -= std::min(stats.misses, read_below + count(counters_.found_again));
  const PolicyCounters& policy = planner_.counters();
  stats.admitted = count(policy.admitted);
  stats.held_back = count(policy.held_back);
  stats.refused = count(policy.refused);
  stats.evicted = count(policy.evicted);
  stats.expired = count(policy.expired);
  stats.cache_rows = stats.rows - (below.rows - std::min(below.rows, below.shared_rows));
  stats.cache_hits = count(counters_.first_tier);
  stats.cache_misses = count(counters_.below);
  stats.promoted = count(counters_.promoted);
  stats.demoted = count(counters_.demoted);
  stats.demoted_unwritten = stats.demoted - std::min(stats.demoted, count(counters_.written));
  stats.host_rows = below.host_rows;
  stats.host_bytes = below.host_bytes;
  stats.disk_rows = below.rows - std::min(below.rows, below.host_rows);
  stats.disk_live_bytes = below.live_bytes - std::min(below.live_bytes, below.host_bytes);
  stats.disk_bytes = below.disk_bytes;
  stats.disk_rows_read = below.rows_read;
  stats.disk_read_bytes = below.bytes_read;
  stats.disk_read_requests = below.read_requests;
  stats.disk_rows_written = below.rows_written;
  stats.disk_written_bytes = below.bytes_written;
  stats.disk_compacted_bytes = below.compacted_bytes;
  stats.disk_queue_depth = below.max_queue_depth;
  return stats;
}

}  // namespace tf_embed
