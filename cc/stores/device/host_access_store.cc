// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/device/host_access_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "cc/core/rows/row_layout.h"
#include "cc/core/store/store_cache.h"

namespace tf_embed {
namespace {

// Device copies of the arrays of one verb. Finish copies the outputs back.
class Arrays {
 public:
  Arrays(DeviceMemory* memory, const ExecContext& context) : memory_(memory), context_(context) {}
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() {
    for (size_t i = 0; i < size_; ++i) memory_->Free(context_, arrays_[i].device, arrays_[i].bytes);
  }

  template <typename T>
  const T* In(const T* host, size_t bytes) {
    return static_cast<const T*>(Copy(const_cast<T*>(host), bytes, false));
  }
  // Values that the verb does not write keep their content.
  template <typename T>
  T* Out(T* host, size_t bytes) {
    return static_cast<T*>(Copy(host, bytes, true));
  }

  // The same for arrays that may already be on the device.
  template <typename T>
  const T* RowsIn(const T* rows, size_t bytes) {
    return context_.rows_on_device ? rows : In(rows, bytes);
  }
  template <typename T>
  T* RowsOut(T* rows, size_t bytes) {
    return context_.rows_on_device ? rows : Out(rows, bytes);
  }

  // Returns the first failure of a copy or of `run`. Waits for the stream even then: copies from
  // pinned memory read it until they are done, and then the caller may change it.
  template <typename Run>
  Status Finish(const Run& run) {
    const Status done = RunAndCopyBack(run);
    const Status waited = memory_->Wait(context_);
    return done.ok() ? waited : done;
  }

 private:
  struct Array {
    void* host;
    void* device;
    size_t bytes;
    bool out;
  };

  template <typename Run>
  Status RunAndCopyBack(const Run& run) {
    TF_EMBED_RETURN_IF_ERROR(std::move(copied_));
    TF_EMBED_RETURN_IF_ERROR(run());
    for (size_t i = 0; i < size_; ++i) {
      const Array& array = arrays_[i];
      if (!array.out) continue;
      TF_EMBED_RETURN_IF_ERROR(memory_->CopyOut(context_, array.device, array.bytes, array.host));
    }
    return Status();
  }

  void* Copy(const void* host, size_t bytes, bool out) {
    if (host == nullptr || bytes == 0 || !copied_.ok()) return nullptr;
    void* const device = memory_->Allocate(context_, bytes);
    if (device == nullptr) {
      copied_ = Status::ResourceExhausted([] { return "No device memory."; });
      return nullptr;
    }
    arrays_[size_++] = {const_cast<void*>(host), device, bytes, out};
    // Copies outputs in too: a verb may write only some positions, such as its shard's, and all are
    // copied back.
    copied_ = memory_->CopyIn(context_, host, bytes, device);
    return device;
  }

  DeviceMemory* memory_;
  const ExecContext& context_;
  // A find has the most arrays: four of the batch, defaults, weights, flags and slots.
  static constexpr size_t kMost = 8;
  Array arrays_[kMost];
  size_t size_ = 0;
  Status copied_;
};

class HostAccessStore final : public Store,
                              public StoreMaintenance,
                              public StoreEviction,
                              public StoreCache {
 public:
  HostAccessStore(std::unique_ptr<Store> store, DeviceMemory* memory)
      : store_(std::move(store)), memory_(memory) {}

  const StoreOptions& options() const override { return store_->options(); }
  RowInitializer initializer() const override { return store_->initializer(); }
  void SetInitializer(const RowInitializer& initializer) override {
    store_->maintenance()->SetInitializer(initializer);
  }
  size_t size() const override { return store_->size(); }
  Status Count(size_t* count) const override { return store_->Count(count); }
  RuleSlots rule() const override { return store_->rule(); }
  StoreMaintenance* maintenance() override {
    return store_->maintenance() != nullptr ? this : nullptr;
  }
  StoreEviction* eviction() override { return store_->eviction() != nullptr ? this : nullptr; }
  StoreCache* cache() override { return store_->cache() != nullptr ? this : nullptr; }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const DefaultRows rows = Defaults(&arrays, defaults, places);
    void* const to = arrays.RowsOut(weights, places * RowBytes());
    bool* const flags = arrays.Out(exists, places);
    const SlotsOut to_slots{slots.rule, arrays.RowsOut(slots.slots, SlotBytes(slots.rule, places))};
    return arrays.Finish([&] { return store_->Find(context, keys, rows, to, flags, to_slots); });
  }

  Status Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    bool* const flags = arrays.Out(exists, places);
    return arrays.Finish([&] { return store_->Contains(context, keys, flags); });
  }

  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const DefaultRows rows = Defaults(&arrays, defaults, places);
    void* const to = arrays.RowsOut(weights, places * RowBytes());
    bool* const flags = arrays.Out(exists, places);
    return arrays.Finish([&] { return store_->FindOrInsert(context, keys, rows, to, flags); });
  }

  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const void* const from = arrays.RowsIn(weights, places * RowBytes());
    const SlotsIn from_slots{slots.rule, arrays.RowsIn(slots.slots, SlotBytes(slots.rule, places))};
    return arrays.Finish([&] { return store_->InsertOrAssign(context, keys, from, from_slots); });
  }

  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const void* const before = arrays.RowsIn(old_rows, places * RowBytes());
    const void* const after = arrays.RowsIn(new_rows, places * RowBytes());
    const bool* const flags = arrays.In(exists, places);
    return arrays.Finish([&] { return store_->Accum(context, keys, before, after, flags); });
  }

  using Store::Apply;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const Gradients& gradients,
               const Rule& rule) override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const size_t dim = options().dim;
    size_t values = places * dim;
    if (gradients.begins != nullptr && places > 0 && !context.rows_on_device) {
      // Several keys may share the gradient of a bag, so the last row gives the array's length, and
      // not the number of keys.
      values = *std::max_element(gradients.begins, gradients.begins + places) + dim;
    }
    Gradients given;
    given.values = arrays.RowsIn(gradients.values, values * SizeOf(gradients.type));
    given.type = gradients.type;
    given.begins = arrays.RowsIn(gradients.begins, places * sizeof(size_t));
    given.factors = arrays.RowsIn(gradients.factors, places * ComputeSize());
    return arrays.Finish([&] { return store_->Apply(context, keys, given, rule); });
  }

  Status UpdateAllRows(const ExecContext& context, const Rule& rule) override {
    return store_->UpdateAllRows(context, rule);
  }
  Status LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                     double* largest) const override {
    return store_->maintenance()->LargestSlot(context, rule, slot, largest);
  }

  Status Erase(const ExecContext& context, const KeyBatch& batch) override {
    Arrays arrays(memory_, context);
    const KeyBatch keys = Keys(&arrays, batch, batch.NumPositions());
    return arrays.Finish([&] { return store_->Erase(context, keys); });
  }
  Status Clear(const ExecContext& context) override { return store_->Clear(context); }
  Status Shrink(const ExecContext& context) override {
    return store_->maintenance()->Shrink(context);
  }

  Status FindStatistics(const ExecContext& context, const KeyBatch& batch, uint64_t* statistics,
                        bool* exists) const override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const size_t words = options().policy.statistics.size();
    uint64_t* const to = arrays.Out(statistics, places * words * sizeof(uint64_t));
    bool* const flags = arrays.Out(exists, places);
    return arrays.Finish(
        [&] { return store_->eviction()->FindStatistics(context, keys, to, flags); });
  }
  Status AssignStatistics(const ExecContext& context, const KeyBatch& batch, StatisticSet set,
                          const uint64_t* statistics) override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    const uint64_t* const from = arrays.In(statistics, places * set.size() * sizeof(uint64_t));
    return arrays.Finish(
        [&] { return store_->eviction()->AssignStatistics(context, keys, set, from); });
  }

  Status EvictExpired(const ExecContext& context, size_t* removed) override {
    return store_->eviction()->EvictExpired(context, removed);
  }
  Status EvictBelow(const ExecContext& context, EvictionOrder order, const Rank& limit,
                    size_t num_left, size_t* removed) override {
    return store_->eviction()->EvictBelow(context, order, limit, num_left, removed);
  }
  Status CollectRanks(const ExecContext& context, EvictionOrder order, size_t one_in,
                      const Rank& low, const Rank& high, RankList* ranks,
                      size_t* below) const override {
    return store_->eviction()->CollectRanks(context, order, one_in, low, high, ranks, below);
  }

  size_t num_rows() const override { return store_->cache()->num_rows(); }
  void SetTick(uint8_t tick) override { store_->cache()->SetTick(tick); }
  Status Touch(const ExecContext& context, const KeyBatch& batch, bool* exists) const override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    bool* const flags = arrays.Out(exists, places);
    return arrays.Finish([&] { return store_->cache()->Touch(context, keys, flags); });
  }
  Status SetChanged(const ExecContext& context, const KeyBatch& batch,
                    bool changed) const override {
    Arrays arrays(memory_, context);
    const KeyBatch keys = Keys(&arrays, batch, batch.NumPositions());
    return arrays.Finish([&] { return store_->cache()->SetChanged(context, keys, changed); });
  }
  Status FindMarks(const ExecContext& context, const KeyBatch& batch, uint8_t* marks,
                   bool* exists) const override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    uint8_t* const to = arrays.Out(marks, places);
    bool* const flags = arrays.Out(exists, places);
    return arrays.Finish([&] { return store_->cache()->FindMarks(context, keys, to, flags); });
  }
  Status NoteUses(const ExecContext& context, const KeyBatch& batch, Found* found) override {
    Arrays arrays(memory_, context);
    const size_t places = batch.NumPositions();
    const KeyBatch keys = Keys(&arrays, batch, places);
    Found* const to = arrays.Out(found, places * sizeof(Found));
    return arrays.Finish([&] { return store_->cache()->NoteUses(context, keys, to); });
  }
  // These verbs have inputs and outputs on the host.
  Status CollectAges(const ExecContext& context, size_t one_in, uint8_t least_age,
                     RankList* ranks) const override {
    return store_->cache()->CollectAges(context, one_in, least_age, ranks);
  }
  Status AddUnchanged(const ExecContext& context, const WholeRows& rows) override {
    return store_->cache()->AddUnchanged(context, rows);
  }
  void Drop(const ExecContext& context, const int64_t* keys, size_t count) override {
    store_->cache()->Drop(context, keys, count);
  }
  PlannedRows* planned_rows() override { return store_->cache()->planned_rows(); }

  StoreStats Stats() const override { return store_->Stats(); }
  Status SetRule(const ExecContext& context, const RuleSlots& rule) override {
    return store_->maintenance()->SetRule(context, rule);
  }
  Status ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const override {
    return store_->maintenance()->ExportBatch(max_rows, cursor, rows);
  }
  ChangeLog* changes() const override { return store_->maintenance()->changes(); }
  Status ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                        WholeRows* rows) override {
    return store_->maintenance()->ExportSnapshot(context, max_rows, cursor, rows);
  }
  const StoreLocks& locks() const override { return store_->locks(); }
  void DropOutgrown() const override { store_->DropOutgrown(); }
  std::unique_ptr<Store> NewEmpty(size_t init_size,
                                  const RowInitializer& initializer) const override {
    return NewHostAccessStore(store_->maintenance()->NewEmpty(init_size, initializer), memory_);
  }
  Status TakeContent(const ExecContext& context, Store* other) override {
    return store_->maintenance()->TakeContent(context,
                                              static_cast<HostAccessStore*>(other)->store_.get());
  }

 private:
  size_t RowBytes() const { return options().dim * SizeOf(options().value_type); }
  size_t ComputeSize() const {
    return options().value_type == DataType::kDouble ? sizeof(double) : sizeof(float);
  }
  size_t SlotBytes(const RuleSlots* rule, size_t places) const {
    if (rule == nullptr) return 0;
    return places *
           RowLayout(options().value_type, options().dim, rule->slots_per_row()).slot_bytes;
  }

  static KeyBatch Keys(Arrays* arrays, const KeyBatch& batch, size_t places) {
    KeyBatch keys = batch;
    keys.keys = arrays->In(batch.keys, batch.size * sizeof(int64_t));
    keys.positions = arrays->In(batch.positions, batch.size * sizeof(uint32_t));
    keys.scores = arrays->In(batch.scores, places * sizeof(int64_t));
    keys.absent = arrays->Out(batch.absent, places);
    return keys;
  }
  DefaultRows Defaults(Arrays* arrays, const DefaultRows& defaults, size_t places) const {
    DefaultRows rows = defaults;
    if (defaults.kind == DefaultRows::Kind::kInitializer) return DefaultRows();
    const size_t count = defaults.kind == DefaultRows::Kind::kOneEach ? places : 1;
    rows.rows = arrays->RowsIn(defaults.rows, count * RowBytes());
    return rows;
  }

  std::unique_ptr<Store> store_;
  DeviceMemory* memory_;
};

class HostMemory final : public DeviceMemory {
 public:
  void* Allocate(const ExecContext&, size_t bytes) override {
    return HostAllocator()->Allocate(bytes);
  }
  void Free(const ExecContext&, void* memory, size_t bytes) override {
    HostAllocator()->Deallocate(memory, bytes);
  }
  Status CopyIn(const ExecContext&, const void* host, size_t bytes, void* device) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
    return Status();
  }
  Status CopyOut(const ExecContext&, const void* device, size_t bytes, void* host) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
    return Status();
  }
  Status CopyWithin(const ExecContext&, const void* from, size_t bytes, void* to) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return Status();
  }
  Status Wait(const ExecContext&) override { return Status(); }
};

}  // namespace

DeviceMemory* EmulatedDeviceMemory() {
  static HostMemory memory;
  return &memory;
}

std::unique_ptr<Store> NewHostAccessStore(std::unique_ptr<Store> store, DeviceMemory* memory) {
  if (store == nullptr) return nullptr;
  return std::unique_ptr<Store>(new (std::nothrow) HostAccessStore(std::move(store), memory));
}

}  // namespace tf_embed
