// SPDX-License-Identifier: Apache-2.0
// The store in the memory of a device.
//
// A find is one launch, in which each tile of lanes looks up a few keys (device_index.h) and copies
// their rows. A write groups the batch's equal keys and numbers the absent keys.
// Then a tile changes the row of each distinct key (row_kernels.h); a lookup that inserts has
// separate kernels for this step (find_or_insert_kernels.h). No kernel locks a row.
//
// Order, not locks in device memory, separates verbs: finds run together, a write runs alone. On
// the host, the two locks below ensure that. On a GPU, a verb returns once its launches are queued.
// There the locks separate the queueing, and Device::Order makes streams wait for each other on the
// device. A kernel fills the device, so concurrent writes would gain nothing.
//
// A batch normally runs without a wait of the host for the device. Before it launches a write, the
// host must know that there is room. It uses an upper bound: the row count that the device last
// reported, plus the keys of all writes since. When room gets short, the device reports its count
// after each write, without a wait. Only if that is not enough does the host ask and wait, and then
// perhaps grow the store.
//
// Writes do wait in a store with admission, and in a store with a sink of evicted rows or a log of
// changes if rows may leave, because these are on the host. While a snapshot is written, verbs that
// change or use rows wait (device_changes.h).
//
// If the byte limit allows no more rows, new keys are refused and counted. If the policy bounds
// rows, they evict others instead (policy_kernels.h). Neither case asks the device. If device
// memory runs out, the verb fails before it changes a row, although expired rows may have left.
// Nothing is written beyond the room: the host's bound proves that all new rows fit, or else the
// kernel compares each new row's number with the room.
//
// Locks: StoreLocks. A verb that changes anything holds both exclusively, except that finds note
// uses, by atomics. The verbs of a cache run
// under the locks of the store over it, which admit concurrent writes, and some under further locks
// of this store. So a cache has a separate lock instead, which verbs take last.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_INL_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/policy/rank_list.h"
#include "cc/core/policy/write_planner.h"
#include "cc/core/store/change_log.h"
#include "cc/core/store/store.h"
#include "cc/core/store/store_cache.h"
#include "cc/core/store/store_locks.h"
#include "cc/stores/device/cache_kernels.h"
#include "cc/stores/device/device_changes.h"
#include "cc/stores/device/device_content.h"
#include "cc/stores/device/device_groups.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/device_write_planner.h"
#include "cc/stores/device/find_kernels.h"
#include "cc/stores/device/find_or_insert_kernels.h"
#include "cc/stores/device/launch_queue.h"
#include "cc/stores/device/pooled_kernels.h"
#include "cc/stores/device/row_kernels.h"
#include "cc/stores/device/rule_kernels.h"
#include "cc/stores/device/staging_buffer.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

template <class Device>
class DeviceStoreImpl final : public DeviceStore,
                              public StoreMaintenance,
                              public StoreEviction,
                              public StoreCache {
 public:
  static Status Create(const StoreOptions& options, const DeviceOptions& device_options,
                       const Device& device, std::unique_ptr<Store>* store);
  ~DeviceStoreImpl() override;

  const StoreOptions& options() const override { return options_; }
  RowInitializer initializer() const override;
  void SetInitializer(const RowInitializer& initializer) override;
  size_t size() const override;
  Status Count(size_t* count) const override;
  RuleSlots rule() const override;
  StoreMaintenance* maintenance() override { return this; }
  StoreEviction* eviction() override { return this; }
  StoreCache* cache() override { return options_.is_cache ? this : nullptr; }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override;
  Status FindPointers(const ExecContext& context, const KeyBatch& batch,
                      const void** rows) const override;
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
  Status UpdateAllRows(const ExecContext& context, const Rule& rule) override;
  Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                     double* largest) const override;
  Status FindPooled(const ExecContext& context, const PooledFind* finds,
                    size_t count) const override;
  Status ApplyBags(const ExecContext& context, const float* gradients, const BagGradients* batches,
                   size_t count, Combiner combiner, const Rule& rule) override;
  Status Erase(const ExecContext& context, const KeyBatch& batch) override;
  using Store::Clear;
  Status Clear(const ExecContext& context) override;
  Status Shrink(const ExecContext& context) override;
  Status FindStatistics(const ExecContext& context, const KeyBatch& batch, uint64_t* statistics,
                        bool* exists) const override;
  Status AssignStatistics(const ExecContext& context, const KeyBatch& batch, StatisticSet set,
                          const uint64_t* statistics) override;
  Status EvictExpired(const ExecContext& context, size_t* removed) override;
  Status EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                    size_t num_left, size_t* removed) override;
  Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                      const Rank& low, const Rank& high, RankList* ranks,
                      size_t* below) const override;
  size_t num_rows() const override;
  void SetTick(uint8_t tick) override { tick_.store(tick, std::memory_order_relaxed); }
  Status Touch(const ExecContext& context, const KeyBatch& batch, bool* exists) const override;
  Status SetChanged(const ExecContext& context, const KeyBatch& batch, bool changed) const override;
  Status FindMarks(const ExecContext& context, const KeyBatch& batch, uint8_t* marks,
                   bool* exists) const override;
  Status CollectAges(const ExecContext& context, size_t one_in, uint8_t least_age,
                     RankList* ranks) const override;
  Status AddUnchanged(const ExecContext& context, const WholeRows& rows) override;
  void Drop(const ExecContext& context, const int64_t* keys, size_t count) override;
  Status NoteUses(const ExecContext& context, const KeyBatch& batch, Found* found) override;
  PlannedRows* planned_rows() override { return planned_.get(); }
  StoreStats Stats() const override;
  using StoreMaintenance::SetRule;
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override;
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override;
  ChangeLog* changes() const override { return changes_.get(); }
  Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                        WholeRows* rows) override;
  const StoreLocks& locks() const override { return locks_; }
  std::unique_ptr<Store> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override;
  using StoreMaintenance::TakeContent;
  Status TakeContent(const ExecContext& context, Store* other) override;

 private:
  using Content = DeviceContent<Device>;
  template <typename T>
  using Array = DeviceArray<Device, T>;

  // Rough costs in nanoseconds, used to split work over threads.
  static constexpr size_t kFindCost = 80;
  static constexpr size_t kWriteCost = 120;
  static constexpr size_t kSumCost = 20;  // for a block of columns
  static constexpr size_t kRowCost = 100;
  static constexpr size_t kPlaceCost = 5;
  static constexpr uint64_t kSampledPlaces = 7 * 1024;
  // The number of batches to make room for ahead, and the number of fruitless waits before the
  // store does so.
  static constexpr uint64_t kAhead = 8;
  static constexpr int kPatience = 4;
  static constexpr uint64_t kSmallAhead = 1 << 16;  // rows
  // Scratch bytes for the sums of a launch of an apply, and the least number of keys to take in a
  // launch, which fills a device.
  static constexpr size_t kScratchBytes = size_t{32} << 20;
  static constexpr size_t kMinTogether = size_t{1} << 14;
  // Rebuild the store if it loses at least 1 row in this many.
  static constexpr size_t kRebuildDivisor = 4;

  using Shared = std::shared_lock<FairSharedMutex>;
  using Alone = std::unique_lock<FairSharedMutex>;

  // The scope of a verb that reads. `notes_uses`: it writes statistics, so callers that pause
  // writers keep it out, and a snapshot begins before or after it.
  class Reading {
   public:
    Reading(const DeviceStoreImpl* store, const ExecContext& context, bool notes_uses = false)
        : current_(store->device_) {
      // A caller that holds the store has the lock already, and a shared lock is not taken twice: a
      // waiting writer in between would stop both. No caller holds the lock of a cache.
      const bool held = context.held == Held::kContent || context.held == Held::kUsing ||
                        context.held == Held::kWriting;
      if (!held && notes_uses && context.held != Held::kPaused && !store->options_.is_cache) {
        writers_ = Shared(store->locks_.writers);
      }
      if (!held || store->options_.is_cache) lock_ = Shared(store->inside());
      store->order_.BeginRead(context);
    }

   private:
    const typename Device::Current current_;
    Shared writers_;
    Shared lock_;
  };

  // The scope of a verb that writes. `keeps_keys`: it neither inserts nor erases keys.
  class Writing {
   public:
    Writing(const DeviceStoreImpl* store, const ExecContext& context, bool keeps_keys = false)
        : current_(store->device_), pausing_(store->locks_, context) {
      if (context.held != Held::kWriting || store->options_.is_cache) {
        lock_ = Alone(store->inside());
      }
      store->ForgetStatistics();
      if (!keeps_keys) store->known_rows_.store(kUnknown, std::memory_order_relaxed);
      store->order_.BeginWrite(context);
    }

   private:
    const typename Device::Current current_;
    const PauseLocks pausing_;
    Alone lock_;
  };

  class ReadingMany;  // device_store_pooled_inl.h
  class Planned;      // device_store_cache_inl.h
  using Staging = StagingBuffer<Device>;

  // The options of a write.
  struct WriteOptions {
    const bool* exists = nullptr;  // ProbeKernel
    bool uses = true;              // whether it is a use of the present rows
    bool counts_refused = true;
    Admits admits = Admits::kAll;
    size_t together = SIZE_MAX;  // keys a launch, limited by the verb's scratch memory
  };

  DeviceStoreImpl(const StoreOptions& options, const DeviceOptions& device_options,
                  const Device& device);  // may throw std::bad_alloc
  bool Begin();                           // false without memory

  RowLayout LayoutOf(const RuleSlots& rule) const {
    RowLayout layout(options_.value_type, options_.dim, rule.slots_per_row(),
                     options_.policy.statistics.size());
    layout.has_marks = options_.is_cache;
    return layout;
  }
  // The lock that every verb takes; writing verbs take it exclusively.
  FairSharedMutex& inside() const { return options_.is_cache ? gate_ : locks_.content; }
  // Invalidates the statistics that a plan has read.
  void ForgetStatistics() const { versions_.fetch_add(1, std::memory_order_relaxed); }
  Status NewContent(const ExecContext& context, std::unique_ptr<Content>* content) const;
  StoreView View() const {
    StoreView view = content_->View(options_.policy.statistics);
    view.eviction = options_.policy.eviction;
    view.tallies = tallies_;
    view.tick = tick_.load(std::memory_order_relaxed);
    if (changes_ != nullptr) view.period = changes_->period();
    return view;
  }
  // Adds the ranks that a kernel of cache_kernels.h finds in some launches.
  template <class Kernel>
  Status CollectFound(const ExecContext& context, size_t count, size_t cost, Kernel kernel,
                      RankList* ranks) const;
  DefaultsView ViewOf(const DefaultRows& defaults) const;
  PoolView ViewOf(const ExecContext& context, const PooledFind& find, const BagsView& bags) const;
  // Fills the host copy of the initial row of all keys, unless it is random.
  void FillInitialRow(const RowInitializer& initializer) const;
  // Makes `slots` the slots of a new row, on the host.
  Status InitialSlots(const RuleSlots& rule, Buffer<char>* slots) const;
  // The number of rows, or an earlier number if it can't be read. REQUIRES: a reader's lock.
  uint64_t RowsOrEarlier(const ExecContext& context) const;
  Status NoMemory(const ExecContext& context) const;
  Status NoRoomForLayouts(const ExecContext& context) const;
  // The limit on rows after a write, unless the store already has more.
  uint64_t Bound(const ExecContext& context) const {
    return options_.policy.max_rows > 0 && !context.restoring ? options_.policy.max_rows
                                                              : UINT64_MAX;
  }
  Expiry ExpiryAt(const ExecContext& context) const {
    return Expiry{options_.policy.ttl_milliseconds, context.now.milliseconds};
  }
  // Whether, as far as the host knows without a wait, there is as much room for `keys` more rows as
  // the bounds allow. If so, reserves it. `*all` says whether all of them certainly fit.
  bool HasRoom(const ExecContext& context, size_t keys, bool* all);
  // Otherwise: reads from the device how many keys are new (`wanted`, in device memory), and makes
  // room for them, within the bounds.
  Status MakeRoom(const ExecContext& context, size_t keys, const uint32_t* wanted, bool* all);
  // Ends a verb with `keys` keys that changed the number of rows. Requests the new count if, as far
  // as the host knows, the next verbs may soon lack room.
  Status Launched(const ExecContext& context, uint64_t keys) {
    TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
    const bool has_room = content_->row_bound.most() + kAhead * keys <= content_->room();
    if (has_room || content_->full()) return Status();
    if (context.queue == nullptr) {
      content_->RequestRowCount(context);
      return Status();
    }
    try {
      context.queue->AtEnd([this](const ExecContext& now) { content_->RequestRowCount(now); });
    } catch (const std::bad_alloc&) {  // a later verb requests it
    }
    return Status();
  }
  DeviceWritePlanner<Device> PlannerOf(const ExecContext& context) {
    return {context,        device_,  options_.policy, options_.allocator,
            content_.get(), tallies_, &held_back_,     changes_.get()};
  }
  // Whether a find as a part of training writes statistics of rows.
  bool NotesUses(const ExecContext& context) const {
    return context.training && options_.policy.statistics.OfUse().size() > 0;
  }
  // Called by verbs before they use or change the rows of some keys: hands the rows to the snapshot
  // in progress, if it wants them. `keys` are in device memory.
  Status GiveBefore(const ExecContext& context, const int64_t* keys, size_t count) const;
  // The same for all rows.
  Status GiveAll(const ExecContext& context) const;
  // ExportBatch, of the rows that a snapshot wants; without a snapshot, of all rows.
  Status Export(const ExecContext& context, const WantedRows& wanted, size_t max_rows,
                ExportCursor* cursor, WholeRows* rows) const;
  // Runs a verb of row_kernels.h on the distinct keys of a batch. REQUIRES: the locks of a writer.
  template <class Verb>
  Status Write(const ExecContext& context, const KeyBatch& batch, const GroupsView& groups,
               const WriteOptions& write, size_t key_cost, const Verb& verb);
  template <typename T, typename G>
  Status ApplyAs(const ExecContext& context, const KeyBatch& batch, const GroupsView& groups,
                 const Gradients& gradients, const Rule& rule);
  // REQUIRES: the locks of a writer.
  Status ChangeRule(const ExecContext& context, const RuleSlots& rule);

  StoreOptions options_;
  const DeviceOptions device_options_;
  const Device device_;
  const StoreLocks locks_{StoreLocks::Writes::kAlone};
  mutable typename Device::Order order_{device_};
  std::unique_ptr<Content> content_;
  mutable std::atomic<uint64_t> last_rows_{0};  // the number read last
  int fruitless_waits_ = 0;                     // used by writers
  StoreTallies* tallies_ = nullptr;             // in device memory
  mutable Buffer<char> initial_row_;            // on the host, under the lock
  // For a cache.
  static constexpr int64_t kUnknown = -1;
  struct CacheScratch;
  mutable FairSharedMutex gate_{LockRank::kStripe, locks_.number};
  std::atomic<uint8_t> tick_{0};
  mutable std::atomic<int64_t> known_rows_{kUnknown};  // changed by writers
  mutable std::atomic<uint64_t> versions_{0};          // version of the statistics
  CacheScratch* scratch_ = nullptr;                    // in device memory
  // If rows have Statistic::kChange.
  std::shared_ptr<ChangeLog> changes_;
  mutable OrderedMutex giving_{LockRank::kGiving};
  std::unique_ptr<Planned> planned_;
  mutable std::atomic<uint64_t> keys_looked_up_{0};
  std::atomic<uint64_t> evicted_{0};  // except rows replaced by others
  std::atomic<uint64_t> expired_{0};  // except rows removed by writes
  std::atomic<uint64_t> held_back_{0};
};

template <class Device>
Status DeviceStoreImpl<Device>::Create(const StoreOptions& options,
                                       const DeviceOptions& device_options, const Device& device,
                                       std::unique_ptr<Store>* store) {
  std::unique_ptr<DeviceStoreImpl> made;
  bool begun = false;
  try {
    made.reset(new DeviceStoreImpl(options, device_options, device));
    begun = made->Begin();
  } catch (const std::bad_alloc&) {  // `begun` is false
  }
  if (!begun) {
    TF_EMBED_RETURN_IF_ERROR(device.Check(ExecContext::Serial()));
    return NoMemoryForRow(options.name, 0);
  }
  *store = std::move(made);
  return Status();
}

template <class Device>
DeviceStoreImpl<Device>::DeviceStoreImpl(const StoreOptions& options,
                                         const DeviceOptions& device_options, const Device& device)
    : options_(options),
      device_options_(device_options),
      device_(device),
      initial_row_(options.allocator) {
  options_.policy = options.policy.WithNeeds();
  if (!options_.policy.statistics.Has(Statistic::kChange)) return;
  changes_ =
      options.changes != nullptr ? options.changes : std::make_shared<ChangeLog>(options.name);
}

template <class Device>
bool DeviceStoreImpl<Device>::Begin() {
  const ExecContext context = ExecContext::Serial();
  const RowLayout layout = LayoutOf(RuleSlots());
  tallies_ = static_cast<StoreTallies*>(device_.AllocateLasting(context, sizeof(StoreTallies)));
  if (tallies_ == nullptr || !initial_row_.Resize(layout.weight_bytes).ok()) return false;
  device_.Fill(context, tallies_, 0, sizeof(StoreTallies));
  if (options_.is_cache) {
    scratch_ = static_cast<CacheScratch*>(device_.AllocateLasting(context, sizeof(CacheScratch)));
    if (scratch_ == nullptr) return false;
    planned_ = std::make_unique<Planned>(this);
  }
  content_.reset(new Content(device_, device_options_, layout, options_.initializer));
  FillInitialRow(options_.initializer);
  return content_->Begin(context, initial_row_.data()) &&
         (options_.init_size == 0 || content_->MakeRoom(context, options_.init_size));
}

template <class Device>
Status DeviceStoreImpl<Device>::Find(const ExecContext& context, const KeyBatch& batch,
                                     const DefaultRows& defaults, void* weights, bool* exists,
                                     const SlotsOut& slots) const {
  const bool uses = NotesUses(context);
  const Reading reading(this, context, uses);
  if (slots.rule != nullptr && !SameRule(*slots.rule, content_->rule)) {
    return RuleWasChanged(options_.name);
  }
  keys_looked_up_.fetch_add(batch.size, std::memory_order_relaxed);
  if (uses) TF_EMBED_RETURN_IF_ERROR(GiveBefore(context, batch.keys, batch.size));
  LaunchFind(
      device_, context, kFindCost + content_->layout().weight_bytes / 8,
      FindKernel{View(), BatchView(batch), ViewOf(defaults), static_cast<char*>(weights), exists,
                 static_cast<char*>(slots.slots), uses, context.training && options_.is_cache,
                 context.now, context.training ? ExpiryAt(context) : Expiry()});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::FindPointers(const ExecContext& context, const KeyBatch& batch,
                                             const void** rows) const {
  const Reading reading(this, context);
  LaunchLookups(device_, context, batch.size, kFindCost,
                FindPointersKernel{View(), BatchView(batch), rows});
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::Contains(const ExecContext& context, const KeyBatch& batch,
                                         bool* exists) const {
  const Reading reading(this, context);
  LaunchLookups(device_, context, batch.size, kFindCost,
                ContainsKernel{View(), BatchView(batch), exists});
  return device_.Check(context);
}

}  // namespace tf_embed

#include "cc/stores/device/device_store_apply_inl.h"
#include "cc/stores/device/device_store_cache_inl.h"
#include "cc/stores/device/device_store_content_inl.h"
#include "cc/stores/device/device_store_policy_inl.h"
#include "cc/stores/device/device_store_pooled_inl.h"
#include "cc/stores/device/device_store_snapshot_inl.h"
#include "cc/stores/device/device_store_write_inl.h"

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_INL_H_
