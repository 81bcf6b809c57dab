// SPDX-License-Identifier: Apache-2.0
// TieredStore's admission and eviction. Verbs on rows: tiered_store.cc.
#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <shared_mutex>

#include "cc/core/base/hash.h"
#include "cc/core/rows/row_layout.h"
#include "cc/stores/tiered/tiered_store.h"

namespace tf_embed {
namespace {

// Rough nanoseconds to survey a key.
constexpr size_t kSurveyCost = 20;
// Rows evicted at a time.
constexpr size_t kChunk = 4096;
// Large enough that a search for expired rows covers the whole store.
constexpr size_t kAnyNumber = size_t{1} << 40;
// Rebuild the store if it loses at least 1 row in this many.
constexpr size_t kRebuildDivisor = 4;

}  // namespace

Status TieredStore::Planned::Find(int64_t key, uint64_t hash, RowStatistics::Word** words) const {
  TF_EMBED_RETURN_IF_ERROR(cache().Find(key, hash, words));
  if (*words != nullptr) return Status();
  uint64_t cold[StatisticSet::kMax];
  if (!store_->lower_->FindStatistics(key, cold)) {
    // The row may have been promoted, or be in transit: shared below and not yet in the cache.
    const std::lock_guard<OrderedMutex> none_moves(store_->promotion_);
    TF_EMBED_RETURN_IF_ERROR(cache().Find(key, hash, words));
    if (*words != nullptr || !store_->lower_->FindStatistics(key, cold)) return Status();
  }
  for (size_t i = 0; i < store_->options_.policy.statistics.size(); ++i) {
    cold_[i].store(cold[i], std::memory_order_relaxed);
  }
  *words = cold_;
  return Status();
}

Status TieredStore::Planned::CollectRanks(const ExecContext& context, EvictionOrder order,
                                          size_t one_in, const Rank& low, const Rank& high,
                                          RankList* ranks, size_t* below) const {
  // A row promoted between the two passes would be missed by both, and not be evicted in turn.
  const std::lock_guard<OrderedMutex> none_moves(store_->promotion_);
  TF_EMBED_RETURN_IF_ERROR(
      cache().CollectRanks(context.InSerial(), order, one_in, low, high, ranks, below));
  return store_->lower_->CollectRanks(order, one_in, low, high, ranks, below);
}

Status TieredStore::Planned::FindExpired(const Moment& now, size_t num_absent, RankList* expired) {
  const std::lock_guard<OrderedMutex> none_moves(store_->promotion_);
  TF_EMBED_RETURN_IF_ERROR(cache().FindExpired(now, num_absent, expired));
  return store_->lower_->FindExpired(store_->options_.policy, now, num_absent, expired);
}

Status TieredStore::RunPlanned(const ExecContext& context, bool bounded, const Write& write,
                               const KeyBatch& batch, size_t* wanted) {
  *wanted = 0;
  const ExecContext inner = context.Holding(Held::kWriting);
  std::unique_lock<OrderedMutex> turn;
  if (context.held != Held::kWriting) turn = std::unique_lock<OrderedMutex>(locks_.policy);
  Keys absent(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, batch, &absent));
  if (bounded && absent.size > 0 && NumCached() + absent.size > capacity_) {
    *wanted = absent.size;
    return Status();
  }
  TF_EMBED_RETURN_IF_ERROR(BringUp(inner, absent));

  return Plan(inner, write, batch, write.verb);
}

Status TieredStore::RunPlannedInParts(const ExecContext& context, const KeyBatch& batch,
                                      const Write& write, size_t limit) {
  const ReplaceLocks alone(locks_, context);
  if (!HasRule(write.rule)) return RuleWasChanged(options_.name);
  const ExecContext inner = context.Holding(Held::kWriting);
  const auto run = [&](const ExecContext& unplanned, const KeyBatch& taken) {
    const auto run_part = [&](const KeyBatch& part) {
      Keys absent(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, part, &absent));
      TF_EMBED_RETURN_IF_ERROR(MakeRoomAlone(inner, part, absent.size));
      TF_EMBED_RETURN_IF_ERROR(BringUp(inner, absent));
      return write.verb(unplanned, part);
    };
    return ForEachPart(taken, limit, std::cref(run_part));
  };
  // Exclusive access makes the policy's lock unnecessary.
  return Plan(inner, write, batch, std::cref(run));
}

Status TieredStore::Plan(
    const ExecContext& inner, const Write& write, const KeyBatch& batch,
    const std::function<Status(const ExecContext& inner, const KeyBatch& taken)>& run) {
  const size_t places = batch.NumPositions();
  KeyBatch counted = batch;
  counted.distinct = false;  // a plan counts new keys, so it can't rely on the caller's hint
  KeyGroups groups(options_.allocator);
  Buffer<StoreCache::Found> found(options_.allocator);
  Buffer<bool> stays_away(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(groups.Build(inner, counted, nullptr));
  TF_EMBED_RETURN_IF_ERROR(found.Resize(places));
  TF_EMBED_RETURN_IF_ERROR(stays_away.Resize(places));
  const auto for_each_group = [&](const auto& visit) {
    return groups.ForEachRange(inner, kSurveyCost, [&](KeyGroups::Range* range) {
      while (range->Next()) {
        for (size_t i = 0; i < range->size(); ++i) TF_EMBED_RETURN_IF_ERROR(visit((*range)[i]));
      }
      return Status();
    });
  };
  const auto survey = [&](WritePlan* plan) {
    TF_EMBED_RETURN_IF_ERROR(cache_->cache()->NoteUses(inner, batch, found.data()));
    Decision* const decisions = plan->decisions.data();
    return for_each_group([&](const KeyGroup& group) {
      const uint32_t position = group.positions[0];
      if (plan->scores.size() > 0) {
        const int64_t score = batch.scores[group.positions[group.count - 1]];
        plan->scores[position] = RowStatistics::ScoreBits(score);
      }
      StoreCache::Found what = found[position];
      if (what == StoreCache::Found::kAbsent) {
        TF_EMBED_RETURN_IF_ERROR(NoteColdUse(inner, group.key, &what));
      }
      if (what == StoreCache::Found::kPresent) return Status();
      const bool wants = !write.wants || write.wants(group);
      if (what == StoreCache::Found::kExpired) {
        decisions[position] = wants ? Decision::kExpired : Decision::kExpiredUnwanted;
      } else if (wants) {
        decisions[position] = Decision::kAbsent;
      }
      return Status();
    });
  };
  const auto write_by = [&](const WritePlan& plan) {
    ExecContext unplanned = inner;
    unplanned.restoring = true;
    std::fill_n(stays_away.data(), places, false);
    TF_EMBED_RETURN_IF_ERROR(for_each_group([&](const KeyGroup& group) {
      if (plan.decisions[group.positions[0]] != Decision::kSkip) return Status();
      for (size_t k = 0; k < group.count; ++k) stays_away[group.positions[k]] = true;
      return Status();
    }));
    const bool none_stays_away =
        places == 0 || std::memchr(stays_away.data(), 1, places) == nullptr;
    if (none_stays_away) return run(unplanned, batch);
    Keys taken(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(Absent(batch, stays_away.data(), &taken));
    return taken.size == 0 ? Status() : run(unplanned, taken.Batch(batch));
  };
  return planner_.Run(inner, batch, write.admits, std::cref(survey), std::cref(write_by));
}

Status TieredStore::NoteColdUse(const ExecContext& inner, int64_t key, StoreCache::Found* found) {
  const StatisticSet set = options_.policy.statistics;
  uint64_t cold[StatisticSet::kMax];
  *found = StoreCache::Found::kAbsent;
  if (!lower_->FindStatistics(key, cold)) return Status();
  RowStatistics::Word words[StatisticSet::kMax];
  for (size_t i = 0; i < set.size(); ++i) words[i].store(cold[i], std::memory_order_relaxed);
  const RowStatistics row(set, words);
  *found = StoreCache::Found::kExpired;
  if (options_.policy.Expired(row, inner.now)) return Status();
  if (changes_ != nullptr &&
      RowChange::IsWanted(cold[set.IndexOf(Statistic::kChange)], changes_->wanted())) {
    WholeRows rows(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(
        lower_->Get(inner.InSerial(), &key, 1, LowerTier::After::kCold, &rows));
    GiveCold(rows);
  }
  lower_->NoteUse(key, inner.now);
  *found = StoreCache::Found::kPresent;
  return Status();
}

Status TieredStore::CopyRow(const ExecContext& context, const void* row, size_t bytes,
                            void* to) const {
  if (context.rows_on_device) return tiers_.copy_row(context, row, bytes, to);
  std::memcpy(to, row, bytes);
  return Status();
}

Status TieredStore::CopyRows(const ExecContext& inner, const KeyBatch& batch,
                             WholeRows* rows) const {
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  const size_t words = options_.policy.statistics.size();
  Buffer<bool> exists(options_.allocator);
  Keys absent(options_.allocator);
  WholeRows cold(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(
      rows->Resize(batch.size, layout.weight_bytes, layout.wide_slot_bytes, words));
  SlotsOut slots;
  if (rule_.slots_per_row() > 0) slots = {&rule_, rows->slots.data()};
  ExecContext reading = inner.OnHost();
  reading.training = false;  // not a use of the rows
  TF_EMBED_RETURN_IF_ERROR(
      cache_->Find(reading, batch, DefaultRows(), rows->weights.data(), exists.data(), slots));
  TF_EMBED_RETURN_IF_ERROR(Absent(batch, exists.data(), &absent));
  counters_.copied_down.fetch_add(batch.size - absent.size, std::memory_order_relaxed);
  counters_.found_again.fetch_add(absent.size, std::memory_order_relaxed);
  TF_EMBED_RETURN_IF_ERROR(
      cache_->eviction()->FindStatistics(inner, batch, rows->statistics.data(), exists.data()));
  std::copy_n(batch.keys, batch.size, rows->keys.data());
  if (absent.size > 0) {
    TF_EMBED_RETURN_IF_ERROR(
        lower_->Get(inner, absent.keys.data(), absent.size, LowerTier::After::kCold, &cold));
  }
  // Cold rows fill the positions of absent keys. Positions left over are removed.
  size_t taken = 0;
  rows->size = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    const WholeRows* from = rows;
    size_t place = i;
    if (!exists[i]) {
      if (taken == cold.size) continue;
      from = &cold;
      place = taken++;
    }
    const size_t to = rows->size++;
    if (from == rows && place == to) continue;
    rows->keys[to] = from->keys[place];
    std::memcpy(rows->weights.data() + to * layout.weight_bytes,
                from->weights.data() + place * layout.weight_bytes, layout.weight_bytes);
    if (layout.wide_slot_bytes > 0) {
      std::memcpy(rows->slots.data() + to * layout.wide_slot_bytes,
                  from->slots.data() + place * layout.wide_slot_bytes, layout.wide_slot_bytes);
    }
    std::copy_n(from->statistics.data() + place * words, words,
                rows->statistics.data() + to * words);
  }
  return Status();
}

Status TieredStore::Erase(const ExecContext& context, const KeyBatch& batch) {
  const WriteLocks writing(locks_, context);
  std::unique_lock<OrderedMutex> turn;
  if (options_.policy.plans_writes() && context.held != Held::kWriting) {
    turn = std::unique_lock<OrderedMutex>(locks_.policy);
  }
  // Remove the lower tier's copy first, which may be older. No row may be promoted in between.
  const std::lock_guard<OrderedMutex> lock(promotion_);
  const ExecContext inner = context.Holding(Held::kWriting).InSerial();
  TF_EMBED_RETURN_IF_ERROR(NoteColdLeave(inner, batch));
  lower_->Erase(batch.keys, batch.size);
  left_since_ += batch.size;
  return cache_->Erase(inner, batch);
}

Status TieredStore::Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) {
  const ExecContext inner = ExecContext::Serial().InSerial().Holding(Held::kWriting);
  WholeRows leaving(options_.allocator);
  for (size_t begin = 0; begin < count; begin += kChunk) {
    KeyBatch batch{keys + begin, std::min(kChunk, count - begin)};
    batch.distinct = true;
    if (options_.policy.sink != nullptr) {
      {
        const std::lock_guard<OrderedMutex> none_moves(promotion_);
        TF_EMBED_RETURN_IF_ERROR(CopyRows(inner, batch, &leaving));
      }
      TF_EMBED_RETURN_IF_ERROR(options_.policy.sink->Evict(leaving, rule_));
    }
    // The row must not be promoted in between.
    const std::lock_guard<OrderedMutex> lock(promotion_);
    if (changes_ != nullptr) TF_EMBED_RETURN_IF_ERROR(NoteColdLeave(inner, batch));
    // Remove the lower tier's copies first: they may be older, and a lookup that misses the cache
    // reads them.
    lower_->Erase(batch.keys, batch.size);
    if (changes_ != nullptr) {
      TF_EMBED_RETURN_IF_ERROR(cache_->Erase(inner, batch));
    } else {
      cache_->cache()->Drop(inner, batch.keys, batch.size);
    }
    left_since_ += batch.size;
    counter->fetch_add(batch.size, std::memory_order_relaxed);
  }
  return Status();
}

Status TieredStore::RemoveAll(const RankList& list, std::atomic<uint64_t>* counter,
                              size_t* removed) {
  Buffer<int64_t> keys(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(kChunk));
  for (size_t begin = 0; begin < list.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, list.size() - begin);
    for (size_t i = 0; i < count; ++i) keys[i] = KeyOfHash(list[begin + i].hash());
    TF_EMBED_RETURN_IF_ERROR(Remove(keys.data(), count, counter));
    *removed += count;
  }
  return Status();
}

Status TieredStore::EvictExpired(const ExecContext& context, size_t* removed) {
  if (options_.policy.ttl_milliseconds == 0) return Status();
  const PauseLocks pausing(locks_, context);
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  RankList expired(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(planned_.FindExpired(context.now, kAnyNumber, &expired));
  return RemoveAll(expired, &planner_.counters().expired, removed);
}

Status TieredStore::EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                               size_t num_left, size_t* removed) {
  bool much;
  {
    const PauseLocks pausing(locks_, context);
    const std::shared_lock<FairSharedMutex> lock(locks_.content);
    const size_t present = SizeInside();
    much = num_left + present / kRebuildDivisor <= present;
    RankList leaving(options_.allocator);
    size_t below = 0;
    TF_EMBED_RETURN_IF_ERROR(
        planned_.CollectRanks(context, order, 1, Rank(), limit, &leaving, &below));
    TF_EMBED_RETURN_IF_ERROR(RemoveAll(leaving, &planner_.counters().evicted, removed));
  }
  if (much) (void)Shrink(context);  // without memory or space, the store stays correct but larger
  return Status();
}

Status TieredStore::CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                                 const Rank& low, const Rank& high, RankList* ranks,
                                 size_t* below) const {
  const ReadLocks reading(locks_, context);
  return planned_.CollectRanks(context, order, one_in, low, high, ranks, below);
}

Status TieredStore::FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                   uint64_t* statistics, bool* exists) const {
  const ReadLocks reading(locks_, context);
  const ExecContext inner = context.Holding(Held::kContent);
  const size_t words = options_.policy.statistics.size();
  Buffer<bool> own(options_.allocator);
  Keys absent(options_.allocator);
  if (exists == nullptr) {
    TF_EMBED_RETURN_IF_ERROR(own.Resize(batch.NumPositions()));
    exists = own.data();
  }
  TF_EMBED_RETURN_IF_ERROR(cache_->eviction()->FindStatistics(inner, batch, statistics, exists));
  TF_EMBED_RETURN_IF_ERROR(Absent(batch, exists, &absent));
  if (absent.size == 0) return Status();
  // No row is in transit from here on. Rows promoted since the first lookup are in the cache.
  const std::lock_guard<OrderedMutex> none_moves(promotion_);
  TF_EMBED_RETURN_IF_ERROR(cache_->eviction()->FindStatistics(inner.InSerial(), absent.Batch(batch),
                                                              statistics, exists));
  for (size_t i = 0; i < absent.size; ++i) {
    if (exists[absent.positions[i]]) continue;
    uint64_t cold[StatisticSet::kMax];
    if (!lower_->FindStatistics(absent.keys[i], cold)) continue;
    std::copy_n(cold, words, statistics + absent.positions[i] * words);
    exists[absent.positions[i]] = true;
  }
  return Status();
}

Status TieredStore::AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                     StatisticSet set, const uint64_t* statistics) {
  const PauseLocks pausing(locks_, context);
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  const ExecContext inner = context.Holding(Held::kWriting);
  TF_EMBED_RETURN_IF_ERROR(NoteColdAssign(inner, batch, set));
  TF_EMBED_RETURN_IF_ERROR(cache_->eviction()->AssignStatistics(inner, batch, set, statistics));
  for (size_t i = 0; i < batch.size; ++i) {
    lower_->AssignStatistics(batch.keys[i], set, statistics + batch.Position(i) * set.size());
    const uint64_t hash = HashKey(batch.keys[i]);
    RowStatistics::Word* words = nullptr;
    TF_EMBED_RETURN_IF_ERROR(planned_.Find(batch.keys[i], hash, &words));
    if (words == nullptr) continue;
    const RowStatistics row(options_.policy.statistics, words);
    TF_EMBED_RETURN_IF_ERROR(planner_.NoteRank(RankOf(options_.policy.eviction, row, hash)));
  }
  return Status();
}

}  // namespace tf_embed
