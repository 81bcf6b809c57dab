// SPDX-License-Identifier: Apache-2.0
// A table: shards that share a clock, an admission, a log of evicted rows, and the dictionaries of
// their strings.
//
// A verb takes a batch of keys, which it splits over the shards, with arrays of the whole batch. It
// runs the same verb of each store (store.h) until one fails. A verb that writes keeps pauses out
// until it has written to all shards (paused_tables.h). InsertOrAssign, Accum and Apply end a step
// of the clock. The caller gives threads, a stream and `training` in the context; the table sets
// the moment. Find and Apply also run in a table that their caller holds (held_tables.h).
//
// Invariant: the key of every row has a string in the dictionary. So an operation on a table of
// strings first has a StringScope, and keeps it until it no longer needs the strings of its keys.
// The scope holds the strings mutex: shared if the operation neither adds a string nor removes a
// row, otherwise exclusively. A table without strings takes no such lock.
//
// Locks, in this order: save_mutex(), the strings mutex, shards_mutex(), the locks of stores. The
// clock, the admission and the log do their own locking.
#ifndef TF_EMBED_CC_CORE_TABLE_TABLE_H_
#define TF_EMBED_CC_CORE_TABLE_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/applied_steps.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/base/turn_queue.h"
#include "cc/core/files/row_file.h"
#include "cc/core/files/table_meta.h"
#include "cc/core/store/store.h"
#include "cc/core/table/dictionaries.h"
#include "cc/core/table/eviction_log.h"
#include "cc/core/table/policy_settings.h"
#include "cc/core/table/shard_split.h"
#include "cc/core/table/step_clock.h"
#include "cc/core/table/string_scope.h"

namespace tf_embed {

struct TableOptions {
  StoreOptions shard;  // of each shard, without the policy
  PolicySettings policy;
  size_t num_shards = 1;
  StoredType key_type = StoredType::kInt64;
  StoredType value_type = StoredType::kFloat;  // strings are numbers in the shards
};

// The place of some rows of a table.
struct Shard {
  std::unique_ptr<Store> store;  // takes arrays on the host, wherever the rows are
  // For rows on a device: its number, the same store for arrays in its memory, the owner of that
  // store unless `store` owns it, and the split of batches there.
  int device = -1;
  Store* on_device = nullptr;
  std::unique_ptr<Store> own_on_device;
  std::function<std::unique_ptr<DeviceSplit>()> new_split;
};

// The keys of a batch, and how a verb takes them; see KeyBatch.
struct TableKeys {
  const int64_t* keys = nullptr;
  size_t size = 0;
  const int32_t* owners = nullptr;  // the shard of each key, on the host; null: DefaultShard
  bool unsigned_keys = false;
  // Keys and the arrays of the batch are in the memory of the device of the rows.
  bool on_device = false;
  const int64_t* scores = nullptr;
  bool distinct = false;
};

// All rows of a saved table.
struct TableContent {
  TableKeys keys;
  Dictionaries dictionaries;  // of the strings behind keys and weights
  const void* weights = nullptr;
  const void* slots = nullptr;           // of the rule of `meta`
  const uint64_t* statistics = nullptr;  // of `policy`
  TableMeta meta;
  SavedPolicy policy;
};

// Some rows of a saved table.
struct SavedBatch {
  // As owner of a key: the table chooses the shard, or leaves the row out.
  static constexpr int32_t kTablesChoice = -2;
  static constexpr int32_t kLeftOut = -3;

  TableKeys keys;
  const void* weights = nullptr;
  SlotsIn slots;
  StatisticSet statistics;
  const uint64_t* words = nullptr;  // [batch, size of `statistics`]
};

class Table {
 public:
  // Makes the store of a shard.
  using ShardMaker =
      std::function<Status(size_t number, const StoreOptions& options, Shard* shard)>;

  explicit Table(const TableOptions& options);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Makes the shards, before any other call.
  Status MakeShards(const ShardMaker& make);

  // The options of the first shard.
  const StoreOptions& options() const { return store(0)->options(); }
  const std::string& name() const { return options_.shard.name; }
  size_t dim() const { return options_.shard.dim; }
  DataType value_type() const { return options_.shard.value_type; }
  size_t row_bytes() const { return dim() * SizeOf(value_type()); }
  Allocator* allocator() const { return options_.shard.allocator; }
  const PolicySettings& policy() const { return options_.policy; }
  // The types of keys and values in files.
  StoredType stored_key_type() const { return options_.key_type; }
  StoredType stored_value_type() const { return options_.value_type; }
  bool has_string_keys() const { return stored_key_type() == StoredType::kString; }
  bool has_string_values() const { return stored_value_type() == StoredType::kString; }
  // The statistics that rows keep.
  StatisticSet statistics() const { return options().policy.statistics; }
  // Whether a find that is a part of training writes statistics.
  bool notes_uses() const { return statistics().OfUse().size() > 0; }
  // Whether a write may evict rows other than its own.
  bool evicts() const {
    const RowPolicy& policy = options().policy;
    return policy.max_rows > 0 || policy.ttl_milliseconds > 0;
  }
  // Whether other processes also change rows (Store::is_shared).
  bool is_shared() const { return store(0)->is_shared(); }

  size_t num_shards() const { return shards_.size(); }
  const Shard& shard(size_t number) const { return shards_[number]; }
  Store* store(size_t number) const { return shards_[number].store.get(); }
  // The device of the rows; -1: the host.
  int device() const { return shards_.front().device; }
  // Unique in the process.
  uint64_t number() const { return number_; }
  bool is_on_device() const { return device() >= 0; }
  // Whether HeldTables takes the table. Strings have a lock of their own, tiers move rows under
  // locks that a holder would keep, and a server runs one verb after the other anyway.
  bool can_be_held() const {
    return !has_string_keys() && !has_string_values() && !is_shared() &&
           store(0)->tiers() == nullptr;
  }
  // The stores [num_shards()] for arrays in the memory of the device, or on the host.
  const Store* const* stores(bool on_device = false) const {
    return on_device ? on_device_.data() : on_host_.data();
  }

  // Fail if the stores lack an interface.
  Status CheckMaintenance() const;
  Status CheckEviction() const;

  // --- Verbs on a batch. As those of a store, for arrays [keys.size, ...] of the whole batch.

  // The present moment of the table in a context.
  ExecContext Now(const ExecContext& context) const;

  Status Find(const ExecContext& context, const TableKeys& keys, const DefaultRows& defaults,
              void* weights, bool* exists) const;
  Status FindOrInsert(const ExecContext& context, const TableKeys& keys,
                      const DefaultRows& defaults, void* weights, bool* exists);
  // As a part of training, with the slots of `rule`, which it first sets.
  Status FindSlots(const ExecContext& context, const TableKeys& keys, const DefaultRows& defaults,
                   const RuleSlots& rule, void* weights, void* slots, bool* exists);
  // Given slots, first checks that all shards have their rule, or sets it if `sets_rule`.
  Status InsertOrAssign(const ExecContext& context, const TableKeys& keys, const void* weights,
                        const SlotsIn& slots = {}, bool sets_rule = false);
  Status Accum(const ExecContext& context, const TableKeys& keys, const void* old_rows,
               const void* new_rows, const bool* exists);
  // One step of a rule, with its change of all rows. Fails in a held table of another rule, unless
  // it is on a device.
  Status Apply(const ExecContext& context, const TableKeys& keys, const Gradients& gradients,
               const Rule& rule);
  Status Erase(const ExecContext& context, const TableKeys& keys);
  Status Prefetch(const ExecContext& context, const TableKeys& keys) const;
  // The verbs below REQUIRE keys on the host.

  // Copies the slots of `rule`: initial slots for absent keys, and for all keys of a table with
  // another rule.
  Status ReadSlots(const ExecContext& context, const TableKeys& keys, const RuleSlots& rule,
                   void* slots, bool* exists) const;
  // Copies the words [keys.size, statistics().size()] of rows.
  Status FindStatistics(const ExecContext& context, const TableKeys& keys, uint64_t* words,
                        bool* exists) const;
  // Sets a statistic of present rows.
  Status AssignStatistic(const ExecContext& context, const TableKeys& keys, Statistic statistic,
                         const uint64_t* words);

  // --- Verbs on all rows.

  size_t size() const;
  // The same number of all shards, or of shard number `shard` unless it is -1, with an error if
  // rows are unreachable.
  Status Count(int64_t shard, size_t* count) const;
  Status Stats(StoreStats* stats) const;
  Status Clear();
  Status Shrink(const ExecContext& context);
  // Evicts the rows of lowest rank until `num_reserved` are left; see RestrictRows.
  Status Restrict(const ExecContext& context, EvictionOrder order, size_t num_reserved,
                  size_t* removed);
  // Counts the expired rows that are not evicted yet.
  Status CountExpired(const ExecContext& context, size_t* count) const;
  // Makes all rows of a table whose rows expire count as used now.
  Status RenewUses(const ExecContext& context);

  // Whether all shards have the rule, regardless of initial values.
  bool HasRule(const RuleSlots& rule) const;
  bool HasRuleAndInitialValues(const RuleSlots& rule) const;
  // Sets the rule of all shards atomically, if any shard has another rule or other initial slots.
  Status SetRule(const RuleSlots& rule);
  // The number of rows whose slots SetRule would replace.
  size_t RowsOfOtherRule(const RuleSlots& rule) const;
  // The largest value of a slot over all rows (StoreMaintenance::LargestSlot).
  Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                     double* largest) const;
  // Sets the seed and the id from which later initial rows are drawn. REQUIRES: writers are paused.
  Status SetOrigin(const TableMeta& saved);

  // --- Saves and loads.

  // Calls visit(rows) for blocks of about `max_rows` rows until it fails; `rows`, a WholeRows*, may
  // be changed. REQUIRES: writers are paused.
  template <typename Visit>
  Status ForEachBlock(size_t max_rows, const Visit& visit) const;
  // The description of the table. Unless `with_slots`, as if it had no rule. REQUIRES: no
  // concurrent writes.
  Status GetMeta(bool with_slots, TableMeta* meta) const;
  // The state of the policy, without the rows.
  Status GetPolicy(SavedPolicy* policy) const;
  // Replaces all rows. Builds them aside, so that a failure changes nothing in this process.
  // `content` receives the old dictionaries. REQUIRES: its keys are on the host, and it has the
  // dictionaries that the table has.
  Status Import(const ExecContext& context, TableContent* content);
  // Adds saved rows, then evicts the rows over the bound. REQUIRES: save_mutex() is held, so that
  // no save sees the rows over the bound, and a table of strings has a StringScope.
  Status LoadRows(const ExecContext& context, const SavedBatch& batch);
  // Whether rows saved with these statistics have all statistics of use that the table keeps.
  bool HasAllStatistics(StatisticSet saved) const {
    return (statistics().OfUse().bits() & ~saved.bits()) == 0;
  }

  // --- The parts that shards share.

  StepClock* clock() { return &clock_; }
  const StepClock& clock() const { return clock_; }
  Admission* admission() const { return admission_.get(); }  // null: rows need none
  // Null unless evicted rows are kept for draining.
  EvictionLog* evicted() const { return policy().log_evicted ? log_.get() : nullptr; }
  // Null if keys (or values) are not strings. REQUIRES: a StringScope lives as long as the pointer
  // is used, because Import replaces the dictionaries.
  StringKeys* key_strings() const { return dictionaries_.keys.get(); }
  StringKeys* value_strings() const { return dictionaries_.values.get(); }
  FairSharedMutex* strings_mutex() { return &strings_mutex_; }
  // Removes the strings of evicted rows, of keys [count] without a row, and, once they may be half
  // of all, of values that no row holds. If memory is short, or a shard can't answer, more strings
  // stay. REQUIRES: strings_mutex() is held exclusively.
  void DropStrings(const int64_t* keys, size_t count);

  // Serializes operations on all shards that must not interleave: saves, exports, loads, imports,
  // clears.
  OrderedMutex* save_mutex() { return &save_mutex_; }
  // Held shared by verbs that write. Exclusive holders keep all writers out, and never find a verb
  // between two shards.
  FairSharedMutex* shards_mutex() const { return &shards_mutex_; }
  // The lock order of the shards_mutex() of several tables.
  static bool IsLockedBefore(const Table* one, const Table* other) {
    return one->number_ < other->number_;
  }
  // Turns of steps that read rows and write them back.
  TurnQueue* turns() { return &turns_; }
  // Step numbers applied so far, for each sender.
  AppliedSteps* applied_steps() { return &applied_steps_; }
  // The number of rows that saves have written to files since the table was made, including saves
  // that failed. Any thread may read it while a save runs.
  uint64_t rows_saved() const { return rows_saved_.load(std::memory_order_relaxed); }
  void AddRowsSaved(size_t count) { rows_saved_.fetch_add(count, std::memory_order_relaxed); }

 private:
  class SplitKeys;

  Status FindIn(const SplitKeys& split, const ExecContext& context, const DefaultRows& defaults,
                void* weights, bool* exists, const SlotsOut& slots) const;

  static uint64_t NextNumber() {
    static std::atomic<uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  Status NoMemory(const char* purpose) const;
  ExecContext BeginStep(const ExecContext& context);
  Status FillAside(const ExecContext& context, const TableContent& content,
                   std::vector<std::unique_ptr<Store>>* stores) const;
  Status KeepBounds(const ExecContext& context);
  void DropStringsWithoutRows(const int64_t* keys, size_t count);
  void DropUnusedValueStrings();
  Status CollectValues(Buffer<int64_t>* values) const;

  const TableOptions options_;
  const uint64_t number_ = NextNumber();
  StepClock clock_;
  std::shared_ptr<Admission> admission_;
  Dictionaries dictionaries_;
  std::unique_ptr<EvictionLog> log_;  // outlives the stores
  std::vector<Shard> shards_;
  std::vector<Store*> on_host_, on_device_;  // of `shards_`

  OrderedMutex save_mutex_{LockRank::kSave};
  FairSharedMutex strings_mutex_{LockRank::kStrings};
  mutable FairSharedMutex shards_mutex_{LockRank::kShards, number_};
  TurnQueue turns_;
  AppliedSteps applied_steps_;
  std::atomic<uint64_t> rows_saved_{0};

  static constexpr size_t kFewStrings = 1024;
  size_t value_strings_limit_ = kFewStrings;  // size that triggers a search for unused strings
};

template <typename Visit>
Status Table::ForEachBlock(size_t max_rows, const Visit& visit) const {
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  WholeRows rows(allocator());
  for (const Shard& shard : shards_) {
    for (ExportCursor cursor; !cursor.done;) {
      TF_EMBED_RETURN_IF_ERROR(shard.store->maintenance()->ExportBatch(max_rows, &cursor, &rows));
      TF_EMBED_RETURN_IF_ERROR(visit(&rows));
    }
  }
  return Status();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_TABLE_H_
