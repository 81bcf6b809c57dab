// How rows come and leave by a HostTable's policy. The verbs on rows are in host_table.cc.
#include <algorithm>
#include <cassert>
#include <functional>
#include <iterator>
#include <utility>

#include "cc/core/base/first_failure.h"
#include "cc/core/base/hash.h"
#include "cc/core/rows/row_copy.h"
#include "cc/host/host_table.h"
#include "cc/host/host_table_inl.h"

namespace tf_embed {
namespace {

// Rough costs in nanoseconds, by which a thread pool splits work.
constexpr size_t kSurveyCost = 60;
constexpr size_t kRankCost = 8;
// A pass for victims takes at least so many, or one row in so many.
constexpr size_t kLeastVictims = 1024;
constexpr size_t kVictimsOneIn = 16;
constexpr size_t kSampleOneIn = 32;
// Buckets that are searched for expired rows for each key of a batch that is new: with at least
// one key in each the table is gone through once while half of it comes.
constexpr size_t kBucketsOfNewKey = 2;
constexpr size_t kSmallestSearch = 16;
// Rows that are taken out at a time.
constexpr size_t kChunk = 512;
// A table that loses one row in so many is worth a copy.
constexpr size_t kMuchOneIn = 4;

// The slots of rows that are about to leave. A row may stand in line twice, and a reader may raise
// its rank between the two, so that they don't come one behind the other.
class ChosenSlots {
 public:
  ChosenSlots() { Clear(); }
  void Clear() { std::fill(std::begin(places_), std::end(places_), kNoSlot); }

  // False if it is there. For at most kChunk slots.
  bool Add(uint32_t slot) {
    size_t place = (slot * kGolden64) >> (64 - kPlaceBits);
    for (; places_[place] != kNoSlot; place = (place + 1) % kPlaces) {
      if (places_[place] == slot) return false;
    }
    places_[place] = slot;
    return true;
  }

 private:
  static constexpr int kPlaceBits = 10;
  static constexpr size_t kPlaces = size_t{1} << kPlaceBits;
  static_assert(kPlaces == 2 * kChunk);
  uint32_t places_[kPlaces];
};

bool Below(const Rank& rank, const Rank& limit) { return rank < limit || limit == kHighestRank; }

// A key that wants to come, with the bits of its score.
struct Newcomer {
  uint64_t score;
  size_t number;  // in the order of the batch
  int64_t key;
  size_t position;

  // Highest scores first, and of equal ones the first in the batch.
  friend bool operator<(const Newcomer& a, const Newcomer& b) {
    return a.score != b.score ? a.score > b.score : a.number < b.number;
  }
};

}  // namespace

Status HostTable::PlanWrite(const ExecContext& context, const KeyBatch& batch,
                            const KeyGroups& groups, Admits admits, const Wants& wants,
                            WritePlan* plan) {
  const RowPolicy& policy = options_.policy;
  plan->is_made = true;
  const size_t places = batch.Places();
  TF_EMBED_RETURN_IF_ERROR(plan->verdicts.Resize(places));
  Verdict* const verdicts = plan->verdicts.data();
  std::fill(verdicts, verdicts + places, Verdict::kNothing);
  if (policy.max_rows > 0 && OrdersByScores(batch)) {
    TF_EMBED_RETURN_IF_ERROR(plan->scores.Resize(places));
  }
  TF_EMBED_RETURN_IF_ERROR(Survey(context, batch, groups, wants, plan));

  // The absent keys, in the order of the batch.
  Buffer<int64_t> keys(options_.allocator);
  Buffer<size_t> positions(options_.allocator);
  Buffer<bool> admitted(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(positions.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(admitted.Resize(batch.size));
  size_t absent = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    const size_t position = batch.Position(i);
    if (verdicts[position] == Verdict::kNothing) continue;
    keys[absent] = batch.keys[i];
    positions[absent++] = position;
  }
  if (policy.ttl_milliseconds > 0) {
    TF_EMBED_RETURN_IF_ERROR(EvictExpiredOfBatch(context.now, batch, verdicts, absent));
  }

  // Those that the verb wants, and of them those that are admitted.
  size_t wanted = 0;
  for (size_t i = 0; i < absent; ++i) {
    const Verdict verdict = verdicts[positions[i]];
    verdicts[positions[i]] = Verdict::kLeave;
    if (verdict == Verdict::kExpiredLeave) continue;
    keys[wanted] = keys[i];
    positions[wanted++] = positions[i];
  }
  std::fill(admitted.data(), admitted.data() + wanted, true);
  if (policy.admission != nullptr && admits == Admits::kCounted) {
    TF_EMBED_RETURN_IF_ERROR(policy.admission->Count(keys.data(), wanted, admitted.data()));
  } else if (policy.admission != nullptr && admits == Admits::kPeeked) {
    policy.admission->Peek(keys.data(), wanted, admitted.data());
  }
  size_t coming = 0;
  for (size_t i = 0; i < wanted; ++i) {
    if (!admitted[i]) continue;
    keys[coming] = keys[i];
    positions[coming++] = positions[i];
  }
  if (admits == Admits::kCounted) {
    counters_.held_back.fetch_add(wanted - coming, std::memory_order_relaxed);
  }

  // Room for them; without it, the last ones stay away.
  size_t size = content_->index.size();
  size_t room = coming;
  if (policy.max_rows > 0 && size + coming > policy.max_rows) {
    size_t evicted = 0;
    TF_EMBED_RETURN_IF_ERROR(
        MakeRoom(context, *plan, coming, keys.data(), positions.data(), &evicted));
    size -= evicted;
    room = std::min(coming, policy.max_rows - std::min(policy.max_rows, size));
    if (admits != Admits::kPeeked) {  // else the apply that follows will count them
      counters_.refused.fetch_add(coming - room, std::memory_order_relaxed);
    }
  }
  if (policy.admission != nullptr) policy.admission->Forget(keys.data(), room);
  for (size_t i = 0; i < room; ++i) verdicts[positions[i]] = Verdict::kInsert;
  plan->size_before = size;
  return Status();
}

Status HostTable::MakeRoom(const ExecContext& context, const WritePlan& plan, size_t coming,
                           int64_t* keys, size_t* positions, size_t* evicted) {
  const size_t wanted = content_->index.size() + coming - options_.policy.max_rows;
  if (plan.scores.size() == 0) return EvictLowest(context, wanted, nullptr, evicted);
  const size_t pressing = std::min(wanted, coming);
  Buffer<Newcomer> newcomers(options_.allocator);
  Buffer<uint64_t> scores(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(newcomers.Resize(coming));
  TF_EMBED_RETURN_IF_ERROR(scores.Resize(coming));
  for (size_t i = 0; i < coming; ++i) {
    newcomers[i] = {plan.scores[positions[i]], i, keys[i], positions[i]};
  }
  std::sort(newcomers.data(), newcomers.data() + coming);
  for (size_t i = 0; i < coming; ++i) {
    scores[i] = newcomers[i].score;
    positions[i] = newcomers[i].position;
    keys[i] = newcomers[i].key;
  }
  return EvictLowest(context, pressing, scores.data() + (coming - pressing), evicted);
}

Status HostTable::Survey(const ExecContext& context, const KeyBatch& batch, const KeyGroups& groups,
                         const Wants& wants, WritePlan* plan) {
  const RowPolicy& policy = options_.policy;
  Verdict* const verdicts = plan->verdicts.data();
  const auto survey = [&](KeyGroups::Range* range) {
    return ForEachGroup(
        *content_, range, [](const KeyGroup&) {},
        [&](const KeyGroup& group, const Probe& probe) {
          Verdict& verdict = verdicts[group.positions[0]];
          if (plan->scores.size() > 0) {
            const int64_t score = batch.scores[group.positions[group.count - 1]];
            plan->scores[group.positions[0]] = RowStatistics::ScoreBits(score);
          }
          if (!probe.entry.found()) {
            if (wants(group)) verdict = Verdict::kAbsent;
          } else if (policy.statistics.size() > 0) {
            // Nobody else writes, so the slot is still the key's.
            RowStatistics row = StatisticsOf(*content_, probe.entry.slot);
            if (policy.Expired(row, context.now)) {
              verdict = wants(group) ? Verdict::kExpired : Verdict::kExpiredLeave;
            } else {
              row.Use(context.now);
            }
          }
          return Status();
        });
  };
  return groups.ForEachRange(context, kSurveyCost, survey);
}

Status HostTable::EvictExpiredOfBatch(const Moment& now, const KeyBatch& batch,
                                      const Verdict* verdicts, size_t keys) {
  Buffer<int64_t> expired(options_.allocator);
  const size_t buckets = kSmallestSearch + kBucketsOfNewKey * keys;
  TF_EMBED_RETURN_IF_ERROR(expired.Resize(batch.size));
  size_t count = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    // Equal keys have one verdict, at the first one's place.
    const Verdict verdict = verdicts[batch.Position(i)];
    if (verdict == Verdict::kExpired || verdict == Verdict::kExpiredLeave) {
      expired[count++] = batch.keys[i];
    }
  }
  TF_EMBED_RETURN_IF_ERROR(Evict(expired.data(), count, &counters_.expired));

  RankList others(options_.allocator);
  Status status;
  content_->index.ForSome(buckets, &expiry_cursor_, [&](const Bucket&, int64_t key, uint32_t slot) {
    if (!status.ok()) return;
    if (options_.policy.Expired(StatisticsOf(*content_, slot), now)) {
      status = others.Append(Rank(0, HashKey(key)));
    }
  });
  TF_EMBED_RETURN_IF_ERROR(std::move(status));
  TF_EMBED_RETURN_IF_ERROR(expired.Resize(others.size()));
  for (size_t i = 0; i < others.size(); ++i) expired[i] = KeyOfHash(others[i].hash());
  return Evict(expired.data(), others.size(), &counters_.expired);
}

Status HostTable::EvictLowest(const ExecContext& context, size_t wanted, const uint64_t* scores,
                              size_t* evicted) {
  const RowPolicy& policy = options_.policy;
  const StripedIndex& index = content_->index;
  int64_t victims[kChunk];
  size_t count = 0;
  ChosenSlots chosen;  // those of the victims
  RankList in_use(options_.allocator);
  const auto evict = [&] {
    TF_EMBED_RETURN_IF_ERROR(Evict(victims, count, &counters_.evicted));
    *evicted += count;
    count = 0;
    chosen.Clear();
    return Status();
  };
  for (bool all = false; *evicted + count < wanted;) {
    if (victims_.empty()) {
      if (all) break;
      // Rows in use that were passed over will come again, so more must come with them.
      const size_t passed_over = in_use.size();
      in_use.Clear();
      TF_EMBED_RETURN_IF_ERROR(evict());
      TF_EMBED_RETURN_IF_ERROR(FillVictims(context, wanted - *evicted + passed_over, &all));
      continue;
    }
    const Rank rank = victims_.Pop();
    if (const Rank* ahead = victims_.Ahead()) __builtin_prefetch(index.HomeOf(ahead->hash()));
    const int64_t key = KeyOfHash(rank.hash());
    const StripedIndex::Entry entry = index.Find(key, rank.hash());
    if (!entry.found()) continue;
    const RowStatistics row = StatisticsOf(*content_, entry.slot);
    const Rank present(EvictionScore(policy.eviction, row), rank.hash());
    if (rank < present) {
      TF_EMBED_RETURN_IF_ERROR(victims_.Push(present));
    } else if (present < rank) {
      continue;  // it left and came again, and stands in line twice
    } else if (row.Get(Statistic::kLastStep) == context.now.step) {
      TF_EMBED_RETURN_IF_ERROR(in_use.Append(rank));
    } else if (scores != nullptr && scores[*evicted + count] < rank.score()) {
      TF_EMBED_RETURN_IF_ERROR(victims_.Push(rank));
      break;
    } else if (chosen.Add(entry.slot)) {  // else it stands in line twice by equal ranks
      victims[count++] = key;
      if (count == kChunk) TF_EMBED_RETURN_IF_ERROR(evict());
    }
  }
  TF_EMBED_RETURN_IF_ERROR(evict());
  for (const Rank& rank : in_use) TF_EMBED_RETURN_IF_ERROR(victims_.Push(rank));
  return Status();
}

Status HostTable::FillVictims(const ExecContext& context, size_t wanted, bool* all) {
  const EvictionOrder order = options_.policy.eviction;
  const size_t size = content_->index.size();
  const size_t least = std::max({kLeastVictims, size / kVictimsOneIn, 2 * wanted});
  RankList ranks(options_.allocator);
  size_t below = 0;
  Rank limit = kHighestRank;
  if (2 * least < size) {  // the rank that about so many are below, by a sample
    TF_EMBED_RETURN_IF_ERROR(
        RanksOf(*content_, context, order, kSampleOneIn, Rank(), kHighestRank, &ranks, &below));
    const size_t place = least * ranks.size() / size;
    if (place < ranks.size()) {
      std::nth_element(ranks.begin(), ranks.begin() + place, ranks.end());
      limit = ranks[place];
    }
    ranks.Clear();
  }
  TF_EMBED_RETURN_IF_ERROR(RanksOf(*content_, context, order, 1, Rank(), limit, &ranks, &below));
  if (ranks.size() < wanted && !(limit == kHighestRank)) {  // not what the sample promised
    limit = kHighestRank;
    ranks.Clear();
    TF_EMBED_RETURN_IF_ERROR(RanksOf(*content_, context, order, 1, Rank(), limit, &ranks, &below));
  }
  *all = limit == kHighestRank;
  victims_.Fill(&ranks, limit);
  return Status();
}

Status HostTable::NoteInserted(const KeyBatch& batch, const Moment& now, const WritePlan& plan) {
  const size_t size = content_->index.size();
  counters_.admitted.fetch_add(size - plan.size_before, std::memory_order_relaxed);
  if (options_.policy.max_rows == 0) return Status();
  if (OrdersByScores(batch)) {  // what has left since, or has another score, is found out later
    for (size_t i = 0; i < batch.size; ++i) {
      const uint64_t score = RowStatistics::ScoreBits(batch.scores[batch.Position(i)]);
      TF_EMBED_RETURN_IF_ERROR(victims_.Push(Rank(score, HashKey(batch.keys[i]))));
    }
    return Status();
  }
  RowStatistics::Word words[StatisticSet::kMost] = {};
  RowStatistics fresh(options_.policy.statistics, words);
  fresh.Begin(now);
  const uint64_t score = EvictionScore(options_.policy.eviction, fresh);
  if (score > victims_.limit().score()) return Status();
  for (size_t i = 0; i < batch.size; ++i) {
    if (plan.verdicts[batch.Position(i)] != Verdict::kInsert) continue;
    TF_EMBED_RETURN_IF_ERROR(victims_.Push(Rank(score, HashKey(batch.keys[i]))));
  }
  return Status();
}

Status HostTable::Evict(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) {
  StripedIndex& index = content_->index;
  RowStore& rows = content_->rows;
  const size_t row_bytes = rows.layout().weight_bytes;
  Buffer<char> weights(options_.allocator);
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t size = std::min(kChunk, count - begin);
    if (options_.policy.sink != nullptr) {
      TF_EMBED_RETURN_IF_ERROR(weights.Resize(size * row_bytes));
      for (size_t i = 0; i < size; ++i) {
        const int64_t key = keys[begin + i];
        LoadRow(rows.Row(index.Find(key, HashKey(key)).slot), row_bytes,
                weights.data() + i * row_bytes);
      }
      TF_EMBED_RETURN_IF_ERROR(options_.policy.sink->Evict(size, keys + begin, weights.data()));
    }
    for (size_t i = 0; i < size; ++i) {
      const uint64_t hash = HashKey(keys[begin + i]);
      const size_t stripe = StripedIndex::StripeOf(hash);
      std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
      const uint32_t slot = index.Erase(keys[begin + i], hash);
      assert(slot != kNoSlot);
      rows.Free(&content_->pools[stripe], slot);
    }
    counter->fetch_add(size, std::memory_order_relaxed);
  }
  return Status();
}

template <typename Leaves>
Status HostTable::EvictAll(const ExecContext& context, const Leaves& leaves,
                           std::atomic<uint64_t>* counter, size_t* removed) {
  const PausingGates pausing(gates_, context);
  Shared gate(gates_.content);
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

Status HostTable::EvictExpired(const ExecContext& context, size_t* removed) {
  if (options_.policy.ttl_milliseconds == 0) return Status();
  const auto leaves = [&](const RowStatistics& row, uint64_t) {
    return options_.policy.Expired(row, context.now);
  };
  return EvictAll(context, leaves, &counters_.expired, removed);
}

Status HostTable::EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                             size_t num_left, size_t* removed) {
  const auto leaves = [&](const RowStatistics& row, uint64_t hash) {
    return Below(Rank(EvictionScore(order, row), hash), limit);
  };
  const size_t present = size();
  const bool much = num_left + present / kMuchOneIn <= present;
  // What a sink learns of must have left, and a copy can fail when it is nearly done.
  if (much && options_.policy.sink == nullptr) {
    const auto stays = [&](const RowStatistics& row, uint64_t hash) { return !leaves(row, hash); };
    if (KeepOnly(context, num_left, stays, removed).ok()) return Status();
  }
  TF_EMBED_RETURN_IF_ERROR(EvictAll(context, leaves, &counters_.evicted, removed));
  if (much) (void)Shrink(context);  // without memory for it the table is right, only larger
  return Status();
}

template <typename Stays>
Status HostTable::KeepOnly(const ExecContext& context, size_t num_left, const Stays& stays,
                           size_t* removed) {
  std::unique_ptr<Content> content;  // the old one in the end, freed when others are in again
  const PausingGates pausing(gates_, context);
  size_t gone;
  {
    Shared gate(gates_.content);  // readers go on
    TF_EMBED_RETURN_IF_ERROR(NewContent(num_left, &content));
    TF_EMBED_RETURN_IF_ERROR(CopyContent(context, stays, content.get()));
    gone = content_->index.size() - content->index.size();
  }
  counters_.evicted.fetch_add(gone, std::memory_order_relaxed);
  *removed += gone;
  Alone gate(gates_.content);
  content_.swap(content);
  return Status();
}

Status HostTable::CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                               const Rank& low, const Rank& high, RankList* ranks,
                               size_t* below) const {
  const ReadingGates reading(gates_, context);
  return RanksOf(*content_, context, order, one_in, low, high, ranks, below);
}

Status HostTable::RanksOf(const Content& content, const ExecContext& context, EvictionOrder order,
                          size_t one_in, const Rank& low, const Rank& high, RankList* ranks,
                          size_t* below) const {
  FirstFailure failure;
  std::mutex mutex;  // of what all threads add to
  const auto collect = [&](size_t begin, size_t end) {
    RankList mine(options_.allocator);
    size_t mine_below = 0;
    Status status;
    for (size_t i = begin; i < end && status.ok(); ++i) {
      const size_t stripe = i * one_in;
      std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
      ForEachStatistics(content, stripe, [&](int64_t key, const RowStatistics& row) {
        const Rank rank(EvictionScore(order, row), HashKey(key));
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

Status HostTable::FindStatistics(const ExecContext& context, const KeyBatch& batch,
                                 uint64_t* statistics, bool* exists) const {
  const ReadingGates reading(gates_, context);
  const size_t words = content_->rows.layout().statistics_per_row;
  const auto find = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const StripedIndex::Entry entry = content_->index.Find(batch.keys[i], HashKey(batch.keys[i]));
      const size_t position = batch.Position(i);
      for (size_t word = 0; word < words; ++word) {
        statistics[position * words + word] =
            entry.found()
                ? content_->rows.Statistics(entry.slot)[word].load(std::memory_order_relaxed)
                : 0;
      }
      if (exists != nullptr) exists[position] = entry.found();
    }
  };
  context.parallel_for(batch.size, kSurveyCost, std::cref(find));
  return Status();
}

Status HostTable::AssignStatistics(const ExecContext& context, const KeyBatch& batch,
                                   StatisticSet set, const uint64_t* statistics) {
  const PausingGates pausing(gates_, context);
  Shared gate(gates_.content);
  for (size_t i = 0; i < batch.size; ++i) {
    const uint64_t hash = HashKey(batch.keys[i]);
    const StripedIndex::Entry entry = content_->index.Find(batch.keys[i], hash);
    if (!entry.found()) continue;
    RowStatistics row = StatisticsOf(*content_, entry.slot);
    const uint64_t* const words = statistics + batch.Position(i) * set.size();
    for (const Statistic statistic : kAllStatistics) {
      if (set.Has(statistic)) row.Set(statistic, words[set.IndexOf(statistic)]);
    }
    if (options_.policy.max_rows > 0) {
      TF_EMBED_RETURN_IF_ERROR(
          victims_.Push(Rank(EvictionScore(options_.policy.eviction, row), hash)));
    }
  }
  return Status();
}

TableStats HostTable::Stats() const {
  Shared gate(gates_.content);
  const StripedIndex& index = content_->index;
  const RowLayout& layout = content_->rows.layout();
  TableStats stats;
  stats.rows = index.size();
  stats.payload_bytes = stats.rows * (layout.weight_bytes + layout.slot_bytes +
                                      layout.statistics_per_row * sizeof(RowStatistics::Word));
  stats.index_bytes = index.bytes();
  const uint64_t row_bytes = content_->rows.bytes();
  stats.slack_bytes = row_bytes - std::min(row_bytes, stats.payload_bytes);
  for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
    stats.index_places += index.StripeBuckets(stripe) * Bucket::kLanes;
  }
  index.SampleProbes(&stats.probed_keys, &stats.probed_buckets);
  stats.admitted = counters_.admitted.load(std::memory_order_relaxed);
  stats.held_back = counters_.held_back.load(std::memory_order_relaxed);
  stats.refused = counters_.refused.load(std::memory_order_relaxed);
  stats.evicted = counters_.evicted.load(std::memory_order_relaxed);
  stats.expired = counters_.expired.load(std::memory_order_relaxed);
  stats.hits = counters_.hits.load(std::memory_order_relaxed);
  stats.misses = counters_.misses.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace tf_embed
