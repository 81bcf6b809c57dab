// SPDX-License-Identifier: Apache-2.0
// A store whose rows are in Redis, possibly shared by several processes.
//
// A write reads the rows of its batch into a temporary HostStore and runs there. Then it writes
// back the changed rows, each only if the server's row is unchanged since the read
// (RedisRows::Exchange). It repeats with the keys that lost this race. So each verb matches
// HostStore to the last bit, and no process loses an update.
//
// A verb is not atomic for other processes: they may see some of its rows before others. A single
// row is always consistent.
//
// Not supported: bounds, admission, statistics and change tracking (CheckRedisStore). Rows may
// expire after a time without use; the server drops them.
//
// Locks: StoreLocks, as in HostStore. They only order the verbs of this process.
#ifndef TF_EMBED_CC_STORES_REDIS_REDIS_STORE_H_
#define TF_EMBED_CC_STORES_REDIS_REDIS_STORE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/base/thread_annotations.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/store/store.h"
#include "cc/core/store/store_locks.h"
#include "cc/stores/redis/redis_meta.h"
#include "cc/stores/redis/redis_options.h"
#include "cc/stores/redis/redis_rows.h"

namespace tf_embed {

// Fails, naming the option, if a store in Redis does not support the options.
Status CheckRedisStore(const StoreOptions& options, const RedisOptions& redis);

class RedisStore final : public Store, public StoreMaintenance {
 public:
  // Opens the store, or creates it empty. The policy sets its expiry.
  static Status Open(const StoreOptions& options, RedisOptions redis,
                     std::unique_ptr<RedisStore>* store);

  const StoreOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  void SetInitializer(const RowInitializer& initializer) override;
  size_t size() const override;
  Status Count(size_t* count) const override { return rows_->Count(count); }
  // Also returns the error of the last count, unless it was kAborted, which passes.
  Status CheckReachable() const override;
  bool is_shared() const override { return true; }
  RuleSlots rule() const override { return Known()->rule; }
  StoreMaintenance* maintenance() override { return this; }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override;
  Status Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override;
  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override;
  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override;
  using Store::Apply;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const Gradients& gradients,
               const Rule& rule) override;
  // Reads and writes each row of the store. This does not renew the rows' expiry.
  Status UpdateAllRows(const ExecContext& context, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Store::Clear;
  Status Clear(const ExecContext& context) override;
  StoreStats Stats() const override;
  const StoreLocks& locks() const override { return locks_; }

  using StoreMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  // NaN if the server is unreachable.
  Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                     double* largest) const override;
  Status Shrink(const ExecContext&) override { return Status(); }
  // The first batch sets `rule`. The last batch has no rows, and fails if another process has
  // changed the rule since. So if the export succeeds, all rows have the rule that the caller read
  // in between.
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  // Makes a HostStore, whose rows TakeContent writes to the server.
  std::unique_ptr<Store> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using StoreMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Store* other) override;

 private:
  // The metadata read last, and its bytes on the server.
  struct KnownMeta : RedisMeta {
    std::string bytes;
  };

  // The state of an export.
  struct Export {
    std::shared_ptr<const KnownMeta> meta;  // for all rows
    RedisRows::Scan scan;
  };

  // Rows of distinct keys as read. The weights and slots of absent keys are unspecified.
  struct Loaded {
    std::shared_ptr<const KnownMeta> meta;  // the layout of the slots
    std::vector<uint64_t> stamps;           // 0: absent
    std::vector<char> weights;
    std::vector<char> slots;
  };

  // A verb to run on a store of the batch's rows.
  using Verb =
      std::function<Status(const ExecContext& context, const KeyBatch& batch, Store* rows)>;

  RedisStore(const StoreOptions& options, std::unique_ptr<RedisRows> rows)
      : options_(options), rows_(std::move(rows)) {
    initializer_ = options.initializer;
  }

  std::shared_ptr<const KnownMeta> Known() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return known_;
  }
  // Applies metadata received from the server.
  Status Learn(const std::string& bytes) const;
  // Creates the metadata, if there is none.
  Status MakeMeta(const RedisMeta& meta) const;
  // Sets the store's rule, given the locks held.
  Status ChangeRule(const RuleSlots& rule) const;

  // Fails if the rule on the server is not the rule of `meta`.
  Status CheckGeneration(const KnownMeta& meta) const;

  RowLayout LayoutOf(const RuleSlots& rule) const {
    return RowLayout(options_.value_type, options_.dim, rule);
  }
  // Reads the slots of a row's value in the layout of `meta`, [wide slots of a row].
  Status ReadSlots(const KnownMeta& meta, int64_t key, std::string_view value, char* slots) const;
  Status CheckWeights(int64_t key, std::string_view value) const;

  Status Load(const std::vector<int64_t>& keys, Loaded* loaded) const;
  // Makes a store of the loaded rows, with the slots of `rule`.
  Status NewHostStore(const RuleSlots& rule, const std::vector<int64_t>& keys, const Loaded& loaded,
                      std::unique_ptr<Store>* store) const;
  // Writes changed rows back. With `uses`, also writes unchanged rows if rows expire, to renew
  // their time. Returns the indices of keys whose rows another process has changed meanwhile.
  Status Put(const std::vector<int64_t>& keys, const Loaded& loaded, const RuleSlots& rule,
             const Store& store, bool uses, std::vector<uint32_t>* lost) const;
  // Runs a writing verb. Fails if `expected` is given and the store has another rule. `uses` says
  // whether the verb uses the rows. A verb that does not use them inserts none.
  Status Write(const ExecContext& context, const KeyBatch& batch, const RuleSlots* expected,
               bool uses, const Verb& verb) const;

  const StoreOptions options_;
  const std::unique_ptr<RedisRows> rows_;
  const StoreLocks locks_{StoreLocks::Writes::kTogether};
  mutable std::mutex mutex_;  // never held during a wait
  RowInitializer initializer_ TF_EMBED_GUARDED_BY(mutex_);
  mutable std::shared_ptr<const KnownMeta> known_ TF_EMBED_GUARDED_BY(mutex_);
  mutable Status counted_ TF_EMBED_GUARDED_BY(mutex_);  // status of the last size()

  mutable std::atomic<size_t> last_size_{0};
  mutable std::atomic<uint64_t> hits_{0}, misses_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_REDIS_STORE_H_
