// SPDX-License-Identifier: Apache-2.0
// The memory of a DeviceStore: an index, slabs of rows, and the initial values of new rows.
// REQUIRES: no concurrent writes; when memory is freed, no concurrent reads either.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_CONTENT_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_CONTENT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "cc/core/base/status.h"
#include "cc/core/rows/initializer.h"
#include "cc/core/rules/rule_slots.h"
#include "cc/stores/device/device_rows.h"
#include "cc/stores/device/device_slabs.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/row_count_bound.h"
#include "cc/stores/device/table_kernels.h"

namespace tf_embed {

// Launches a kernel that handles an item per lane.
template <class Device, class Kernel>
void LaunchLanes(const Device& device, const ExecContext& context, size_t items, size_t cost,
                 const Kernel& kernel) {
  constexpr size_t kTogether = Device::Tile::kLanes;
  device.Launch(context, (items + kTogether - 1) / kTogether, cost * kTogether, kernel);
}

// Launches a kernel of which, on some devices, blocks of tiles do the parts that would take a tile
// long. Only the device knows how many tiles and parts there are; `tiles` is a bound. Besides
// operator() the kernel has
//     NumTiles()
//     NumForBlocks()     the number of these parts
//     OnBlock<Block>(i)  a part on a block, whose operator() does not do it
template <class Device, class Kernel>
void LaunchBlocks(const Device& device, const ExecContext& context, size_t tiles, size_t cost,
                  const Kernel& kernel) {
  if constexpr (Device::Tile::kBlocks) {
    device.LaunchBlocks(context, tiles, kernel);
  } else {
    device.Launch(context, tiles, cost, kernel);
  }
}

// An array in device memory, for the verb that makes it.
template <class Device, typename T>
class DeviceArray {
 public:
  DeviceArray(const Device& device, const ExecContext& context)
      : device_(device), context_(context) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    // Queued on the verb's stream, after the launches that use the array.
    if (data_ != nullptr) device_.Free(context_, data_, size_ * sizeof(T));
  }

  // Makes an array of unspecified content. Called once.
  Status Make(size_t size) {
    if (size == 0) return Status();
    data_ = static_cast<T*>(device_.Allocate(context_, size * sizeof(T)));
    if (data_ == nullptr) {
      // An earlier failure of another kind is not a lack of memory.
      TF_EMBED_RETURN_IF_ERROR(device_.Check(context_));
      return Status::ResourceExhausted([size] {
        return "No device memory for " + std::to_string(size * sizeof(T)) +
               " bytes of scratch space.";
      });
    }
    size_ = size;
    return Status();
  }
  Status MakeZeros(size_t size) {
    TF_EMBED_RETURN_IF_ERROR(Make(size));
    device_.Fill(context_, data_, 0, size_ * sizeof(T));
    return Status();
  }

  // All bits set.
  Status MakeOnes(size_t size) {
    TF_EMBED_RETURN_IF_ERROR(Make(size));
    device_.Fill(context_, data_, 0xff, size_ * sizeof(T));
    return Status();
  }

  T* data() const { return data_; }

 private:
  const Device& device_;
  const ExecContext& context_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

template <class Device>
class DeviceContent {
  using Slabs = DeviceSlabs<Device>;

 public:
  using Added = typename Slabs::Added;

  // Never tries to allocate more bytes than the options allow.
  DeviceContent(const Device& device, const DeviceOptions& options, const RowLayout& layout,
                RowInitializer initializer)
      : initializer(std::move(initializer)),
        row_bound(device),
        device_(device),
        options_(options),
        layout_(layout),
        weight_bytes_(layout.weight_bytes),
        slabs_(device_, options_) {}
  DeviceContent(const DeviceContent&) = delete;
  DeviceContent& operator=(const DeviceContent&) = delete;
  ~DeviceContent() {
    const ExecContext context = ExecContext::Serial();
    device_.Wait();  // the stream that used it last may be gone
    FreeRows(context);
    FreeAll(context, counts_, sizeof(StoreCounts));
    FreeAll(context, initial_row_, weight_bytes_);
    FreeAll(context, initial_slots_, layout_.slot_bytes);
  }

  // Called first. Returns false if there is no memory. `initial_row` [dim] is on the host.
  bool Begin(const ExecContext& context, const void* initial_row) {
    counts_ = static_cast<StoreCounts*>(Take(context, sizeof(StoreCounts)));
    initial_row_ = static_cast<char*>(Take(context, weight_bytes_));
    if (counts_ == nullptr || initial_row_ == nullptr) return false;
    device_.Fill(context, counts_, 0, sizeof(StoreCounts));
    SetInitialRow(context, initial_row);
    return true;
  }

  void SetInitialRow(const ExecContext& context, const void* initial_row) {
    device_.CopyIn(context, initial_row, weight_bytes_, initial_row_);
  }
  const char* initial_row() const { return initial_row_; }
  const DeviceRowLayout& layout() const { return layout_; }
  const IndexView& index() const { return index_; }
  uint64_t index_bytes() const { return index_.num_buckets() * sizeof(DeviceBucket); }
  const RowSlabs& slabs() const { return slabs_.view(); }
  uint32_t num_slabs() const { return slabs_.count(); }
  // The bytes of all rows, on the device and on the host, and of the lists of free rows.
  uint64_t row_bytes() const { return slabs_.device_bytes() + host_bytes() + number_bytes_; }
  // The part of row_bytes on the host.
  uint64_t host_bytes() const { return slabs_.host_bytes(); }

  StoreView View(StatisticSet statistics) const {
    StoreView view(layout_);
    view.index = index_;
    view.rows = slabs_.view();
    view.statistics = statistics;
    view.counts = counts_;
    view.initial_slots = initial_slots_;
    return view;
  }

  // See RowCountBound::RequestUpdate.
  void RequestRowCount(const ExecContext& context) {
    row_bound.RequestUpdate(device_, context, counts_);
  }

  // Reads the number of rows from the device. A failed read leaves `*rows` unchanged, so that no
  // store seems to be empty.
  Status Rows(const ExecContext& context, uint64_t* rows) const {
    StoreCounts counts;
    device_.CopyOut(context, counts_, sizeof(counts), &counts);
    TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
    *rows = counts.rows();
    return Status();
  }

  // The number of rows that have both memory and places in an index that is not too full.
  uint64_t room() const {
    const uint64_t places = index_.num_places() / kFullOf * kFull;
    return std::min(places, slabs_.rows());
  }

  // Whether the bound on bytes allows no more room.
  bool full() const { return full_; }
  // Whether the options bound the bytes on the device.
  bool has_bound() const {
    return options_.max_bytes != UINT64_MAX || options_.max_row_bytes != UINT64_MAX;
  }

  // Makes room for `rows` rows, or for as many as the bound on bytes allows. Returns false if the
  // device has no memory.
  bool MakeRoom(const ExecContext& context, uint64_t rows) {
    uint32_t bits = std::max(index_.bits, kMinBits);
    while ((uint64_t{DeviceBucket::kLanes} << bits) / kFullOf * kFull < rows) ++bits;
    // Takes a smaller index if the bound requires it.
    const auto fits = [&] { return Fits(sizeof(DeviceBucket) << bits); };
    while (bits > kMinBits && bits > index_.bits && !fits()) --bits;
    if ((index_.buckets == nullptr || bits > index_.bits) && fits()) {
      // The old index counts for the bound until it is freed, so growth may be refused although the
      // new index would fit without the old index.
      if (!Reindex(context, bits)) return false;
    }
    while (slabs_.rows() < rows && slabs_.count() < RowSlabs::kMax) {
      const size_t numbers = NumberBytes(slabs_.count());
      if (!Fits(numbers)) break;
      auto* const freed = static_cast<uint32_t*>(Take(context, numbers));
      if (freed == nullptr) return false;
      const typename Slabs::Beside beside{index_bytes() + number_bytes_ + numbers, 0};
      const Added added = slabs_.Add(context, layout_.stride, beside, freed);
      if (added != Added::kYes) FreeAll(context, freed, numbers);
      if (added == Added::kNoMemory) return false;
      if (added == Added::kOutOfBounds) break;
      number_bytes_ += numbers;
    }
    // Remembered, so that writes to a full store neither wait for the device nor try again.
    full_ = room() < rows;
    return true;
  }

  // Gives rows the slots of another rule, `slots` on the host. Changes nothing unless it returns
  // kYes.
  Added ChangeLayout(const ExecContext& context, const RowLayout& layout, const void* slots) {
    const DeviceRowLayout changed(layout);
    char* const initial = static_cast<char*>(Take(context, changed.slot_bytes));
    if (initial == nullptr && changed.slot_bytes > 0) return Added::kNoMemory;
    // Without rows there is nothing to copy, and the bounds need not hold two layouts.
    uint64_t rows = row_bound.most();
    if (rows == 0) {
      ChangeEmptyLayout(context, changed, slots, initial);
      return Added::kYes;
    }
    // Old and new slabs exist together for a while. `max_row_bytes`, which decides where rows are,
    // applies to each separately.
    Slabs slabs(device_, options_);
    const typename Slabs::Beside beside{index_bytes() + number_bytes_ + slabs_.device_bytes(),
                                        slabs_.host_bytes()};
    while (slabs.count() < slabs_.count()) {
      // The lists of free rows move to the new slabs, because row numbers do not change.
      uint32_t* const freed = slabs_.view().freed[slabs.count()];
      const Added added = slabs.Add(context, changed.stride, beside, freed);
      if (added == Added::kYes) continue;
      slabs.Free(context, changed.stride);
      // Rows may have left without the host's knowledge. Asks only here, because it waits.
      if (Rows(context, &rows).ok() && rows == 0) {
        ChangeEmptyLayout(context, changed, slots, initial);
        return Added::kYes;
      }
      FreeAll(context, initial, changed.slot_bytes);
      return added;
    }
    device_.CopyIn(context, slots, changed.slot_bytes, initial);
    const StoreView from = View(StatisticSet());
    StoreView to(changed);
    to.rows = slabs.view();
    to.initial_slots = initial;
    device_.Launch(context, index_.num_places(), kRowCost, ChangeLayoutKernel{from, to});
    slabs_.Swap(&slabs);
    slabs.Free(context, layout_.stride);
    SetLayout(context, changed, initial);
    full_ = false;
    return Added::kYes;
  }

  // Sets the initial slots, for a rule with the same slots.
  void SetInitialSlots(const ExecContext& context, const void* slots) {
    device_.CopyIn(context, slots, layout_.slot_bytes, initial_slots_);
  }

  // Copies all rows into this empty content of the same layout, with room for them.
  void CopyFrom(const ExecContext& context, const DeviceContent& other, StatisticSet statistics) {
    device_.Launch(context, other.index_.num_places(), kRowCost,
                   CopyStoreKernel{other.View(statistics), View(statistics)});
    row_bound.Set(other.row_bound.most());
  }

  // Removes all rows and frees their memory.
  void Clear(const ExecContext& context) {
    FreeRows(context);
    device_.Fill(context, counts_, 0, sizeof(StoreCounts));
    row_bound.Set(0);
  }

  RuleSlots rule;
  RowInitializer initializer;
  RowCountBound<Device> row_bound;

 private:
  // An index is at most three quarters full.
  static constexpr uint64_t kFull = 3;
  static constexpr uint64_t kFullOf = 4;
  static constexpr uint32_t kMinBits = 4;
  static constexpr size_t kRowCost = 100;  // ns
  static constexpr size_t kPlaceCost = 5;

  static size_t NumberBytes(uint32_t slab) { return RowSlabs::RowsOf(slab) * sizeof(uint32_t); }

  // Whether the bound allows this many more bytes on the device.
  bool Fits(uint64_t bytes) const {
    return index_bytes() + number_bytes_ + slabs_.device_bytes() + bytes <= options_.max_bytes;
  }

  void* Take(const ExecContext& context, size_t bytes) const {
    return bytes == 0 ? nullptr : device_.AllocateLasting(context, bytes);
  }
  void FreeAll(const ExecContext& context, void* memory, size_t bytes) const {
    if (memory != nullptr) device_.FreeLasting(context, memory, bytes);
  }
  void SetLayout(const ExecContext& context, const DeviceRowLayout& layout, char* initial_slots) {
    FreeAll(context, initial_slots_, layout_.slot_bytes);
    initial_slots_ = initial_slots;
    layout_ = layout;
  }
  // ChangeLayout for a content without rows. Makes the same room for new rows, if memory and bounds
  // allow it.
  void ChangeEmptyLayout(const ExecContext& context, const DeviceRowLayout& layout,
                         const void* slots, char* initial_slots) {
    const uint64_t rows = room();
    Clear(context);
    SetLayout(context, layout, initial_slots);
    SetInitialSlots(context, slots);
    // If this fails, the store grows later, as after a Clear.
    if (rows > 0) (void)MakeRoom(context, rows);
  }
  void FreeRows(const ExecContext& context) {
    for (uint32_t i = 0; i < slabs_.count(); ++i) {
      FreeAll(context, slabs_.view().freed[i], NumberBytes(i));
    }
    slabs_.Free(context, layout_.stride);
    FreeAll(context, index_.buckets, index_bytes());
    number_bytes_ = 0;
    full_ = false;
    index_ = IndexView();
  }

  bool Reindex(const ExecContext& context, uint32_t bits) {
    const size_t bytes = sizeof(DeviceBucket) << bits;
    auto* const buckets = static_cast<DeviceBucket*>(Take(context, bytes));
    if (buckets == nullptr) return false;
    device_.Fill(context, buckets, 0, bytes);
    IndexView larger;
    larger.buckets = buckets;
    larger.bits = bits;
    device_.Launch(context, index_.num_places(), kPlaceCost, ReindexKernel{index_, larger});
    FreeAll(context, index_.buckets, index_bytes());
    index_ = larger;
    return true;
  }

  const Device device_;
  const DeviceOptions options_;
  DeviceRowLayout layout_;
  const size_t weight_bytes_;
  IndexView index_;
  Slabs slabs_;
  uint64_t number_bytes_ = 0;
  bool full_ = false;
  StoreCounts* counts_ = nullptr;
  char* initial_row_ = nullptr;
  char* initial_slots_ = nullptr;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_CONTENT_H_
