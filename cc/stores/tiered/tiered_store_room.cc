// SPDX-License-Identifier: Apache-2.0
// Demotion: how TieredStore makes room in its cache. Verbs on rows: tiered_store.cc.
#include <algorithm>
#include <functional>
#include <mutex>

#include "cc/core/rows/row_layout.h"
#include "cc/stores/tiered/tiered_store.h"

namespace tf_embed {
namespace {

// Rows demoted together.
constexpr size_t kDemotedTogether = 4096;
// Rows written together while other verbs run.
constexpr size_t kWrittenTogether = 1024;
// Extra room, as a share of the cache, so that few batches have to demote rows. The cache grows by
// this share in a tick.
constexpr size_t kSpareDivisor = 32;
static_assert(kSpareDivisor <= Victims::kGrowthTicks);

}  // namespace

void TieredStore::NoteGrowth() const {
  const size_t size = NumCached();
  size_t next = next_tick_.load(std::memory_order_relaxed);
  if (size < next) return;
  const size_t after = size + capacity_ / kSpareDivisor + 1;
  if (next_tick_.compare_exchange_strong(next, after)) victims_.EndTick(cache_->cache());
}

size_t TieredStore::NumLeaving(size_t wanted) const {
  const size_t size = NumCached();
  if (size + wanted <= capacity_) return 0;
  return std::min(size, size + wanted - capacity_ + capacity_ / kSpareDivisor);
}

Status TieredStore::SortedKeys(const KeyBatch& batch, Keys* sorted) const {
  TF_EMBED_RETURN_IF_ERROR(sorted->Resize(batch.size));
  sorted->size = batch.size;
  std::copy_n(batch.keys, batch.size, sorted->keys.data());
  sorted->MakeDistinct();
  return Status();
}

Status TieredStore::ForEachVictim(
    const ExecContext& inner, const Keys& stay, size_t most, size_t at_once,
    const std::function<Status(const int64_t* keys, const bool* changed, size_t count)>& take)
    const {
  Buffer<int64_t> keys(options_.allocator);
  Buffer<bool> changed(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(at_once));
  TF_EMBED_RETURN_IF_ERROR(changed.Resize(at_once));
  const auto stays = [&](int64_t key) {
    return std::binary_search(stay.keys.data(), stay.keys.data() + stay.size, key);
  };
  // A victim list may consist only of rows of the batch. After two such lists there are no other
  // rows.
  int lists_in_vain = 0;
  for (size_t gone = 0; gone < most && lists_in_vain < 2;) {
    size_t found;
    bool collected;
    TF_EMBED_RETURN_IF_ERROR(victims_.Next(inner, cache_.get(), std::min(at_once, most - gone),
                                           keys.data(), changed.data(), &found, &collected));
    size_t leaving = 0;
    for (size_t i = 0; i < found; ++i) {
      if (stays(keys[i])) continue;
      changed[leaving] = changed[i];
      keys[leaving++] = keys[i];
    }
    if (leaving > 0) TF_EMBED_RETURN_IF_ERROR(take(keys.data(), changed.data(), leaving));
    gone += leaving;
    lists_in_vain = leaving > 0 ? 0 : lists_in_vain + (collected || found == 0 ? 1 : 0);
  }
  return Status();
}

Status TieredStore::MakeRoom(const ExecContext& context, const KeyBatch& batch,
                             size_t wanted) const {
  Keys stay(options_.allocator);
  Keys victims(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(SortedKeys(batch, &stay));
  const ExecContext inner = context.Holding(Held::kWriting);
  {
    const WriteLocks writing(locks_, context);
    const size_t most = NumLeaving(wanted);
    if (most > 0) victims_.EndTick(cache_->cache());
    TF_EMBED_RETURN_IF_ERROR(WriteVictims(inner.InSerial(), stay, most, &victims));
  }
  const ReplaceLocks alone(locks_, context);
  TF_EMBED_RETURN_IF_ERROR(DropVictims(inner, victims));
  return MakeRoomAlone(inner, batch, wanted);
}

Status TieredStore::MakeRoomAlone(const ExecContext& inner, const KeyBatch& batch,
                                  size_t wanted) const {
  DropOutgrownAlone();  // lookups replace rows too, and a write may never follow
  const size_t most = NumLeaving(wanted);
  if (most == 0) return Status();
  Keys stay(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(SortedKeys(batch, &stay));
  victims_.EndTick(cache_->cache());
  const auto demote = [&](const int64_t* keys, const bool* changed, size_t count) {
    return Demote(inner, keys, changed, count);
  };
  return ForEachVictim(inner, stay, most, kDemotedTogether, std::cref(demote));
}

Status TieredStore::PutRows(const ExecContext& inner, WholeRows* rows,
                            LowerTier::After after) const {
  if (rows->size == 0) return Status();
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  const size_t words = options_.policy.statistics.size();
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(rows->size));
  SlotsOut slots;
  if (rule_.slots_per_row() > 0) slots = {&rule_, rows->slots.data()};
  const KeyBatch batch{rows->keys.data(), rows->size};
  ExecContext reading = inner.OnHost();
  reading.training = false;  // not a use of the rows
  TF_EMBED_RETURN_IF_ERROR(
      cache_->Find(reading, batch, DefaultRows(), rows->weights.data(), exists.data(), slots));
  counters_.copied_down.fetch_add(rows->size, std::memory_order_relaxed);
  if (words > 0) {
    TF_EMBED_RETURN_IF_ERROR(
        cache_->eviction()->FindStatistics(inner, batch, rows->statistics.data(), exists.data()));
  }
  TF_EMBED_RETURN_IF_ERROR(lower_->Put(inner, *rows, after));
  counters_.written.fetch_add(rows->size, std::memory_order_relaxed);
  return Status();
}

Status TieredStore::WriteVictims(const ExecContext& inner, const Keys& stay, size_t most,
                                 Keys* victims) const {
  if (most == 0) return Status();
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  WholeRows rows(options_.allocator);
  Buffer<bool> stored(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(victims->Resize(most));
  TF_EMBED_RETURN_IF_ERROR(stored.Resize(kWrittenTogether));
  TF_EMBED_RETURN_IF_ERROR(rows.Resize(kWrittenTogether, layout.weight_bytes,
                                       layout.wide_slot_bytes, options_.policy.statistics.size()));
  const auto write = [&](const int64_t* keys, const bool* changed, size_t count) {
    lower_->Contains(keys, count, stored.data());
    rows.size = 0;
    for (size_t i = 0; i < count; ++i) {
      if (changed[i] || !stored[i]) rows.keys[rows.size++] = keys[i];
    }
    const KeyBatch written{rows.keys.data(), rows.size};
    TF_EMBED_RETURN_IF_ERROR(cache_->cache()->SetChanged(inner, written, false));
    Status status = PutRows(inner, &rows, LowerTier::After::kShared);
    if (!status.ok()) {
      // The cache's copy counts, whether or not the lower tier has a copy by now.
      for (size_t i = 0; i < count; ++i) {
        const KeyBatch one{keys + i, 1};
        // Can't fail, because the keys are in the cache. The first error is returned.
        if (changed[i] || !stored[i]) (void)cache_->cache()->SetChanged(inner, one, true);
      }
      return status;
    }
    std::copy_n(keys, count, victims->keys.data() + victims->size);
    victims->size += count;
    return status;
  };
  // In several rounds, so that other rows can be promoted between them.
  while (victims->size < most) {
    const std::lock_guard<OrderedMutex> lock(promotion_);
    const size_t before = victims->size;
    TF_EMBED_RETURN_IF_ERROR(ForEachVictim(inner, stay, std::min(kWrittenTogether, most - before),
                                           kWrittenTogether, std::cref(write)));
    // A new pass over the cache may list the same rows again.
    victims->MakeDistinct();
    if (victims->size == before) break;
  }
  return Status();
}

Status TieredStore::DropVictims(const ExecContext& inner, const Keys& victims) const {
  if (victims.size == 0) return Status();
  const size_t words = options_.policy.statistics.size();
  Keys leaving(options_.allocator);
  Buffer<uint8_t> marks(options_.allocator);
  Buffer<bool> exists(options_.allocator);
  Buffer<bool> stored(options_.allocator);
  Buffer<uint64_t> statistics(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(leaving.Resize(victims.size));
  TF_EMBED_RETURN_IF_ERROR(marks.Resize(victims.size));
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(victims.size));
  TF_EMBED_RETURN_IF_ERROR(stored.Resize(victims.size));
  TF_EMBED_RETURN_IF_ERROR(statistics.Resize(victims.size * words));
  const KeyBatch all{victims.keys.data(), victims.size};
  TF_EMBED_RETURN_IF_ERROR(cache_->cache()->FindMarks(inner, all, marks.data(), exists.data()));
  lower_->Contains(all.keys, all.size, stored.data());
  for (size_t i = 0; i < victims.size; ++i) {
    if (!exists[i] || !stored[i] || RowMark::IsChanged(marks[i])) continue;
    if (victims_.IsOfThisTick(marks[i])) continue;
    leaving.keys[leaving.size++] = victims.keys[i];
  }
  const KeyBatch batch{leaving.keys.data(), leaving.size};
  if (words > 0) {
    TF_EMBED_RETURN_IF_ERROR(
        cache_->eviction()->FindStatistics(inner, batch, statistics.data(), exists.data()));
  }
  cache_->cache()->Drop(inner, batch.keys, batch.size);
  lower_->Unshare(batch.keys, batch.size, words == 0 ? nullptr : statistics.data());
  seen_.Forget();
  counters_.demoted.fetch_add(batch.size, std::memory_order_relaxed);
  return Status();
}

Status TieredStore::Demote(const ExecContext& inner, const int64_t* keys, const bool* changed,
                           size_t count) const {
  // Shared rows are in the lower tier already, unless they have changed.
  const size_t words = options_.policy.statistics.size();
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  Buffer<bool> exists(options_.allocator);
  Keys kept(options_.allocator);
  Buffer<uint64_t> statistics(options_.allocator);
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(count));
  TF_EMBED_RETURN_IF_ERROR(kept.Resize(count));
  TF_EMBED_RETURN_IF_ERROR(statistics.Resize(count * words));
  TF_EMBED_RETURN_IF_ERROR(rows.Resize(count, layout.weight_bytes, layout.wide_slot_bytes, words));
  lower_->Contains(keys, count, exists.data());
  for (size_t i = 0; i < count; ++i) {
    if (exists[i] && !changed[i]) {
      kept.keys[kept.size++] = keys[i];
    } else {
      rows.keys[rows.size++] = keys[i];
    }
  }
  if (kept.size > 0) {
    const KeyBatch batch{kept.keys.data(), kept.size};
    if (words > 0) {
      TF_EMBED_RETURN_IF_ERROR(
          cache_->eviction()->FindStatistics(inner, batch, statistics.data(), exists.data()));
    }
    // Unshare first, because the lower tier may drop shared rows when it takes other rows.
    lower_->Unshare(batch.keys, batch.size, words == 0 ? nullptr : statistics.data());
    cache_->cache()->Drop(inner, batch.keys, batch.size);
    seen_.Forget();
    counters_.demoted.fetch_add(kept.size, std::memory_order_relaxed);
  }
  if (rows.size == 0) return Status();
  const Status status = PutRows(inner, &rows, LowerTier::After::kCold);
  if (!status.ok()) {
    lower_->Erase(rows.keys.data(), rows.size);  // the cache still has them
    return status;
  }
  cache_->cache()->Drop(inner, rows.keys.data(), rows.size);
  seen_.Forget();
  counters_.demoted.fetch_add(rows.size, std::memory_order_relaxed);
  return Status();
}

}  // namespace tf_embed
