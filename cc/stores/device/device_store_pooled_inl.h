// SPDX-License-Identifier: Apache-2.0
// The part of a DeviceStore that works on bags: pooled finds in many stores at once, and steps with
// the gradients of pooled rows. Included by device_store_inl.h.
//
// A find in many stores holds the locks of all of them (HeldStores).
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_POOLED_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_POOLED_INL_H_

#include <algorithm>
#include <string>

#include "cc/stores/device/device_split_inl.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/launch_queue.h"
#include "cc/stores/device/pooled_kernels.h"
#include "cc/stores/device/staging_buffer.h"

namespace tf_embed {

// The scope of a verb that reads many stores.
template <class Device>
class DeviceStoreImpl<Device>::ReadingMany {
 public:
  // REQUIRES: the caller holds the content of `stores`, which outlive this object.
  ReadingMany(const HeldStores& stores, const ExecContext& context) : stores_(stores) {
    for (size_t i = 0; i < stores_.size(); ++i) {
      // HeldStores took the content locks in the order of store numbers, and lists the stores in
      // that order, so these locks follow it too.
      if (Store(i)->options_.is_cache) Store(i)->gate_.lock_shared();
      Store(i)->order_.BeginRead(context);
    }
  }
  ReadingMany(const ReadingMany&) = delete;
  ReadingMany& operator=(const ReadingMany&) = delete;
  ~ReadingMany() {
    for (size_t i = stores_.size(); i-- > 0;) {
      if (Store(i)->options_.is_cache) Store(i)->gate_.unlock_shared();
    }
  }

 private:
  const DeviceStoreImpl* Store(size_t i) const {
    return static_cast<const DeviceStoreImpl*>(stores_[i]);
  }

  const HeldStores& stores_;
};

template <class Device>
PoolView DeviceStoreImpl<Device>::ViewOf(const ExecContext& context, const PooledFind& find,
                                         const BagsView& bags) const {
  PoolView view(bags, ShardView(View(), ViewOf(find.defaults)));
  view.num_shards = find.keys.num_shards;
  view.unsigned_keys = find.keys.unsigned_keys;
  view.type = options_.value_type;
  view.dim = options_.dim;
  view.tallies = tallies_;
  view.uses = NotesUses(context);
  view.marks = context.training && options_.is_cache;
  // Each store has its own clock.
  const ExecContext dated = find.Dated(context);
  view.now = dated.now;
  if (context.training) view.expiry = ExpiryAt(dated);
  view.pooled = find.pooled;
  view.pooled_stride = find.stride;
  view.found = find.found;
  view.quantized = find.quantized;
  return view;
}

template <class Device>
Status DeviceStoreImpl<Device>::FindPooled(const ExecContext& context, const PooledFind* finds,
                                           size_t count) const {
  const auto shard_of = [](const PooledFind& find, size_t number) {
    return static_cast<const DeviceStoreImpl*>(find.keys.shards[number]);
  };
  size_t num_shards = 0;
  for (size_t i = 0; i < count; ++i) {
    TF_EMBED_RETURN_IF_ERROR(CheckPooledFind(finds[i]));
    const ShardedKeys& keys = finds[i].keys;
    TF_EMBED_RETURN_IF_ERROR(CheckOwnersOn(device_, context, keys.keys, finds[i].bags->num_keys(),
                                           keys.owners, keys.num_shards));
    num_shards += keys.num_shards;
  }
  if (count == 0) return Status();
  Buffer<const Store*> stores(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(stores.Resize(num_shards));
  const Store** end = stores.data();
  for (size_t i = 0; i < count; ++i) {
    end = std::copy_n(finds[i].keys.shards, finds[i].keys.num_shards, end);
  }
  HeldStores held(options_.allocator);
  const bool uses = std::any_of(finds, finds + count, [&](const PooledFind& find) {
    return shard_of(find, 0)->NotesUses(context);
  });
  TF_EMBED_RETURN_IF_ERROR(
      held.Take(stores.data(), num_shards, uses ? Held::kUsing : Held::kContent));
  const typename Device::Current current(device_);
  const ReadingMany reading(held, context);
  for (size_t i = 0; uses && i < count; ++i) {
    const ShardedKeys& keys = finds[i].keys;
    for (size_t k = 0; k < keys.num_shards; ++k) {
      const DeviceStoreImpl* const store = shard_of(finds[i], k);
      if (!store->NotesUses(context)) continue;
      // With all keys of the batch: a shard does not find those of others.
      TF_EMBED_RETURN_IF_ERROR(store->GiveBefore(context, keys.keys, finds[i].bags->num_keys()));
    }
  }

  // A launch carries the descriptions of tables and bags. Arrays of the host go in one copy before.
  size_t words = 0;
  for (size_t i = 0; i < count; ++i) {
    const ShardedKeys& keys = finds[i].keys;
    words += Staging::For(*finds[i].bags);
    if (keys.owners != nullptr) words += Staging::For(finds[i].bags->num_keys() * sizeof(int32_t));
    if (keys.num_shards > 1) words += Staging::For(keys.num_shards * sizeof(ShardView));
  }
  Staging copied(device_, context, options_.allocator);
  Buffer<PoolView> views(options_.allocator);
  Buffer<ShardView> shards(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(copied.Make(words));
  TF_EMBED_RETURN_IF_ERROR(views.Resize(count));
  for (size_t i = 0; i < count; ++i) {
    const DeviceStoreImpl* const first = shard_of(finds[i], 0);
    const ShardedKeys& keys = finds[i].keys;
    const Bags& bags = *finds[i].bags;
    PoolView view = first->ViewOf(context, finds[i], copied.Put(bags, finds[i].pooling, keys.keys));
    if (keys.owners != nullptr) view.owners = copied.Put(keys.owners, bags.num_keys());
    if (keys.num_shards > 1) {
      TF_EMBED_RETURN_IF_ERROR(shards.Resize(keys.num_shards));
      for (size_t k = 0; k < keys.num_shards; ++k) {
        const DeviceStoreImpl* const store = shard_of(finds[i], k);
        shards[k] = ShardView(store->View(), store->ViewOf(finds[i].defaults));
      }
      view.shards = copied.Put(shards.data(), keys.num_shards);
    }
    views[i] = view;
    first->keys_looked_up_.fetch_add(bags.num_keys(), std::memory_order_relaxed);
  }
  copied.Copy();
  LaunchTogether</*kBlocks=*/false, PoolKernel>(device_, context, count, [&](size_t i) {
    const Bags& bags = *finds[i].bags;
    const size_t length = bags.size() == 0 ? 0 : bags.num_keys() / bags.size() + 1;
    const size_t row = shard_of(finds[i], 0)->content_->layout().weight_bytes;
    return OneLaunch<PoolKernel>{{views[i]}, bags.size(), length * (kFindCost + row / 8)};
  });
  return device_.Check(context);
}

template <class Device>
Status DeviceStoreImpl<Device>::ApplyBags(const ExecContext& context, const float* gradients,
                                          const BagGradients* batches, size_t count,
                                          Combiner combiner, const Rule& rule) {
  if (options_.value_type == DataType::kDouble || combiner == Combiner::kMean ||
      combiner == Combiner::kSqrtn) {
    return Status::InvalidArgument("Table '" + options_.name +
                                   "' can't be trained by bags: they are pooled in float, by the "
                                   "sum or by the mean of a number of keys.");
  }
  size_t num_keys = 0;
  bool has_factors = Divides(combiner);
  for (size_t i = 0; i < count; ++i) {
    num_keys += batches[i].num_keys;
    has_factors = has_factors || batches[i].weights != nullptr;
  }
  TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(num_keys));
  const typename Device::Current current(device_);
  Array<int64_t> keys(device_, context);
  Array<size_t> begins(device_, context);
  Array<float> factors(device_, context);
  // The keys of a single batch are used in place. Zeros, because malformed splits may leave places
  // unwritten.
  if (count != 1) TF_EMBED_RETURN_IF_ERROR(keys.MakeZeros(num_keys));
  TF_EMBED_RETURN_IF_ERROR(begins.MakeZeros(num_keys));
  if (has_factors) TF_EMBED_RETURN_IF_ERROR(factors.MakeZeros(num_keys));
  size_t first_key = 0;
  LaunchTogether</*kBlocks=*/false, SpreadGradientsKernel>(device_, context, count, [&](size_t i) {
    const BagGradients& of = batches[i];
    const SpreadGradientsKernel kernel{
        of,          first_key,     combiner == Combiner::kMeanOfCount,
        keys.data(), begins.data(), factors.data()};
    first_key += of.num_keys;
    const size_t length = of.num_bags == 0 ? 0 : of.num_keys / of.num_bags + 1;
    return OneLaunch<SpreadGradientsKernel>{kernel, of.num_bags, kPlaceCost * length};
  });
  KeyBatch batch;
  batch.keys = count == 1 ? batches[0].keys : keys.data();
  batch.size = num_keys;
  return Apply(context, batch,
               Gradients{gradients, DataType::kFloat, begins.data(), factors.data()}, rule);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_STORE_POOLED_INL_H_
