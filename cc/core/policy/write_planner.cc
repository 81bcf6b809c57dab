// SPDX-License-Identifier: Apache-2.0
#include "cc/core/policy/write_planner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cc/core/base/hash.h"

namespace tf_embed {
namespace {

// A pass collects at least kMinVictims rows, or a row in kVictimsDivisor.
constexpr size_t kMinVictims = 1024;
constexpr size_t kVictimsDivisor = 16;
constexpr size_t kSampleOneIn = 32;
// Candidates between the prefetch of a bucket and that of its statistics, and between that and
// their use.
constexpr size_t kAhead = 12;

// Some keys whose rows are about to leave, in the order in which they were chosen. A row may be in
// the queue twice, and a reader may raise its rank between the two pops, so equal keys need not be
// adjacent.
class ChosenKeys {
 public:
  static constexpr size_t kMax = 512;

  ChosenKeys() { Clear(); }

  const int64_t* keys() const { return keys_; }
  size_t size() const { return size_; }
  bool full() const { return size_ == kMax; }
  void Clear() {
    size_ = 0;
    std::fill(std::begin(places_), std::end(places_), kFree);
  }

  // Adds a key, unless it is present. REQUIRES: not full.
  void Add(int64_t key, uint64_t hash) {
    size_t place = hash >> (64 - kPlaceBits);
    for (; places_[place] != kFree; place = (place + 1) % kPlaces) {
      if (keys_[places_[place]] == key) return;
    }
    places_[place] = static_cast<uint16_t>(size_);
    keys_[size_++] = key;
  }

 private:
  static constexpr uint16_t kFree = UINT16_MAX;
  static constexpr int kPlaceBits = 10;
  static constexpr size_t kPlaces = size_t{1} << kPlaceBits;
  static_assert(kPlaces == 2 * kMax);

  int64_t keys_[kMax];
  size_t size_;
  uint16_t places_[kPlaces];  // a hash table of indices of keys
};

// A key that wants a row, with the bits of its score.
struct Candidate {
  uint64_t score;
  size_t number;  // in the order of the batch
  int64_t key;
  size_t position;

  // Highest scores first; equal scores in the order of the batch.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.number < b.number;
  }
};

}  // namespace

Status WritePlanner::Run(const ExecContext& context, const KeyBatch& batch, Admits admits,
                         const Survey& survey, const Write& write) {
  WritePlan plan(allocator_);
  Status status = Plan(context, batch, admits, survey, &plan);
  if (status.ok()) {
    status = write(plan);
    Status noted = NoteInserted(batch, context.now, plan);
    if (status.ok()) status = std::move(noted);
  }
  // After a failure, rows below the queue's limit may be missing from it.
  if (!status.ok()) victims_.Clear();
  return status;
}

Status WritePlanner::Plan(const ExecContext& context, const KeyBatch& batch, Admits admits,
                          const Survey& survey, WritePlan* plan) {
  const size_t places = batch.NumPositions();
  TF_EMBED_RETURN_IF_ERROR(plan->decisions.Resize(places));
  Decision* const decisions = plan->decisions.data();
  std::fill(decisions, decisions + places, Decision::kNothing);
  if (queues_rows() && OrdersByScores(batch)) {
    TF_EMBED_RETURN_IF_ERROR(plan->scores.Resize(places));
  }
  // Before the store writes rows, so that without memory nothing has changed.
  Buffer<int64_t> keys(allocator_);
  Buffer<size_t> positions(allocator_);
  Buffer<bool> admitted(allocator_);
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(positions.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(admitted.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(survey(plan));

  // The absent keys, in the order of the batch.
  size_t absent = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    const size_t position = batch.Position(i);
    if (decisions[position] == Decision::kNothing) continue;
    keys[absent] = batch.keys[i];
    positions[absent++] = position;
  }
  // Expired rows leave first: the room that they give up need not be made by evicting live rows.
  if (policy_.ttl_milliseconds > 0) {
    TF_EMBED_RETURN_IF_ERROR(RemoveExpired(context.now, batch, decisions, absent));
  }

  // The keys that the verb wants, and the admitted keys among them.
  size_t wanted = 0;
  for (size_t i = 0; i < absent; ++i) {
    const Decision decision = decisions[positions[i]];
    // kSkip until the end, so that the steps below only have to drop a key from the arrays.
    decisions[positions[i]] = Decision::kSkip;
    if (decision == Decision::kExpiredUnwanted) continue;
    keys[wanted] = keys[i];
    positions[wanted++] = positions[i];
  }
  std::fill(admitted.data(), admitted.data() + wanted, true);
  // Before room is known: a key counts in admission even if a full table then refuses it.
  if (policy_.admission != nullptr && admits == Admits::kCounted) {
    TF_EMBED_RETURN_IF_ERROR(policy_.admission->Count(keys.data(), wanted, admitted.data()));
  } else if (policy_.admission != nullptr && admits == Admits::kPeeked) {
    policy_.admission->Peek(keys.data(), wanted, admitted.data());
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

  // Room for them; without it, the last keys stay out.
  size_t size = rows_.size();
  size_t room = coming;
  if (policy_.max_rows > 0 && size + coming > policy_.max_rows) {
    size_t evicted = 0;
    if (policy_.evicts) {
      TF_EMBED_RETURN_IF_ERROR(
          MakeRoom(context, *plan, coming, keys.data(), positions.data(), &evicted));
    }
    size -= evicted;
    // The first keys get the room: in the order of the batch, or of falling score, in which
    // MakeRoom has sorted them if scores decide.
    room = std::min(coming, policy_.max_rows - std::min(policy_.max_rows, size));
    if (admits != Admits::kPeeked) {  // otherwise the apply that follows counts them
      counters_.refused.fetch_add(coming - room, std::memory_order_relaxed);
    }
  }
  // A key without room is not forgotten: it stays admitted, and may get a row at its next apply.
  if (policy_.admission != nullptr) policy_.admission->Forget(keys.data(), room);
  for (size_t i = 0; i < room; ++i) decisions[positions[i]] = Decision::kInsert;
  plan->num_inserts = room;
  plan->size_before = size;
  return Status();
}

Status WritePlanner::RemoveExpired(const Moment& now, const KeyBatch& batch,
                                   const Decision* decisions, size_t num_absent) {
  Buffer<int64_t> expired(allocator_);
  TF_EMBED_RETURN_IF_ERROR(expired.Resize(batch.size));
  size_t count = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    // Equal keys have one decision, at the position of the first.
    const Decision decision = decisions[batch.Position(i)];
    if (decision == Decision::kExpired || decision == Decision::kExpiredUnwanted) {
      expired[count++] = batch.keys[i];
    }
  }
  TF_EMBED_RETURN_IF_ERROR(rows_.Remove(expired.data(), count, &counters_.expired));

  RankList others(allocator_);
  TF_EMBED_RETURN_IF_ERROR(rows_.FindExpired(now, num_absent, &others));
  TF_EMBED_RETURN_IF_ERROR(expired.Resize(others.size()));
  for (size_t i = 0; i < others.size(); ++i) expired[i] = KeyOfHash(others[i].hash());
  return rows_.Remove(expired.data(), others.size(), &counters_.expired);
}

Status WritePlanner::MakeRoom(const ExecContext& context, const WritePlan& plan, size_t coming,
                              int64_t* keys, size_t* positions, size_t* evicted) {
  const size_t wanted = rows_.size() + coming - policy_.max_rows;
  if (plan.scores.size() == 0) return EvictLowest(context, wanted, nullptr, evicted);
  const size_t pressing = std::min(wanted, coming);
  Buffer<Candidate> candidates(allocator_);
  Buffer<uint64_t> scores(allocator_);
  TF_EMBED_RETURN_IF_ERROR(candidates.Resize(coming));
  TF_EMBED_RETURN_IF_ERROR(scores.Resize(coming));
  for (size_t i = 0; i < coming; ++i) {
    candidates[i] = {plan.scores[positions[i]], i, keys[i], positions[i]};
  }
  std::sort(candidates.data(), candidates.data() + coming);
  for (size_t i = 0; i < coming; ++i) {
    scores[i] = candidates[i].score;
    positions[i] = candidates[i].position;
    keys[i] = candidates[i].key;
  }
  return EvictLowest(context, pressing, scores.data() + (coming - pressing), evicted);
}

Status WritePlanner::EvictLowest(const ExecContext& context, size_t wanted, const uint64_t* scores,
                                 size_t* evicted) {
  ChosenKeys victims;
  RankList in_use(allocator_);
  const auto evict = [&] {
    TF_EMBED_RETURN_IF_ERROR(rows_.Remove(victims.keys(), victims.size(), &counters_.evicted));
    *evicted += victims.size();
    victims.Clear();
    return Status();
  };
  for (bool all = false; *evicted + victims.size() < wanted;) {
    if (victims_.empty()) {
      if (all) break;
      // Rows in use that were passed over will be found again, so that many more are needed.
      const size_t passed_over = in_use.size();
      in_use.Clear();
      TF_EMBED_RETURN_IF_ERROR(evict());
      TF_EMBED_RETURN_IF_ERROR(FillVictims(context, wanted - *evicted + passed_over, &all));
      continue;
    }
    const Rank rank = victims_.Pop();
    if (const Rank* ahead = victims_.Ahead(2 * kAhead)) rows_.Prefetch(ahead->hash());
    if (const Rank* ahead = victims_.Ahead(kAhead)) rows_.PrefetchStatistics(ahead->hash());
    const int64_t key = KeyOfHash(rank.hash());
    RowStatistics::Word* words = nullptr;
    TF_EMBED_RETURN_IF_ERROR(rows_.Find(key, rank.hash(), &words));
    if (words == nullptr) continue;
    const RowStatistics row(policy_.statistics, words);
    const Rank present = RankOf(policy_.eviction, row, rank.hash());
    if (rank < present) {
      TF_EMBED_RETURN_IF_ERROR(victims_.Push(present));
    } else if (present < rank) {
      continue;  // it left and was inserted again, and is queued twice
    } else if (row.Get(Statistic::kLastStep) == context.now.step) {
      TF_EMBED_RETURN_IF_ERROR(in_use.Append(rank));
    } else if (scores != nullptr && scores[*evicted + victims.size()] < rank.score()) {
      TF_EMBED_RETURN_IF_ERROR(victims_.Push(rank));
      break;
    } else {
      victims.Add(key, rank.hash());
      if (victims.full()) TF_EMBED_RETURN_IF_ERROR(evict());
    }
  }
  TF_EMBED_RETURN_IF_ERROR(evict());
  for (const Rank& rank : in_use) TF_EMBED_RETURN_IF_ERROR(victims_.Push(rank));
  return Status();
}

Status WritePlanner::FillVictims(const ExecContext& context, size_t wanted, bool* all) {
  const EvictionOrder order = policy_.eviction;
  const size_t size = rows_.size();
  const size_t least = std::max({kMinVictims, size / kVictimsDivisor, 2 * wanted});
  RankList ranks(allocator_);
  size_t below = 0;
  Rank limit = kHighestRank;
  if (2 * least < size) {  // a sample estimates the rank that `least` rows are below
    TF_EMBED_RETURN_IF_ERROR(
        rows_.CollectRanks(context, order, kSampleOneIn, Rank(), kHighestRank, &ranks, &below));
    const size_t place = least * ranks.size() / size;
    if (place < ranks.size()) {
      std::nth_element(ranks.begin(), ranks.begin() + place, ranks.end());
      limit = ranks[place];
    }
    ranks.Clear();
  }
  TF_EMBED_RETURN_IF_ERROR(rows_.CollectRanks(context, order, 1, Rank(), limit, &ranks, &below));
  if (ranks.size() < wanted && !(limit == kHighestRank)) {  // fewer than the sample predicted
    limit = kHighestRank;
    ranks.Clear();
    TF_EMBED_RETURN_IF_ERROR(rows_.CollectRanks(context, order, 1, Rank(), limit, &ranks, &below));
  }
  *all = limit == kHighestRank;
  victims_.Fill(&ranks, limit);
  return Status();
}

Status WritePlanner::NoteInserted(const KeyBatch& batch, const Moment& now, const WritePlan& plan) {
  const size_t size = rows_.size();
  counters_.admitted.fetch_add(size - plan.size_before, std::memory_order_relaxed);
  if (!queues_rows()) return Status();
  // Rows may be queued more than once, above all by scores, which each write queues. The next
  // eviction refills the queue; that many pushes pay for its pass.
  if (victims_.size() > size + kMinVictims) victims_.Clear();
  if (OrdersByScores(batch)) {  // outdated ranks are detected later
    for (size_t i = 0; i < batch.size; ++i) {
      const uint64_t score = RowStatistics::ScoreBits(batch.scores[batch.Position(i)]);
      TF_EMBED_RETURN_IF_ERROR(victims_.Push(Rank(score, HashKey(batch.keys[i]))));
    }
    return Status();
  }
  RowStatistics::Word words[StatisticSet::kMax] = {};
  RowStatistics fresh(policy_.statistics, words);
  fresh.Begin(now);
  for (size_t i = 0; i < batch.size; ++i) {
    if (plan.decisions[batch.Position(i)] != Decision::kInsert) continue;
    const uint64_t hash = HashKey(batch.keys[i]);
    TF_EMBED_RETURN_IF_ERROR(victims_.Push(RankOf(policy_.eviction, fresh, hash)));
  }
  return Status();
}

}  // namespace tf_embed
