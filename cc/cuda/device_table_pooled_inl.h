// The part of a DeviceTable that works on bags: pooled finds in many tables at once, and steps by
// the gradients of pooled rows. Included by device_table_inl.h.
//
// A find in many tables holds the gates of all of them, each once and in the order of their
// addresses, so that none waits for another that waits for it.
#ifndef TF_EMBED_CC_CUDA_DEVICE_TABLE_POOLED_INL_H_
#define TF_EMBED_CC_CUDA_DEVICE_TABLE_POOLED_INL_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "cc/cuda/device_table_inl.h"
#include "cc/cuda/pooled_kernels.h"

namespace tf_embed {

// What one find copies to the device beside its views, in words, on the host; they are laid out
// one behind the other, and the place of each in device memory is known before.
template <class Device>
class DeviceTable<Device>::Words {
 public:
  Words(const Device& device, const ExecContext& context, Allocator* host)
      : device_(device), context_(context), own_(host), array_(device, context) {}

  static size_t For(size_t bytes) { return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t); }

  Status Make(size_t words) {
    TF_EMBED_RETURN_IF_ERROR(own_.Resize(words));
    return array_.Make(words);
  }
  // Puts `count` values behind the others; where they will be in device memory.
  template <typename T>
  const T* Put(const T* values, size_t count) {
    const T* const there = Next<T>();
    if (count > 0) std::memcpy(own_.data() + used_, values, count * sizeof(T));
    used_ += For(count * sizeof(T));
    return there;
  }
  template <typename T>
  const T* Next() const {
    return reinterpret_cast<const T*>(array_.data() + used_);
  }
  void Copy() { device_.CopyIn(context_, own_.data(), used_ * sizeof(uint64_t), array_.data()); }

 private:
  const Device& device_;
  const ExecContext& context_;
  Buffer<uint64_t> own_;
  DeviceArray<Device, uint64_t> array_;
  size_t used_ = 0;
};

// A verb that reads many tables, under way.
template <class Device>
class DeviceTable<Device>::ReadingMany {
 public:
  // `tables` [count] outlives it.
  ReadingMany(const DeviceTable* const* tables, size_t count, const ExecContext& context)
      : tables_(tables), count_(count), context_(context) {
    for (size_t i = 0; i < count_; ++i) {
      tables_[i]->content_gate_.lock_shared();
      tables_[i]->order_.BeginRead(context_);
    }
  }
  ReadingMany(const ReadingMany&) = delete;
  ReadingMany& operator=(const ReadingMany&) = delete;
  ~ReadingMany() {
    for (size_t i = 0; i < count_; ++i) {
      tables_[i]->order_.EndRead(context_);
      tables_[i]->content_gate_.unlock_shared();
    }
  }

 private:
  const DeviceTable* const* tables_;
  const size_t count_;
  const ExecContext& context_;
};

template <class Device>
PoolView DeviceTable<Device>::ViewOf(const ExecContext& context, const PooledFind& find) const {
  PoolView view(View(), ViewOf(find.defaults));
  view.uses = context.training && content_->layout().statistics > 0;
  if (context.training) view.expiry = ExpiryAt(context);
  view.length = find.bags->length();
  view.keys = find.keys.keys;
  view.weights = find.pooling.weights;
  view.pooled = find.pooled;
  view.pooled_stride = find.stride;
  view.combiner = find.pooling.combiner;
  view.has_padding = find.pooling.padding != nullptr;
  if (view.has_padding) view.padding = *find.pooling.padding;
  view.quantized = find.quantized;
  return view;
}

template <class Device>
Status DeviceTable<Device>::FindPooled(const ExecContext& context, const PooledFind* finds,
                                       size_t count) const {
  const auto table_of = [finds](size_t i) {
    return static_cast<const DeviceTable*>(finds[i].keys.shards[0]);
  };
  if (count == 0) return Status();
  Buffer<const DeviceTable*> tables(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(tables.Resize(count));
  for (size_t i = 0; i < count; ++i) {
    TF_EMBED_RETURN_IF_ERROR(CheckPooledFind(finds[i]));
    if (finds[i].keys.num_shards != 1 || finds[i].keys.owners != nullptr) {
      return Status::InvalidArgument("A pooled find on a device is in tables of one shard.");
    }
    tables[i] = table_of(i);
  }
  const DeviceTable** const end = tables.data() + count;
  std::sort(tables.data(), end, std::less<const DeviceTable*>());
  const size_t num_tables = static_cast<size_t>(std::unique(tables.data(), end) - tables.data());
  const ReadingMany reading(tables.data(), num_tables, context);

  size_t words = count * Words::For(sizeof(PoolView));
  for (size_t i = 0; i < count; ++i) {
    const Bags& bags = *finds[i].bags;
    words += table_of(i)->content_->num_slabs();
    if (bags.splits() != nullptr) words += bags.size() + 1;
    if (bags.order() != nullptr) words += Words::For(bags.num_keys() * sizeof(uint32_t));
  }
  Words copied(device_, context, options_.allocator);
  Buffer<char> views(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(copied.Make(words));
  TF_EMBED_RETURN_IF_ERROR(views.Resize(count * sizeof(PoolView)));
  size_t num_bags = 0;
  size_t cost = 0;  // of the dearest bag, roughly
  for (size_t i = 0; i < count; ++i) {
    const DeviceTable* const table = table_of(i);
    const Bags& bags = *finds[i].bags;
    PoolView view = table->ViewOf(context, finds[i]);
    view.slabs = copied.Put(table->content_->slabs().slabs, table->content_->num_slabs());
    if (bags.splits() != nullptr) view.splits = copied.Put(bags.splits(), bags.size() + 1);
    if (bags.order() != nullptr) view.order = copied.Put(bags.order(), bags.num_keys());
    view.first_bag = num_bags;
    std::memcpy(views.data() + i * sizeof(view), &view, sizeof(view));
    num_bags += bags.size();
    const size_t length = bags.size() == 0 ? 0 : bags.num_keys() / bags.size() + 1;
    cost = std::max(cost, length * (kFindCost + table->content_->layout().weight_bytes / 8));
    table->keys_looked_up_.fetch_add(bags.num_keys(), std::memory_order_relaxed);
  }
  const PoolView* const there = copied.template Next<PoolView>();
  copied.Put(views.data(), count * sizeof(PoolView));
  copied.Copy();
  device_.Launch(context, num_bags, cost, PoolKernel{there, count, context.now});
  return device_.Check(context);
}

template <class Device>
Status DeviceTable<Device>::ApplyBags(const ExecContext& context, const float* gradients,
                                      const BagGradients* batches, size_t count, Combiner combiner,
                                      const Rule& rule) {
  if (options_.value_type == DataType::kDouble || combiner == Combiner::kMean ||
      combiner == Combiner::kSqrtn) {
    return Status::InvalidArgument("Table '" + options_.name +
                                   "' can't be trained by bags: they are pooled in float, by the "
                                   "sum or by the mean of a number of keys.");
  }
  size_t num_keys = 0;
  size_t num_bags = 0;
  bool has_factors = combiner != Combiner::kSum;
  for (size_t i = 0; i < count; ++i) {
    num_keys += batches[i].num_keys;
    num_bags += batches[i].num_bags;
    has_factors = has_factors || batches[i].weights != nullptr;
  }
  TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(num_keys));
  Buffer<char> views(options_.allocator);
  Words copied(device_, context, options_.allocator);
  Array<int64_t> keys(device_, context);
  Array<size_t> begins(device_, context);
  Array<float> factors(device_, context);
  if (count != 1) TF_EMBED_RETURN_IF_ERROR(keys.MakeZeros(num_keys));
  TF_EMBED_RETURN_IF_ERROR(begins.MakeZeros(num_keys));
  if (has_factors) TF_EMBED_RETURN_IF_ERROR(factors.MakeZeros(num_keys));
  if (num_bags > 0) {
    TF_EMBED_RETURN_IF_ERROR(views.Resize(count * sizeof(BagGradientsView)));
    TF_EMBED_RETURN_IF_ERROR(copied.Make(count * Words::For(sizeof(BagGradientsView))));
    BagGradientsView view{{}, 0, 0};
    for (size_t i = 0; i < count; ++i) {
      view.of = batches[i];
      std::memcpy(views.data() + i * sizeof(view), &view, sizeof(view));
      view.first_bag += batches[i].num_bags;
      view.first_key += batches[i].num_keys;
    }
    const auto* const there = copied.template Next<BagGradientsView>();
    copied.Put(views.data(), count * sizeof(BagGradientsView));
    copied.Copy();
    device_.Launch(context, num_bags, kPlaceCost * (num_keys / num_bags + 1),
                   SpreadGradientsKernel{there, count, combiner == Combiner::kMeanOfCount,
                                         keys.data(), begins.data(), factors.data()});
  }
  KeyBatch batch;
  batch.keys = count == 1 ? batches[0].keys : keys.data();
  batch.size = num_keys;
  return Apply(context, batch,
               Gradients{gradients, DataType::kFloat, begins.data(), factors.data()}, rule);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CUDA_DEVICE_TABLE_POOLED_INL_H_
