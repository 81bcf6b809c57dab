// SPDX-License-Identifier: Apache-2.0
// A table larger than its first tier: a cache, which is a table itself, over a BackingStore.
//
// Verbs run on the cache. Before a verb that writes touches a batch, the rows of the batch that are
// in the store are copied to the cache, in one request. A row that is copied up is *shared*: both
// tiers have it. The first verb that writes to it erases it in the store. When the cache is full,
// its oldest rows go down; shared ones need no writing.
//
// A find that is a part of training brings rows up as well. Any other find reads rows of the store
// where they are and moves none.
//
// A batch with more distinct keys than half of the cache is written in parts. Rows are independent
// of each other, so that makes no difference to them.
//
// Where a row is
//   in the cache alone    it is new, or has changed since it came up
//   in both               shared
//   in the store alone    cold
//
// Locks. Rows go up while others read and write; a mutex sees that a row comes up once. They go
// down only while nobody else is inside: the content lock is held alone. So a key that a verb,
// under that lock, found in the cache stays there, and one that it does not find in the store and
// then not in the cache is absent. While a caller keeps writers out, as an export does, no row
// moves. The locks of the cache are never taken by a verb: those of this table stand for them.
//
// The bound of the cache is kept but for two cases, until the next verb: a caller that holds
// several tables (HeldTables) can't make room, and a batch that finds its room taken by other
// threads again and again is not refused.
#ifndef TF_EMBED_CC_TIERED_TIERED_TABLE_H_
#define TF_EMBED_CC_TIERED_TIERED_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/table/backing_store.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_locks.h"
#include "cc/tiered/victims.h"

namespace tf_embed {

struct TierOptions {
  // Bytes of rows that the cache may hold: weights, slots and 8 bytes a row.
  uint64_t cache_bytes = 0;
  // What the bound is called where the user sets it, for messages.
  const char* cache_bytes_argument = "host_bytes";
  // Makes an empty cache with TableEviction and TableMaintenance.
  std::function<Status(const TableOptions& options, std::unique_ptr<Table>* cache)> new_cache;
  // Makes an empty store. Called again for a second table of the same kind (NewEmpty).
  std::function<Status(std::unique_ptr<BackingStore>* store)> new_store;
};

class TieredTable final : public Table, public TableMaintenance, public TableTiers {
 public:
  // `options` without a policy. kInvalidArgument if the cache has no room for a row.
  static Status Create(const TableOptions& options, const TierOptions& tiers,
                       std::unique_ptr<TieredTable>* table);

  const TableOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  size_t size() const override;
  RuleSlots rule() const override;
  TableMaintenance* maintenance() override { return this; }
  const TableTiers* tiers() const override { return this; }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override;
  Status Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override;
  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override;
  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override;
  using Table::Apply;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const Gradients& gradients,
               const Rule& rule) override;
  Status FinishStep(const ExecContext& context, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Table::Clear;
  Status Clear(const ExecContext& context) override;
  TableStats Stats() const override;
  const TableLocks& locks() const override { return locks_; }
  void DropOutgrown() const override;

  void SetInitializer(const RowInitializer& initializer) override;
  using TableMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  double LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot) const override;
  Status Shrink(const ExecContext& context) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  std::unique_ptr<Table> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using TableMaintenance::TakeContent;
  void TakeContent(const ExecContext& context, Table* other) override;

  Status Prefetch(const ExecContext& context, const KeyBatch& batch) const override;

 private:
  // What a verb does to rows that are there.
  enum class Effect : uint8_t {
    kInserts,     // nothing
    kChanges,     // reads and writes them
    kOverwrites,  // writes all of them
  };

  // Some keys of a batch.
  struct Keys {
    explicit Keys(Allocator* allocator) : keys(allocator), positions(allocator) {}
    Status Resize(size_t size);
    // Sorts the keys and leaves each once. Positions are lost.
    void MakeDistinct();
    // The same keys as a batch, beside the arrays of `of`.
    KeyBatch Batch(const KeyBatch& of) const;

    size_t size = 0;
    Buffer<int64_t> keys;
    Buffer<uint32_t> positions;
  };

  // Counted since the table was made.
  struct Counters {
    std::atomic<uint64_t> promoted{0};     // rows that came up
    std::atomic<uint64_t> demoted{0};      // rows that went down
    std::atomic<uint64_t> unwritten{0};    // of these, rows that the store had already
    std::atomic<uint64_t> first_tier{0};   // keys that verbs found in the cache
    std::atomic<uint64_t> below{0};        // keys that verbs found in the store
    std::atomic<uint64_t> read_below{0};   // of these, keys that stayed there
    std::atomic<uint64_t> found_again{0};  // keys that the cache was asked for twice
    std::atomic<uint64_t> copied_down{0};  // keys that it was asked for by Demote
  };

  TieredTable(const TableOptions& options, const TierOptions& tiers);  // may throw std::bad_alloc
  Status Init();

  // Rows that the cache may hold if they have the slots of a rule; 0 if it is too small for a row.
  size_t CapacityFor(const RuleSlots& rule) const;
  Status CheckCapacity(const RuleSlots& rule, size_t* capacity) const;

  // The keys of a batch whose `exists`, by position, is false.
  Status Absent(const KeyBatch& batch, const bool* exists, Keys* absent) const;
  // The keys of a batch that the cache does not hold, each once.
  Status AbsentInCache(const ExecContext& inner, const KeyBatch& batch, Keys* absent) const;
  // Leaves the keys that the store has. REQUIRES: they are distinct.
  Status KeepStored(Keys* keys) const;

  // Copies those rows that the store has to the cache. REQUIRES: the locks of a writer.
  Status BringUp(const ExecContext& inner, const Keys& keys) const;
  // Gives the rows of the store to who asked for them. REQUIRES: the lock of a reader.
  Status ReadThrough(const ExecContext& inner, const KeyBatch& batch, const Keys& absent,
                     void* weights, bool* exists, const SlotsOut& slots) const;

  // Takes rows out of the cache until `wanted` more have room; those of the batch stay.
  Status MakeRoom(const ExecContext& context, const KeyBatch& batch, size_t wanted) const;
  // The same. REQUIRES: nobody else is inside.
  Status MakeRoomAlone(const ExecContext& inner, const KeyBatch& batch, size_t wanted) const;
  // Erases the shared rows of the store. REQUIRES: the same.
  Status EraseShared() const;
  // Moves rows from the cache to the store. REQUIRES: the same; they are in the cache.
  Status Demote(const ExecContext& inner, const int64_t* keys, size_t count) const;

  // Brings up what a write needs. REQUIRES: the locks of a writer. If the cache has no room, does
  // nothing, and `*wanted` is the number of rows that want it; else 0.
  Status Enter(const ExecContext& context, const KeyBatch& batch, Effect effect,
               size_t* wanted) const;
  // Runs `verb(inner context, part)` for the parts of a batch, each with its rows in the cache. If
  // `rule` is given, the table has that rule by then.
  template <typename Verb>
  Status Write(const ExecContext& context, const KeyBatch& batch, const RuleSlots* rule,
               Effect effect, const Verb& verb);
  template <typename Verb>
  Status WritePart(const ExecContext& context, const KeyBatch& part, const RuleSlots* rule,
                   Effect effect, const Verb& verb);
  // SetRule, if the table has another one.
  Status TakeRule(const ExecContext& context, const RuleSlots& rule);
  // `verb`, and what it means for the store. REQUIRES: Enter.
  template <typename Verb>
  Status Run(const ExecContext& inner, const KeyBatch& part, Effect effect, const Verb& verb);
  // Finds keys that the store has, and brings them up.
  Status FindBelow(const ExecContext& context, const KeyBatch& batch, const Keys& absent,
                   const DefaultRows& defaults, void* weights, bool* exists,
                   const SlotsOut& slots) const;

  TableOptions options_;
  const TierOptions tiers_;
  const TableLocks locks_{TableLocks::Writes::kTogether};  // before the cache has its own
  std::unique_ptr<Table> cache_;
  std::unique_ptr<BackingStore> store_;
  RuleSlots rule_;
  std::atomic<size_t> capacity_{0};  // rows of the cache

  // Held while rows come up, by who does not wait for a pool of threads.
  mutable OrderedMutex promotion_{LockRank::kTier};
  mutable std::atomic<uint64_t> moves_{0};  // times that rows came up
  mutable Victims victims_;                 // used while nobody else is inside
  mutable Counters counters_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERED_TIERED_TABLE_H_
