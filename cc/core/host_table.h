// The table in the memory of the host: a StripedIndex from keys to slots, and a RowStore of rows.
//
// A find:  hash -> bucket (one cache line) -> slot -> row. The keys of a batch go through these
// steps one behind the other, each step asking for the memory of the next, so that the misses of a
// dozen keys overlap (table_loops.h). A row is copied without a lock and the bucket's word checked
// afterwards.
//
// A write: equal keys of the batch are brought together (KeyGroups), and each group is dealt with
// once, many at the same time, by the same pipeline. A present row is changed under the lock of its
// bucket's word. A new row is made complete in a slot that nobody sees, then put in the index under
// the stripe's mutex.
//
// Locks, in the order in which one thread may take them:
//   1. writers_   shared by each verb that changes the table; alone by PauseWriters and Shrink
//   2. content_gate_   shared by each verb; alone by those that replace or rearrange everything
//   3. a stripe's mutex
//   4. a bucket's word; the row store's slab mutex; the mutex of the index's arena
#ifndef TF_EMBED_CC_CORE_HOST_TABLE_H_
#define TF_EMBED_CC_CORE_HOST_TABLE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "cc/core/key_groups.h"
#include "cc/core/operation_gate.h"
#include "cc/core/row_store.h"
#include "cc/core/striped_index.h"
#include "cc/core/table.h"
#include "cc/core/table_loops.h"

namespace tf_embed {

class HostTable final : public Table {
 public:
  // Returns nullptr without memory for an empty table.
  static std::unique_ptr<HostTable> Create(const TableOptions& options);

  const TableOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  size_t size() const override;
  RuleSlots rule() const override;

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override;
  void Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override;
  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override;
  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const void* gradients,
               DataType gradient_type, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  Status Clear() override;
  Status Shrink() override;
  Status SetRule(const RuleSlots& rule) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, ExportedRows* rows) const override;
  void PauseWriters() const override { writers_.lock(); }
  void ResumeWriters() const override { writers_.unlock(); }
  std::unique_ptr<Table> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  void TakeContent(Table* other) override;

 private:
  using Shared = std::shared_lock<OperationGate>;
  using Alone = std::unique_lock<OperationGate>;

  // All that Clear, Shrink and TakeContent replace at once.
  struct Content {
    Content(Allocator* allocator, size_t size_hint, const RowLayout& layout,
            RowInitializer initializer, const RuleSlots& rule)
        : index(allocator, size_hint),
          rows(allocator, layout),
          initializer(std::move(initializer)),
          rule(rule) {}

    StripedIndex index;
    RowStore rows;
    RowStore::SlotPool pools[StripedIndex::kStripes];  // each under its stripe's mutex
    RowInitializer initializer;
    RuleSlots rule;
  };

  // A key on its way through the pipeline: where it was found a moment ago, perhaps nowhere.
  struct Probe {
    uint64_t hash;
    StripedIndex::Entry entry;
  };

  // What one thread needs to put new rows together.
  struct RowScratch {
    explicit RowScratch(Allocator* allocator) : row(allocator), initial_slots(allocator) {}
    Buffer<char> row;            // one row
    Buffer<char> initial_slots;  // the slots of a new row
  };

  explicit HostTable(const TableOptions& options);  // may throw std::bad_alloc

  // Empty content like the present one.
  Status NewContent(size_t size_hint, std::unique_ptr<Content>* content) const;
  // Puts all rows into a new content. Nobody writes meanwhile.
  Status CopyContent(Content* copy) const;
  RowLayout LayoutOf(const RuleSlots& rule) const;
  // Makes `slots` the slots of a new row.
  Status InitialSlots(const RuleSlots& rule, Buffer<char>* slots) const;
  Status NewScratch(const Content& content, RowScratch* scratch) const;
  Status NoMemory(size_t keys_held) const;
  Status OtherRule() const;
  void DefaultRow(const Content& content, const DefaultRows& defaults, int64_t key, size_t position,
                  void* weights) const;

  // Runs `work(content, range)` over the groups of a batch, many ranges at once, and returns the
  // first failure. Keys whose `skip` is true are left out. Refuses where `expected` is given and
  // the table has another rule.
  template <typename Work>
  Status ForEachRange(const ExecContext& context, const KeyBatch& batch, const bool* skip,
                      const RuleSlots* expected, size_t key_cost, const Work& work);

  // Calls `visit(group, probe)` for all groups of a range, having asked for the memory of their
  // buckets and rows; stops at a failure. `approach(group)` is called some keys before the visit,
  // to ask for what else it will need.
  template <typename Approach, typename Visit>
  Status ForEachGroup(const Content& content, KeyGroups::Range* range, const Approach& approach,
                      const Visit& visit);

  // Calls `present(row)` under the row's lock, or `absent(row)` for a new row that nobody sees yet,
  // which then joins the table.
  template <typename Present, typename Absent>
  Status VisitRow(Content* content, int64_t key, Probe probe, const Present& present,
                  const Absent& absent);
  // The same, passing over an absent key. A key comes once in a batch's groups; so one whose probe
  // found nothing can only have been inserted since by another verb, which may as well come later.
  template <typename Present>
  Status VisitPresentRow(Content* content, int64_t key, Probe probe, const Present& present);

  template <typename T>
  Status AccumRange(Content* content, KeyGroups::Range* range, const T* old_rows, const T* new_rows,
                    const bool* exists);
  // T: the weights; G: the gradients.
  template <typename T, typename G>
  Status ApplyRange(Content* content, KeyGroups::Range* range, const G* gradients,
                    const Rule& rule);

  Status SetRuleAlone(const RuleSlots& rule);
  void DropRetired();

  TableOptions options_;
  const TableLoops& loops_;
  mutable OperationGate writers_;
  mutable OperationGate content_gate_;
  std::unique_ptr<Content> content_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_HOST_TABLE_H_
