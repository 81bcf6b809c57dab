// SPDX-License-Identifier: Apache-2.0
// Plans the writes of a store whose policy bounds, admits or expires rows: which absent keys of a
// batch get rows, and which rows leave for them.
//
// A planned write:
//   1. The store looks each distinct key up, notes uses, and fills in the plan's decisions:
//      kAbsent, kExpired or kExpiredUnwanted. It may write the rows of the other keys already.
//      Their scores may fall below the victim queue's limit; they are queued in step 4.
//   2. The expired rows of the batch, and some others, are removed.
//   3. Admission is asked. A bounded store without room evicts its lowest rows, except for rows in
//      use at this step, or none if its bound refuses. Of the remaining keys, keys with room are
//      kInsert; the others are kSkip.
//   4. The store writes the rest of the batch by the decisions. The inserted rows are counted.
//
// The order of the batch decides, so a plan does not depend on threads.
#ifndef TF_EMBED_CC_CORE_POLICY_WRITE_PLANNER_H_
#define TF_EMBED_CC_CORE_POLICY_WRITE_PLANNER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_batch.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/policy/victim_queue.h"

namespace tf_embed {

// Admission of a verb's new keys.
enum class Admits : uint8_t {
  kAll,      // without admission
  kCounted,  // admission counts them
  kPeeked,   // only keys that admission would let in now
};

// The action of a planned write for a key, at the position where it first occurs in the batch.
enum class Decision : uint8_t {
  kNothing,          // it is present, or the verb does not want it
  kAbsent,           // while planning: the verb wants it
  kExpired,          // while planning: the same, and its row must be taken out first
  kExpiredUnwanted,  // while planning: its row is expired, and the verb does not want it
  kInsert,
  kSkip,
};

struct WritePlan {
  explicit WritePlan(Allocator* allocator) : decisions(allocator), scores(allocator) {}

  Buffer<Decision> decisions;  // by position
  // RowStatistics::ScoreBits by position, if the batch's scores decide which rows are inserted;
  // otherwise none.
  Buffer<uint64_t> scores;
  size_t num_inserts = 0;
  size_t size_before = 0;  // rows in the store, once there is room
};

// Counts of admitted, refused and removed rows since the store was made.
struct PolicyCounters {
  std::atomic<uint64_t> admitted{0}, held_back{0}, refused{0}, evicted{0}, expired{0};
};

// A planner's view of a store's rows. REQUIRES: no other thread adds or removes rows during a call;
// readers may use rows.
class PlannedRows {
 public:
  virtual ~PlannedRows() = default;

  virtual size_t size() const = 0;

  // Prefetches a key that will be looked up later.
  virtual void Prefetch(uint64_t hash) const = 0;
  // Prefetches the statistics of a key that was prefetched.
  virtual void PrefetchStatistics(uint64_t /*hash*/) const {}

  // Points `words` to the statistics of a key's row, until the next call; null for an absent key.
  virtual Status Find(int64_t key, uint64_t hash, RowStatistics::Word** words) const = 0;

  // As StoreEviction::CollectRanks.
  virtual Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                              const Rank& low, const Rank& high, RankList* ranks,
                              size_t* below) const = 0;

  // Adds Rank(0, hash) of the expired rows of a part of the store; successive calls cover all of
  // it. `num_absent` keys of the batch have no row. The part must be so large that the whole store
  // is searched while half as many rows are added as it has.
  virtual Status FindExpired(const Moment& now, size_t num_absent, RankList* expired) = 0;

  // Evicts rows, tells the sink, and counts them. REQUIRES: keys are distinct and present.
  virtual Status Remove(const int64_t* keys, size_t count, std::atomic<uint64_t>* counter) = 0;
};

// Not thread-safe, except for the counters.
class WritePlanner {
 public:
  // Step 1 above; all decisions are kNothing before it.
  using Survey = std::function<Status(WritePlan* plan)>;
  // Step 4 above.
  using Write = std::function<Status(const WritePlan& plan)>;

  // REQUIRES: `policy` and `rows` outlive the planner.
  WritePlanner(const RowPolicy& policy, Allocator* allocator, PlannedRows* rows)
      : policy_(policy), allocator_(allocator), rows_(*rows), victims_(allocator) {}

  // Runs a planned write of a batch. Returns the first failure; rows that were written or left by
  // then stay so.
  Status Run(const ExecContext& context, const KeyBatch& batch, Admits admits, const Survey& survey,
             const Write& write);

  // Records a rank that was set, other than by a use.
  Status NoteRank(const Rank& rank) { return queues_rows() ? victims_.Push(rank) : Status(); }

  // Records that all rows were replaced.
  void Forget() { victims_.Clear(); }

  PolicyCounters& counters() { return counters_; }
  const PolicyCounters& counters() const { return counters_; }

 private:
  Status Plan(const ExecContext& context, const KeyBatch& batch, Admits admits,
              const Survey& survey, WritePlan* plan);
  // Whether new rows evict others, so that rows are queued.
  bool queues_rows() const { return policy_.max_rows > 0 && policy_.evicts; }
  // Whether a new row is refused if its score is lower than the scores of all present rows.
  bool OrdersByScores(const KeyBatch& batch) const {
    return batch.scores != nullptr && policy_.eviction == EvictionOrder::kScore;
  }
  // Evicts the expired rows of the batch, and some others.
  Status RemoveExpired(const Moment& now, const KeyBatch& batch, const Decision* decisions,
                       size_t num_absent);
  // Evicts the lowest rows for the `coming` keys that find no room. If scores decide, first sorts
  // the keys by falling score, because only the first may have room.
  Status MakeRoom(const ExecContext& context, const WritePlan& plan, size_t coming, int64_t* keys,
                  size_t* positions, size_t* evicted);
  // Evicts the lowest `wanted` rows, except for rows in use at this step; fewer if all are in use.
  // With `scores` [wanted], in falling order, the i-th row is evicted only if its score is at most
  // the i-th of these.
  Status EvictLowest(const ExecContext& context, size_t wanted, const uint64_t* scores,
                     size_t* evicted);
  // Queues new victims, at least `wanted` if there are that many. Then `*all` says whether the
  // whole store is queued.
  Status FillVictims(const ExecContext& context, size_t wanted, bool* all);
  Status NoteInserted(const KeyBatch& batch, const Moment& now, const WritePlan& plan);

  const RowPolicy& policy_;
  Allocator* const allocator_;
  PlannedRows& rows_;
  VictimQueue victims_;
  PolicyCounters counters_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_WRITE_PLANNER_H_
