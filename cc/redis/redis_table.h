// SPDX-License-Identifier: Apache-2.0
// A table whose rows are in Redis, and may be those of several processes at once.
//
// A verb that writes reads the rows of its batch, puts them into a HostTable of their own, runs
// there, and writes back the rows that have changed, each under the condition that the server still
// has what was read (RedisRows::Exchange). With the keys of the others it begins again. So each
// verb does what it does in a HostTable, to the last bit, and no update of another process is lost.
//
// A verb is not of one moment for other processes: they may see some of its rows before the others.
// A single row is always whole.
//
// Not here: bounds, admission, statistics and changes of rows (CheckRedisTable). Rows may expire
// after a time without use; the server drops them.
//
// Locks: those of TableLocks, as in HostTable. They order the verbs of this process alone.
#ifndef TF_EMBED_CC_REDIS_REDIS_TABLE_H_
#define TF_EMBED_CC_REDIS_REDIS_TABLE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/rows/row_layout.h"
#include "cc/core/table/table.h"
#include "cc/core/table/table_locks.h"
#include "cc/redis/redis_meta.h"
#include "cc/redis/redis_options.h"
#include "cc/redis/redis_rows.h"

namespace tf_embed {

// Refuses what a table in Redis can't have, by name.
Status CheckRedisTable(const TableOptions& options, const RedisOptions& redis);

class RedisTable final : public Table, public TableMaintenance {
 public:
  // Finds the table, or makes an empty one if there is none. Its expiry is that of the policy.
  static Status Open(const TableOptions& options, RedisOptions redis,
                     std::unique_ptr<RedisTable>* table);

  const TableOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  void SetInitializer(const RowInitializer& initializer) override;
  size_t size() const override;
  Status Count(size_t* count) const override { return rows_->Count(count); }
  bool is_shared() const override { return true; }
  RuleSlots rule() const override { return Known()->rule; }
  TableMaintenance* maintenance() override { return this; }

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
  // Reads and writes each row of the table.
  Status FinishStep(const ExecContext& context, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Table::Clear;
  Status Clear(const ExecContext& context) override;
  TableStats Stats() const override;
  const TableLocks& locks() const override { return locks_; }

  using TableMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  // NaN if the server is lost.
  double LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot) const override;
  Status Shrink(const ExecContext&) override { return Status(); }
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  // A HostTable, which TakeContent writes to the server.
  std::unique_ptr<Table> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using TableMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Table* other) override;

 private:
  // The meta as it was read last, and its bytes on the server.
  struct KnownMeta : RedisMeta {
    std::string bytes;
  };

  // Rows of distinct keys as they were read, the weights and slots of absent ones unspecified.
  struct Loaded {
    std::shared_ptr<const KnownMeta> meta;  // whose slots they have
    std::vector<uint64_t> stamps;           // 0: absent
    std::vector<char> weights;
    std::vector<char> slots;
  };

  // Runs a verb on a table of the rows of a batch.
  using Verb =
      std::function<Status(const ExecContext& context, const KeyBatch& batch, Table* rows)>;

  RedisTable(const TableOptions& options, std::unique_ptr<RedisRows> rows)
      : options_(options), rows_(std::move(rows)) {
    initializer_ = options.initializer;
  }

  std::shared_ptr<const KnownMeta> Known() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return known_;
  }
  // Takes over a meta that the server has given.
  Status Learn(const std::string& bytes) const;
  // Makes a meta where there is none.
  Status MakeMeta(const RedisMeta& meta) const;
  // Gives the table a rule, as the locks allow it.
  Status ChangeRule(const RuleSlots& rule) const;

  RowLayout LayoutOf(const RuleSlots& rule) const {
    return RowLayout(options_.value_type, options_.dim, rule);
  }
  // Reads the slots of a row's value as rows of `meta` have them, [wide slots of a row].
  Status ReadSlots(const KnownMeta& meta, int64_t key, std::string_view value, char* slots) const;
  Status CheckWeights(int64_t key, std::string_view value) const;

  Status Load(const std::vector<int64_t>& keys, Loaded* loaded) const;
  // The rows in a table, with the slots of `rule`.
  Status NewHostTable(const RuleSlots& rule, const std::vector<int64_t>& keys, const Loaded& loaded,
                      std::unique_ptr<Table>* table) const;
  // Writes those rows back that the table has changed, and gives the numbers of the keys whose rows
  // another process has changed meanwhile.
  Status Store(const std::vector<int64_t>& keys, const Loaded& loaded, const RuleSlots& rule,
               const Table& table, std::vector<uint32_t>* lost) const;
  // Runs a verb that writes. If `expected` is given and the table has another rule, it is refused.
  Status Write(const ExecContext& context, const KeyBatch& batch, const RuleSlots* expected,
               const Verb& verb) const;

  const TableOptions options_;
  const std::unique_ptr<RedisRows> rows_;
  const TableLocks locks_{TableLocks::Writes::kTogether};
  mutable std::mutex mutex_;  // of what follows; nothing is waited for meanwhile
  RowInitializer initializer_;
  mutable std::shared_ptr<const KnownMeta> known_;

  mutable std::atomic<size_t> last_size_{0};
  mutable std::atomic<uint64_t> hits_{0}, misses_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_REDIS_REDIS_TABLE_H_
