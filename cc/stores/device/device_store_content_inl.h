// SPDX-License-Identifier: Apache-2.0
// The verbs of DeviceStore on its whole content. The end of device_store_inl.h includes it.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_CONTENT_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_CONTENT_INL_H_

#include <cstring>
#include <string>

#include "cc/stores/device/device_store_inl.h"

namespace tf_embed {

template <class Device>
DeviceStoreImpl<Device>::~DeviceStoreImpl() {
  const ExecContext context = ExecContext::Serial();
  device_.Wait();  // the streams of its verbs may be gone
  content_.reset();
  if (scratch_ != nullptr) device_.FreeLasting(context, scratch_, sizeof(CacheScratch));
  if (tallies_ != nullptr) device_.FreeLasting(context, tallies_, sizeof(StoreTallies));
}

template <class Device>
Status DeviceStoreImpl<Device>::Erase(const ExecContext& context, const KeyBatch& batch) {
  const typename Device::Current current(device_);
  DeviceGroups<Device> groups(device_, context);
  // Groups the keys, because erasing a key twice in a launch would count its buckets down twice.
  TF_EMBED_RETURN_IF_ERROR(groups.Build(batch, DeviceGroups<Device>::Members::kFirst));
  const Writing writing(this, context);
  Array<uint64_t> places(device_, context);
  TF_EMBED_RETURN_IF_ERROR(places.MakeOnes(batch.size));  // kNoPlace
  device_.Launch(context, batch.size, kFindCost,
                 PlaceKernel{content_->index(), groups.view(), places.data()});
  if (changes_ != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(PlannerOf(context).Tell(places.data(), batch.size, nullptr));
  }
  LaunchLanes(device_, context, batch.size, kPlaceCost,
              EraseKernel{View(), places.data(), batch.size});
  return Launched(context, batch.size);
}

template <class Device>
void DeviceStoreImpl<Device>::FillInitialRow(const RowInitializer& initializer) const {
  if (initializer.is_random()) {
    // Rows are computed from the key then. This row is not read, but it is copied to the device.
    std::memset(initial_row_.data(), 0, initial_row_.size());
    return;
  }
  DispatchDataType(options_.value_type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    InitializeWeights(initializer, 0, options_.dim, reinterpret_cast<T*>(initial_row_.data()));
  });
}

template <class Device>
DefaultsView DeviceStoreImpl<Device>::ViewOf(const DefaultRows& defaults) const {
  const RowInitializer& initializer = content_->initializer;
  DefaultsView view;
  view.kind = defaults.kind;
  view.rows = static_cast<const char*>(defaults.rows);
  view.type = options_.value_type;
  view.dim = options_.dim;
  view.bytes = content_->layout().weight_bytes;
  view.initializer = initializer.kind;
  view.a = initializer.a;
  view.b = initializer.b;
  view.seed = initializer.seed;
  view.table_id = initializer.table_id;
  view.row = content_->initial_row();
  return view;
}

template <class Device>
Status DeviceStoreImpl<Device>::InitialSlots(const RuleSlots& rule, Buffer<char>* slots) const {
  TF_EMBED_RETURN_IF_ERROR(slots->Resize(LayoutOf(rule).slot_bytes));
  if (options_.value_type == DataType::kDouble) {
    FillInitialSlots(rule, reinterpret_cast<double*>(slots->data()));
  } else {
    FillInitialSlots(rule, reinterpret_cast<float*>(slots->data()));
  }
  return Status();
}

template <class Device>
RowInitializer DeviceStoreImpl<Device>::initializer() const {
  Shared lock(inside());
  return content_->initializer;
}

template <class Device>
RuleSlots DeviceStoreImpl<Device>::rule() const {
  Shared lock(inside());
  return content_->rule;
}

template <class Device>
size_t DeviceStoreImpl<Device>::size() const {
  const ExecContext context = ExecContext::Serial();
  const Reading reading(this, context);
  return RowsOrEarlier(context);
}

template <class Device>
uint64_t DeviceStoreImpl<Device>::RowsOrEarlier(const ExecContext& context) const {
  uint64_t rows = last_rows_.load(std::memory_order_relaxed);
  if (content_->Rows(context, &rows).ok()) last_rows_.store(rows, std::memory_order_relaxed);
  return rows;
}

template <class Device>
Status DeviceStoreImpl<Device>::NoMemory(const ExecContext& context) const {
  uint64_t rows = 0;
  // Reports an earlier failure of another kind, which is not a lack of memory.
  TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &rows));
  return NoMemoryForRow(options_.name, rows);
}

template <class Device>
Status DeviceStoreImpl<Device>::Count(size_t* count) const {
  const ExecContext context = ExecContext::Serial();
  const Reading reading(this, context);
  uint64_t rows = 0;
  TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &rows));
  last_rows_.store(rows, std::memory_order_relaxed);
  *count = rows;
  return Status();
}

template <class Device>
void DeviceStoreImpl<Device>::SetInitializer(const RowInitializer& initializer) {
  // As on the host, this takes only the content lock, because the caller may be pausing writers.
  const ExecContext context = ExecContext::Serial().Holding(Held::kPaused);
  const Writing writing(this, context);
  content_->initializer = initializer;
  FillInitialRow(initializer);
  content_->SetInitialRow(context, initial_row_.data());
}

template <class Device>
Status DeviceStoreImpl<Device>::NewContent(const ExecContext& context,
                                           std::unique_ptr<Content>* content) const {
  Buffer<char> slots(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(InitialSlots(content_->rule, &slots));
  bool made = false;
  try {
    content->reset(
        new Content(device_, device_options_, LayoutOf(RuleSlots()), content_->initializer));
    Buffer<char> row(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(row.Resize(content_->layout().weight_bytes));
    device_.CopyOut(context, content_->initial_row(), content_->layout().weight_bytes, row.data());
    made = (*content)->Begin(context, row.data()) &&
           (*content)->ChangeLayout(context, LayoutOf(content_->rule), slots.data()) ==
               Content::Added::kYes;
    (*content)->rule = content_->rule;
  } catch (const std::bad_alloc&) {  // `made` is false
  }
  return made ? Status() : NoMemory(context);
}

template <class Device>
bool DeviceStoreImpl<Device>::HasRoom(const ExecContext& context, size_t keys, bool* all) {
  const uint64_t bound = Bound(context);
  RowCountBound<Device>& row_bound = content_->row_bound;
  uint64_t most = 0;
  const auto is_room = [&] {
    *all = row_bound.most() + keys <= std::min(bound, content_->room());
    most = std::max(row_bound.most(), std::min<uint64_t>(row_bound.most() + keys, bound));
    return most <= content_->room() || content_->full();
  };
  if (!is_room() && !(row_bound.Poll() && is_room())) return false;
  // The kernel inserts no more rows than there is room for, so the room is a bound too.
  row_bound.Reserve(keys, std::min(most, content_->room()));
  return true;
}

template <class Device>
Status DeviceStoreImpl<Device>::MakeRoom(const ExecContext& context, size_t keys,
                                         const uint32_t* wanted, bool* all) {
  const uint64_t bound = Bound(context);
  RowCountBound<Device>& row_bound = content_->row_bound;
  uint32_t coming = 0;
  device_.CopyOut(context, wanted, sizeof(coming), &coming);
  uint64_t present = 0;
  TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &present));  // otherwise `coming` is garbage too
  // A restored store may have more rows than its bound already.
  const uint64_t rows = std::max(present, std::min(present + coming, bound));
  if (rows > content_->room()) {
    fruitless_waits_ = 0;
    if (!content_->MakeRoom(context, rows)) return NoMemory(context);
  } else if (!options_.is_cache && !content_->has_bound() && ++fruitless_waits_ == kPatience) {
    // Grow ahead. Otherwise writes whose keys nearly all exist would keep waiting. This is
    // optional, so a failure is ignored. Under a byte limit it is skipped: a larger index could
    // crowd out rows.
    fruitless_waits_ = 0;
    const uint64_t ahead = std::min(kAhead * keys, std::max<uint64_t>(rows / 16, kSmallAhead));
    (void)content_->MakeRoom(context, std::min(rows + ahead, bound));  // may fail, see above
  }
  row_bound.Reserve(keys, std::min(rows, content_->room()));
  *all = present + coming <= std::min(bound, content_->room());
  return Status();
}

template <class Device>
Status DeviceStoreImpl<Device>::Clear(const ExecContext& context) {
  const Writing writing(this, context);
  if (changes_ != nullptr) changes_->Forget("was cleared");
  content_->Clear(context);
  // A caller that clears a store may be out of memory; then the store grows later.
  if (options_.init_size > 0) (void)content_->MakeRoom(context, options_.init_size);
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::Shrink(const ExecContext& context) {
  std::unique_ptr<Content> content;
  // Writers stay out until the swap, so the copy is complete then.
  const PauseLocks pausing(locks_, context);
  {
    // Readers may continue: the source of the copy does not change.
    const Reading reading(this, context);
    TF_EMBED_RETURN_IF_ERROR(NewContent(context, &content));
    uint64_t rows = 0;
    TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &rows));
    if (rows > 0) {
      content->row_bound.Set(rows);
      if (!content->MakeRoom(context, rows)) return NoMemory(context);
      if (content->room() < rows) return NoMemory(context);  // at the bound on bytes
      content->CopyFrom(context, *content_, options_.policy.statistics);
      // The exact number, read above. CopyFrom has copied the looser bound.
      content->row_bound.Set(rows);
    }
    TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  }
  // Readers of the old content have queued their launches. On the device, BeginWrite orders the
  // frees after these launches.
  Alone lock(inside());
  order_.BeginWrite(context);
  content_.swap(content);
  content.reset();
  return Status();
}

template <class Device>
Status DeviceStoreImpl<Device>::NoRoomForLayouts(const ExecContext& context) const {
  uint64_t rows = 0;
  TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &rows));
  // The names of DeviceOptions, and the names in Python.
  const auto bound = [](const char* name, uint64_t bytes, const char* in_python) {
    if (bytes == UINT64_MAX) return std::string();
    return std::string(" ") + name + "=" + std::to_string(bytes) + " (Storage." + in_python + ")";
  };
  return Status::ResourceExhausted([&] {
    return "Table '" + options_.name + "' can't change its optimizer within its bounds of bytes:" +
           bound("max_bytes", device_options_.max_bytes, "gpu_total_bytes") +
           bound("max_row_bytes", device_options_.max_row_bytes, "gpu_bytes") +
           bound("max_host_bytes", device_options_.max_host_bytes, "host_bytes") +
           ". The slots of both optimizers need memory at once for its " + std::to_string(rows) +
           " rows, which take " + std::to_string(content_->row_bytes()) +
           " bytes so far. Raise the bound, or change the optimizer while the table has no rows.";
  });
}

template <class Device>
Status DeviceStoreImpl<Device>::ChangeRule(const ExecContext& context, const RuleSlots& rule) {
  if (SameRuleAndInitialValues(content_->rule, rule)) return Status();
  if (rule.has_narrow_slots()) {
    return Status::InvalidArgument("Table '" + options_.name +
                                   "' in the memory of a device has no narrow slots.");
  }
  Buffer<char> slots(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(InitialSlots(rule, &slots));
  // Present rows keep their slots. Only new rows get the new initial values.
  if (SameRule(content_->rule, rule)) {
    content_->SetInitialSlots(context, slots.data());
  } else {
    switch (content_->ChangeLayout(context, LayoutOf(rule), slots.data())) {
      case Content::Added::kYes:
        break;
      case Content::Added::kOutOfBounds:
        return NoRoomForLayouts(context);
      case Content::Added::kNoMemory:
        return NoMemory(context);
    }
    if (changes_ != nullptr) changes_->Forget("got the slots of another optimizer");
  }
  content_->rule = rule;
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::SetRule(const ExecContext& context, const RuleSlots& rule) {
  const Writing writing(this, context);
  return ChangeRule(context, rule);
}

template <class Device>
Status DeviceStoreImpl<Device>::UpdateAllRows(const ExecContext& context, const Rule& rule) {
  if (!AllRowsUpdate(rule).IsDue()) return Status();
  const Writing writing(this, context);
  if (!SameRule(content_->rule, rule.slots)) return RuleWasChanged(options_.name);
  TF_EMBED_RETURN_IF_ERROR(GiveAll(context));
  const RoundingNoise noise(content_->initializer, rule.step, RoundingNoise::Of::kPass);
  return DispatchFloating(options_.value_type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using Compute = typename Number<T>::Compute;
    device_.Launch(context, content_->index().num_places(), kRowCost,
                   PassKernel<T>{View(), RuleConstants<Compute>(rule),
                                 WeightRounding<T>{noise, rule.stochastic_rounding}});
    return device_.Check(context);
  });
}

template <class Device>
Status DeviceStoreImpl<Device>::LargestSlot(const ExecContext& context, const RuleSlots& rule,
                                            size_t slot, double* largest) const {
  const Reading reading(this, context);
  *largest = 0.0;
  if (!SameRule(content_->rule, rule) || slot >= rule.slots_per_row()) return Status();
  Array<uint64_t> found(device_, context);
  TF_EMBED_RETURN_IF_ERROR(found.MakeZeros(1));
  const size_t places = content_->index().num_places();
  if (options_.value_type == DataType::kDouble) {
    device_.Launch(context, places, kPlaceCost,
                   LargestSlotKernel<double>{View(), slot, found.data()});
  } else {
    device_.Launch(context, places, kPlaceCost,
                   LargestSlotKernel<float>{View(), slot, found.data()});
  }
  // The kernel takes the maximum of bit patterns, which for non-negative doubles are in numeric
  // order.
  uint64_t bits;
  device_.CopyOut(context, found.data(), sizeof(bits), &bits);
  std::memcpy(largest, &bits, sizeof(*largest));
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::ExportBatch(size_t max_rows, ExportCursor* cursor,
                                            WholeRows* rows) const {
  const ExecContext context = ExecContext::Serial();
  const Reading reading(this, context);
  return Export(context, WantedRows(), max_rows, cursor, rows);
}

template <class Device>
Status DeviceStoreImpl<Device>::Export(const ExecContext& context, const WantedRows& wanted,
                                       size_t max_rows, ExportCursor* cursor,
                                       WholeRows* rows) const {
  const IndexView& index = content_->index();
  const DeviceRowLayout& layout = content_->layout();
  rows->size = 0;
  uint64_t present = 0;
  // A failure here must not look like the end, or a save without rows would replace a good save.
  TF_EMBED_RETURN_IF_ERROR(content_->Rows(context, &present));
  if (present == 0 || cursor->next >= HashRange::kEnd) {
    cursor->done = true;
    return Status();
  }
  // A range of buckets with about `max_rows` rows; halved if it has more. The cursor counts in
  // units of hashes, not buckets, because the index may grow between two parts. The first bucket
  // may then have keys of an earlier part; the range leaves them out.
  const int unit_bits = 64 - HashRange::kUnitBits - static_cast<int>(index.bits);
  uint64_t first = cursor->next >> unit_bits;
  const double share =
      static_cast<double>(std::min<uint64_t>(max_rows, present)) / static_cast<double>(present);
  const double enough = share * static_cast<double>(index.num_buckets());
  uint64_t buckets = std::min<uint64_t>(std::max<uint64_t>(1, static_cast<uint64_t>(enough)),
                                        index.num_buckets() - first);
  Array<uint64_t> counter(device_, context);
  TF_EMBED_RETURN_IF_ERROR(counter.MakeZeros(1));
  ExportKernel kernel{View(), first, {cursor->next, 0}, wanted, counter.data(), WholeRowsView()};
  const auto count = [&] {
    kernel.range.end = (first + buckets) << unit_bits;
    uint64_t counted = 0;
    device_.CopyIn(context, &counted, sizeof(counted), counter.data());
    device_.Launch(context, buckets, kPlaceCost * DeviceBucket::kLanes, kernel);
    device_.CopyOut(context, counter.data(), sizeof(counted), &counted);
    return static_cast<size_t>(counted);
  };
  size_t size = count();
  for (; size > max_rows && buckets > 1; size = count()) buckets /= 2;
  // An empty part costs the caller an iteration. Ranges double while they are empty, so a nearly
  // empty store takes few launches.
  while (size == 0 && first + buckets < index.num_buckets()) {  // only the last part is empty
    cursor->next = kernel.range.begin = kernel.range.end;
    kernel.first = first += buckets;
    buckets = std::min(2 * buckets, index.num_buckets() - first);
    size = count();
    for (; size > max_rows && buckets > 1; size = count()) buckets /= 2;
  }
  // Count first, then copy: the arrays must have their size before the launch that fills them.
  WholeRowArrays<Device> arrays(device_, context);
  TF_EMBED_RETURN_IF_ERROR(arrays.Make(size, layout, rows));
  if (size > 0) {
    kernel.rows = arrays.view();
    count();
    arrays.CopyOut(size, layout, rows);
  }
  TF_EMBED_RETURN_IF_ERROR(device_.Check(context));
  rows->size = size;
  cursor->next = kernel.range.end;
  cursor->done = cursor->next >= HashRange::kEnd;
  return Status();
}

template <class Device>
StoreStats DeviceStoreImpl<Device>::Stats() const {
  const ExecContext context = ExecContext::Serial();
  const Reading reading(this, context);
  const IndexView& index = content_->index();
  const DeviceRowLayout& layout = content_->layout();
  StoreStats stats;
  stats.rows = RowsOrEarlier(context);
  stats.payload_bytes =
      stats.rows * (layout.weight_bytes + layout.slot_bytes + layout.statistics * sizeof(uint64_t));
  stats.index_bytes = content_->index_bytes();
  stats.slack_bytes = content_->row_bytes() - std::min(content_->row_bytes(), stats.payload_bytes);
  stats.pinned_bytes = content_->host_bytes();
  stats.index_places = index.num_places();
  Array<uint64_t> counters(device_, context);
  if (counters.MakeZeros(2).ok()) {
    device_.Launch(context, std::min(index.num_places(), kSampledPlaces), kPlaceCost,
                   CountProbesKernel{index, counters.data()});
    uint64_t counts[2] = {};
    device_.CopyOut(context, counters.data(), sizeof(counts), counts);
    stats.probed_keys = counts[0];
    stats.probed_buckets = counts[1];
  }
  StoreTallies tallies;
  device_.CopyOut(context, tallies_, sizeof(tallies), &tallies);
  stats.admitted = tallies.admitted;
  stats.refused = tallies.refused;
  stats.held_back = held_back_.load(std::memory_order_relaxed);
  for (const StoreTallies::Counter& misses : tallies.misses) stats.misses += misses.count;
  const uint64_t looked_up = keys_looked_up_.load(std::memory_order_relaxed);
  // Finds may run meanwhile, so the two numbers are not from the same moment. The difference must
  // not wrap around.
  stats.hits = looked_up - std::min(looked_up, stats.misses + tallies.padding);
  stats.evicted = tallies.evicted + evicted_.load(std::memory_order_relaxed);
  stats.expired = tallies.expired + expired_.load(std::memory_order_relaxed);
  return stats;
}

template <class Device>
std::unique_ptr<Store> DeviceStoreImpl<Device>::NewEmpty(size_t init_size,
                                                         const RowInitializer& initializer) const {
  try {
    StoreOptions options = options_;
    options.init_size = init_size;
    options.initializer = initializer;
    // The copy must not evict rows, or log them as evicted. But its rows have the same statistics.
    options.policy = RowPolicy();
    options.policy.statistics = options_.policy.statistics;
    options.changes = nullptr;
    std::unique_ptr<Store> store;
    (void)Create(options, device_options_, device_, &store);  // leaves it null if it fails
    return store;
  } catch (const std::bad_alloc&) {  // null means that memory is short, which the caller reports
    return nullptr;
  }
}

template <class Device>
Status DeviceStoreImpl<Device>::TakeContent(const ExecContext& context, Store* other) {
  auto* const from = static_cast<DeviceStoreImpl*>(other);
  const Writing writing(this, context);
  if (changes_ != nullptr) changes_->Forget("took other rows over");
  // The content keeps its memory but changes its Order, so work queued under the old Order must
  // finish first.
  from->order_.BeginWrite(context);
  content_ = std::move(from->content_);
  return Status();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_CONTENT_INL_H_
