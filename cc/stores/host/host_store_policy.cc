// SPDX-License-Identifier: Apache-2.0
// HostStore's admission and eviction. Verbs on rows: host_store.cc.
#include <algorithm>
#include <cassert>
#include <functional>
#include <utility>

#include "cc/core/base/first_failure.h"
#include "cc/core/base/hash.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/host/host_store_inl.h"

namespace tf_embed {
namespace {

// Rough costs in nanoseconds, used to split work over threads.
constexpr size_t kFindCost = 60;
constexpr size_t kRankCost = 8;
// Rows evicted at a time.
constexpr size_t kChunk = 512;
// Rebuild the store if it loses at least 1 row in this many.
constexpr size_t kRebuildDivisor = 4;

bool Below(const Rank& rank, const Rank& limit) { return rank < limit || limit == kHighestRank; }

}  // namespace

void HostStore::Planned::PrefetchStatistics(uint64_t hash) const {
  const Content& content = *store_->content_;
  const StripedIndex::Entry entry = content.index.Find(KeyOfHash(hash), hash);
  if (entry.found()) __builtin_prefetch(content.rows.Statistics(entry.row_id));
}

Status HostStore::Planned::Find(int64_t key, uint64_t hash, RowStatistics::Word** words) const {
  const Content& content = *store_->content_;
  const StripedIndex::Entry entry = content.index.Find(key, hash);
  *words = entry.found() ? content.rows.Statistics(entry.row_id) : nullptr;
  return Status();
}

Status HostStore::Planned::CollectRanks(const ExecContext& context, EvictionOrder order,
                                        size_t one_in, const Rank& low, const Rank& high,
                                        RankList* ranks, size_t* below) const {
  return store_->RanksOf(*store_->content_, context, order, one_in, low, high, ranks, below);
}

Status HostStore::Planned::FindExpired(const Moment& now, size_t num_absent, RankList* expired) {
  const Content& content = *store_->content_;
  Status status;
  content.index.ForSome(
      BucketsToSearch(num_absent), &expiry_cursor_,
      [&](const Bucket&, int64_t key, uint32_t row_id) {
        if (!status.ok()) return;
        if (store_->options_.policy.Expired(store_->StatisticsOf(content, row_id), now)) {
          status = expired->Append(Rank(0, HashKey(key)));
        }
      });
  return status;
}

Status HostStore::Evict(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) {
  StripedIndex& index = content_->index;
  RowMemory& rows = content_->rows;
  WholeRows leaving(options_.allocator);
  RowCopier copier(*content_, options_.allocator);
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t size = std::min(kChunk, count - begin);
    if (options_.policy.sink != nullptr) {
      leaving.size = 0;
      TF_EMBED_RETURN_IF_ERROR(copier.MakeRoom(size, &leaving));
      for (size_t i = begin; i < begin + size; ++i) {
        const StripedIndex::Entry entry = index.Find(keys[i], HashKey(keys[i]));
        copier.Append(*entry.bucket, keys[i], entry.row_id, &leaving);
      }
      TF_EMBED_RETURN_IF_ERROR(options_.policy.sink->Evict(leaving, content_->rule));
    }
    // Free writes to the row, and the lock of the next key would wait for that miss.
    for (size_t i = begin; i < begin + size; ++i) {
      const StripedIndex::Entry entry = index.Find(keys[i], HashKey(keys[i]));
      if (entry.found()) __builtin_prefetch(rows.Row(entry.row_id), 1);
    }
    for (size_t i = 0; i < size; ++i) {
      const uint64_t hash = HashKey(keys[begin + i]);
      const size_t stripe = StripedIndex::StripeOf(hash);
      std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
      NoteLeaves(*content_, keys[begin + i], hash);
      const uint32_t row_id = index.Erase(keys[begin + i], hash);
      assert(row_id != kNoRowId);
      rows.Free(&content_->pools[stripe], row_id);
    }
    counter->fetch_add(size, std::memory_order_relaxed);
  }
  return Status();
}

template <typename Leaves>
Status HostStore::EvictAll(const ExecContext& context, const Leaves& leaves,
                           std::atomic<uint64_t>* counter, size_t* removed) {
  const PauseLocks pausing(locks_, context);
  Shared lock(locks_.content);
  FirstFailure failure;
  std::atomic<size_t> sum{0};
  const auto evict = [&](size_t begin, size_t end) {
    RankList leaving(options_.allocator);
    Buffer<int64_t> keys(options_.allocator);
    for (size_t stripe = begin; stripe < end && !failure.failed(); ++stripe) {
      Status status;
      leaving.Clear();
      ForEachStatistics(*content_, stripe, [&](int64_t key, const RowStatistics& row) {
        const uint64_t hash = HashKey(key);
        if (status.ok() && leaves(row, hash)) status = leaving.Append(Rank(0, hash));
      });
      if (status.ok()) status = keys.Resize(leaving.size());
      for (size_t i = 0; status.ok() && i < leaving.size(); ++i) {
        keys[i] = KeyOfHash(leaving[i].hash());
      }
      if (status.ok()) status = Evict(keys.data(), leaving.size(), counter);
      if (!status.ok()) return failure.Note(std::move(status));
      sum.fetch_add(leaving.size(), std::memory_order_relaxed);
    }
  };
  const size_t keys_of_stripe = content_->index.size() / StripedIndex::kStripes;
  context.parallel_for(StripedIndex::kStripes, kRankCost * (1 + keys_of_stripe), std::cref(evict));
  *removed += sum.load(std::memory_order_relaxed);
  return failure.Take();
}

Status HostStore::EvictExpired(const ExecContext& context, size_t* removed) {
  if (options_.policy.ttl_milliseconds == 0) return Status();
  const auto leaves = [&](const RowStatistics& row, uint64_t) {
    return options_.policy.Expired(row, context.now);
  };
  return EvictAll(context, leaves, &planner_.counters().expired, removed);
}

Status HostStore::EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                             size_t num_left, size_t* removed) {
  const auto leaves = [&](const RowStatistics& row, uint64_t hash) {
    return Below(RankOf(order, row, hash), limit);
  };
  const size_t present = size();
  const bool much = num_left + present / kRebuildDivisor <= present;
  // A copy may fail late, but a sink or a snapshot must only learn of rows that have left.
  if (much && options_.policy.sink == nullptr && changes_ == nullptr) {
    const auto stays = [&](const RowStatistics& row, uint64_t hash) { return !leaves(row, hash); };
    if (KeepOnly(context, num_left, stays, removed).ok()) return Status();
  }
  TF_EMBED_RETURN_IF_ERROR(EvictAll(context, leaves, &planner_.counters().evicted, removed));
  if (much) (void)Shrink(context);  // without memory, the store stays correct but larger
  return Status();
}

template <typename Stays>
Status HostStore::KeepOnly(const ExecContext& context, size_t num_left, const Stays& stays,
                           size_t* removed) {
  std::unique_ptr<Content> content;  // holds the old content, freed after the locks
  const PauseLocks pausing(locks_, context);
  size_t gone;
  {
    Shared lock(locks_.content);  // readers continue
    TF_EMBED_RETURN_IF_ERROR(NewContent(num_left, &content));
    TF_EMBED_RETURN_IF_ERROR(CopyContent(context, stays, content.get()));
    gone = content_->index.size() - content->index.size();
  }
  planner_.counters().evicted.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  Alone lock(locks_.content);
  content_.swap(content);
  return Status();
}

Status HostStore::CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                               const Rank& low, const Rank& high, RankList* ranks,
                               size_t* below) const {
  const ReadLocks reading(locks_, context);
  return RanksOf(*content_, context, order, one_in, low, high, ranks, below);
}

Status HostStore::RanksOf(const Content& content, const ExecContext& context, EvictionOrder order,
                          size_t one_in, const Rank& low, const Rank& high, RankList* ranks,
                          size_t* below) const {
  FirstFailure failure;
  std::mutex mutex;  // guards the shared results
  const auto collect = [&](size_t begin, size_t end) {
    RankList mine(options_.allocator);
    size_t mine_below = 0;
    Status status;
    for (size_t i = begin; i < end && status.ok(); ++i) {
      const size_t stripe = i * one_in;
      std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
      ForEachStatistics(content, stripe, [&](int64_t key, const RowStatistics& row) {
        const Rank rank = RankOf(order, row, HashKey(key));
        if (rank < low) {
          ++mine_below;
        } else if (status.ok() && Below(rank, high)) {
          status = mine.Append(rank);
        }
      });
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (status.ok()) status = ranks->Append(mine.begin(), mine.size());
    *below += mine_below;
    if (!status.ok()) failure.Note(std::move(status));
  };
  const size_t keys_of_stripe = content.index.size() / StripedIndex::kStripes;
  context.parallel_for(StripedIndex::kStripes / one_in, kRankCost * (1 + keys_of_stripe),
                       std::cref(collect));
  return failure.Take();
}

Status HostStore::FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                 uint64_t* statistics, bool* exists) const {
  const ReadLocks reading(locks_, context);
  const size_t words = content_->rows.layout().statistics_per_row;
  const auto find = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const StripedIndex::Entry entry = content_->index.Find(batch.keys[i], HashKey(batch.keys[i]));
      const size_t position = batch.Position(i);
      for (size_t word = 0; word < words; ++word) {
        statistics[position * words + word] =
            entry.found()
                ? content_->rows.Statistics(entry.row_id)[word].load(std::memory_order_relaxed)
                : 0;
      }
      if (exists != nullptr) exists[position] = entry.found();
    }
  };
  context.parallel_for(batch.size, kFindCost, std::cref(find));
  return Status();
}

Status HostStore::AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                   StatisticSet set, const uint64_t* statistics) {
  const PauseLocks pausing(locks_, context);
  Shared lock(locks_.content);
  for (size_t i = 0; i < batch.size; ++i) {
    const uint64_t hash = HashKey(batch.keys[i]);
    StripedIndex::Entry entry;
    do {
      entry = content_->index.Find(batch.keys[i], hash);
    } while (entry.found() && !entry.bucket->TryLock(entry.word));
    if (!entry.found()) continue;
    // Users set scores, as they set rows. The other statistics are about uses, which are no
    // changes.
    if (set.Has(Statistic::kScore)) {
      NoteChange(*content_, batch.keys[i], entry.row_id);
    } else if (IsWanted(*content_, entry.row_id)) {
      Give(*content_, batch.keys[i], entry.row_id);
    }
    RowStatistics row = StatisticsOf(*content_, entry.row_id);
    const uint64_t* const words = statistics + batch.Position(i) * set.size();
    for (const Statistic statistic : kAllStatistics) {
      if (set.Has(statistic)) row.Set(statistic, words[set.IndexOf(statistic)]);
    }
    entry.bucket->Unlock(entry.word);
    TF_EMBED_RETURN_IF_ERROR(planner_.NoteRank(RankOf(options_.policy.eviction, row, hash)));
  }
  return Status();
}

}  // namespace tf_embed
