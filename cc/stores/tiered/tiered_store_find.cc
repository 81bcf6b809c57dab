// SPDX-License-Identifier: Apache-2.0
// TieredStore's lookups. Other verbs on rows: tiered_store.cc.
#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "cc/core/rows/row_layout.h"
#include "cc/stores/tiered/tiered_store.h"

namespace tf_embed {

Status TieredStore::ReadThrough(const ExecContext& inner, const Keys& absent, void* weights,
                                bool* exists, const SlotsOut& slots) const {
  if (absent.size == 0) return Status();
  Keys keys(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(SortedKeys(KeyBatch{absent.keys.data(), absent.size}, &keys));
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(
      lower_->Get(inner, keys.keys.data(), keys.size, LowerTier::After::kCold, &rows));
  if (rows.size == 0) return Status();
  // Row positions, sorted by key.
  Buffer<std::pair<int64_t, size_t>> found(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(found.Resize(rows.size));
  for (size_t i = 0; i < rows.size; ++i) found[i] = {rows.keys[i], i};
  std::sort(found.data(), found.data() + rows.size);
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  const StatisticSet set = options_.policy.statistics;
  const bool uses = inner.training && set.OfUse().size() > 0;
  const auto is_expired = [&](size_t place) {
    RowStatistics::Word words[StatisticSet::kMax];
    for (size_t i = 0; i < set.size(); ++i) {
      words[i].store(rows.statistics[place * set.size() + i], std::memory_order_relaxed);
    }
    return options_.policy.Expired(RowStatistics(set, words), inner.now);
  };
  if (uses) GiveCold(rows);
  size_t count = 0;
  for (size_t i = 0; i < absent.size; ++i) {
    const std::pair<int64_t, size_t>* const row = std::lower_bound(
        found.data(), found.data() + rows.size, std::make_pair(absent.keys[i], size_t{0}));
    if (row == found.data() + rows.size || row->first != absent.keys[i]) continue;
    if (uses) {
      if (is_expired(row->second)) continue;
      lower_->NoteUse(row->first, inner.now);
    }
    const size_t position = absent.positions[i];
    TF_EMBED_RETURN_IF_ERROR(CopyRow(inner, rows.weights.data() + row->second * layout.weight_bytes,
                                     layout.weight_bytes,
                                     static_cast<char*>(weights) + position * layout.weight_bytes));
    if (slots.slots != nullptr) {
      TF_EMBED_RETURN_IF_ERROR(CopyRow(
          inner, rows.slots.data() + row->second * layout.wide_slot_bytes, layout.wide_slot_bytes,
          static_cast<char*>(slots.slots) + position * layout.wide_slot_bytes));
    }
    exists[position] = true;
    ++count;
  }
  counters_.below.fetch_add(count, std::memory_order_relaxed);
  counters_.read_below.fetch_add(count, std::memory_order_relaxed);
  return Status();
}

Status TieredStore::NotCached(const ExecContext& inner, const KeyBatch& batch, Keys* cold) const {
  Buffer<bool> cached(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(cached.Resize(batch.NumPositions()));
  TF_EMBED_RETURN_IF_ERROR(cache_->Contains(inner, batch, cached.data()));
  return Absent(batch, cached.data(), cold);
}

Status TieredStore::Find(const ExecContext& context, const KeyBatch& batch,
                         const DefaultRows& defaults, void* weights, bool* exists,
                         const SlotsOut& slots) const {
  const bool promotes = context.training && context.held == Held::kNothing;
  return Look(context, promotes, batch, defaults, weights, exists, slots);
}

Status TieredStore::Look(const ExecContext& context, bool promotes, const KeyBatch& batch,
                         const DefaultRows& defaults, void* weights, bool* exists,
                         const SlotsOut& slots) const {
  Buffer<bool> own(options_.allocator);
  if (exists == nullptr) {
    TF_EMBED_RETURN_IF_ERROR(own.Resize(batch.NumPositions()));
    exists = own.data();
  }
  Keys absent(options_.allocator);
  // A row that was promoted and erased below since then is in the cache.
  const uint64_t moves = moves_.load(std::memory_order_acquire);
  {
    const bool uses = context.training && options_.policy.statistics.OfUse().size() > 0;
    const ReadLocks reading(locks_, context, uses);
    const ExecContext inner = context.Holding(Held::kContent);
    TF_EMBED_RETURN_IF_ERROR(cache_->Find(inner, batch, defaults, weights, exists, slots));
    TF_EMBED_RETURN_IF_ERROR(Absent(batch, exists, &absent));
    counters_.first_tier.fetch_add(batch.size - absent.size, std::memory_order_relaxed);
    if (absent.size == 0) {
      if (promotes) seen_.Note(batch);
      return Status();
    }
    if (promotes) {
      // With an empty lower tier there is nothing to promote.
      if (lower_->size() == 0 && NumCached() + absent.size <= capacity_ &&
          moves == moves_.load(std::memory_order_acquire)) {
        seen_.Note(batch);
        return Status();
      }
    } else {
      const KeyBatch part = absent.Batch(batch);
      // Training misses an expired row of the cache, of which the lower tier may have an older
      // copy.
      const bool expires = context.training && options_.policy.ttl_milliseconds > 0;
      Keys cold(options_.allocator);
      if (expires) TF_EMBED_RETURN_IF_ERROR(NotCached(inner, part, &cold));
      const Keys& below = expires ? cold : absent;
      TF_EMBED_RETURN_IF_ERROR(ReadThrough(inner, below, weights, exists, slots));
      // A missing row may also have been promoted just now.
      if (below.size == absent.size && moves == moves_.load(std::memory_order_acquire)) {
        return Status();
      }
      Keys still(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(Absent(part, exists, &still));
      if (still.size == 0) return Status();
      counters_.found_again.fetch_add(still.size, std::memory_order_relaxed);
      return cache_->Find(inner, still.Batch(batch), defaults, weights, exists, slots);
    }
  }
  return FindBelow(context, batch, absent, moves, defaults, weights, exists, slots);
}

Status TieredStore::FindBelow(const ExecContext& context, const KeyBatch& batch, const Keys& absent,
                              uint64_t moves, const DefaultRows& defaults, void* weights,
                              bool* exists, const SlotsOut& slots) const {
  const KeyBatch part = absent.Batch(batch);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    size_t wanted = 0;
    {
      // While a caller pauses writers, no row may move.
      const std::shared_lock<FairSharedMutex> writers(locks_.writers, std::try_to_lock);
      if (!writers.owns_lock()) break;
      const std::shared_lock<FairSharedMutex> content(locks_.content);
      const ExecContext inner = context.Holding(Held::kWriting);
      Keys stored(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, part, &stored));
      const size_t distinct = stored.size;
      TF_EMBED_RETURN_IF_ERROR(KeepStored(&stored));
      const size_t most = capacity_ / kBatchDivisor;
      if (stored.size > most) break;
      // The write of the same step inserts the other keys, unless the policy decides.
      wanted = options_.policy.plans_writes() || distinct > most ? stored.size : distinct;
      if (NumCached() + wanted <= capacity_) {
        if (wanted == distinct) seen_.Note(batch);
        if (stored.size == 0 && moves == moves_.load(std::memory_order_acquire)) return Status();
        TF_EMBED_RETURN_IF_ERROR(BringUp(inner, stored));
        NoteGrowth();
        TF_EMBED_RETURN_IF_ERROR(cache_->Find(inner, part, defaults, weights, exists, slots));
        size_t found = 0;
        for (size_t i = 0; i < part.size; ++i) found += exists[part.Position(i)] ? 1 : 0;
        counters_.below.fetch_add(found, std::memory_order_relaxed);
        counters_.found_again.fetch_add(part.size, std::memory_order_relaxed);
        return Status();
      }
    }
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, batch, wanted));
  }
  counters_.found_again.fetch_add(part.size, std::memory_order_relaxed);
  return Look(context, false, part, defaults, weights, exists, slots);
}

}  // namespace tf_embed
