// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/device_tiers.h"

#include <algorithm>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/pooling/pooled_find.h"
#include "cc/core/rows/quantized_row.h"

namespace tf_embed {
namespace {

// An array of a batch, copied to the host.
template <typename T>
class OnHost {
 public:
  explicit OnHost(Allocator* allocator) : values_(allocator) {}

  // Null stays null.
  Status Read(DeviceMemory* memory, const ExecContext& context, const T* device, size_t size) {
    if (device == nullptr) return Status();
    TF_EMBED_RETURN_IF_ERROR(values_.Resize(size));
    TF_EMBED_RETURN_IF_ERROR(memory->CopyOut(context, device, size * sizeof(T), values_.data()));
    device_ = const_cast<T*>(device);
    size_ = size;
    return Status();
  }
  // Copies the array back, changed or not.
  Status WriteBack(DeviceMemory* memory, const ExecContext& context) const {
    if (device_ == nullptr) return Status();
    return memory->CopyIn(context, values_.data(), size_ * sizeof(T), device_);
  }
  T* data() { return device_ == nullptr ? nullptr : values_.data(); }

 private:
  Buffer<T> values_;
  T* device_ = nullptr;
  size_t size_ = 0;
};

// The keys of a batch, with their owners.
class KeysOnHost {
 public:
  explicit KeysOnHost(Allocator* allocator)
      : keys_(allocator), positions_(allocator), scores_(allocator) {}

  Status Read(DeviceMemory* memory, const ExecContext& context, const KeyBatch& batch) {
    TF_EMBED_RETURN_IF_ERROR(keys_.Read(memory, context, batch.keys, batch.size));
    TF_EMBED_RETURN_IF_ERROR(positions_.Read(memory, context, batch.positions, batch.size));
    batch_ = batch;
    batch_.keys = keys_.data();
    batch_.positions = positions_.data();
    TF_EMBED_RETURN_IF_ERROR(scores_.Read(memory, context, batch.scores, places()));
    batch_.scores = scores_.data();
    return Status();
  }
  const KeyBatch& batch() const { return batch_; }
  size_t places() const { return batch_.NumPositions(); }

 private:
  OnHost<int64_t> keys_;
  OnHost<uint32_t> positions_;
  OnHost<int64_t> scores_;
  KeyBatch batch_;
};

// An array of the host, copied to a device for the lifetime of this object.
template <typename T>
class OnDevice {
 public:
  OnDevice(DeviceMemory* memory, const ExecContext& context) : memory_(memory), context_(context) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (values_ != nullptr) memory_->Free(context_, values_, size_ * sizeof(T));
  }

  // Null stays null.
  Status Write(const T* host, size_t size) {
    if (host == nullptr || size == 0) return Status();
    values_ = static_cast<T*>(memory_->Allocate(context_, size * sizeof(T)));
    if (values_ == nullptr) return Status::ResourceExhausted([] { return "No device memory."; });
    size_ = size;
    return memory_->CopyIn(context_, host, size * sizeof(T), values_);
  }
  const T* data() const { return values_; }

 private:
  DeviceMemory* const memory_;
  const ExecContext& context_;
  T* values_ = nullptr;
  size_t size_ = 0;
};

// The keys of several batches of bags, consecutively, and the start of each key's gradient.
class BagsOnHost {
 public:
  explicit BagsOnHost(Allocator* allocator)
      : keys_(allocator),
        splits_(allocator),
        weights_(allocator),
        begins_(allocator),
        factors_(allocator) {}

  Status Read(DeviceMemory* memory, const ExecContext& context, const std::string& store,
              const BagGradients* batches, size_t count, Combiner combiner) {
    size_t most_bags = 0;
    for (size_t i = 0; i < count; ++i) {
      size_ += batches[i].num_keys;
      most_bags = std::max(most_bags, batches[i].num_bags);
      has_factors_ = has_factors_ || batches[i].weights != nullptr;
    }
    has_factors_ = has_factors_ || Divides(combiner);
    TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(size_));
    TF_EMBED_RETURN_IF_ERROR(keys_.Resize(size_));
    TF_EMBED_RETURN_IF_ERROR(begins_.Resize(size_));
    TF_EMBED_RETURN_IF_ERROR(splits_.Resize(most_bags + 1));
    if (has_factors_) {
      TF_EMBED_RETURN_IF_ERROR(weights_.Resize(size_));
      TF_EMBED_RETURN_IF_ERROR(factors_.Resize(size_));
    }
    size_t place = 0;
    for (size_t i = 0; i < count; ++i) {
      const BagGradients& batch = batches[i];
      TF_EMBED_RETURN_IF_ERROR(memory->CopyOut(
          context, batch.keys, batch.num_keys * sizeof(int64_t), keys_.data() + place));
      TF_EMBED_RETURN_IF_ERROR(memory->CopyOut(
          context, batch.splits, (batch.num_bags + 1) * sizeof(int64_t), splits_.data()));
      float* const weights = batch.weights == nullptr ? nullptr : weights_.data() + place;
      if (weights != nullptr) {
        TF_EMBED_RETURN_IF_ERROR(
            memory->CopyOut(context, batch.weights, batch.num_keys * sizeof(float), weights));
      }
      const size_t end = place + batch.num_keys;
      for (size_t bag = 0; bag < batch.num_bags; ++bag) {
        const int64_t length = splits_[bag + 1] - splits_[bag];
        if (length < 0 || static_cast<size_t>(length) > end - place) {
          return Status::InvalidArgument("Bags of table '" + store +
                                         "' must have offsets that rise up to its " +
                                         std::to_string(batch.num_keys) + " keys.");
        }
        const float scale = combiner == Combiner::kSum ? 1.0f : 1.0f / static_cast<float>(length);
        for (int64_t k = 0; k < length; ++k, ++place) {
          begins_[place] = batch.begin + bag * batch.stride;
          if (has_factors_) factors_[place] = weights == nullptr ? scale : scale * weights_[place];
        }
      }
      if (place != end) {
        return Status::InvalidArgument("Bags of table '" + store + "' must have all of its " +
                                       std::to_string(batch.num_keys) + " keys.");
      }
    }
    return Status();
  }
  size_t size() const { return size_; }
  const int64_t* keys() const { return keys_.data(); }
  const size_t* begins() const { return begins_.data(); }
  const float* factors() const { return has_factors_ ? factors_.data() : nullptr; }

 private:
  size_t size_ = 0;
  bool has_factors_ = false;
  Buffer<int64_t> keys_;
  Buffer<int64_t> splits_;  // of one batch
  Buffer<float> weights_;
  Buffer<size_t> begins_;
  Buffer<float> factors_;
};

class DeviceTiers final : public DeviceStore {
 public:
  DeviceTiers(Store* tiers, DeviceMemory* memory) : tiers_(tiers), memory_(memory) {}

  const StoreOptions& options() const override { return tiers_->options(); }
  RowInitializer initializer() const override { return tiers_->initializer(); }
  size_t size() const override { return tiers_->size(); }
  Status Count(size_t* count) const override { return tiers_->Count(count); }
  RuleSlots rule() const override { return tiers_->rule(); }
  // StoreMaintenance takes arrays on the host.
  StoreMaintenance* maintenance() override { return tiers_->maintenance(); }
  StoreEviction* eviction() override { return tiers_->eviction(); }
  const StoreLocks& locks() const override { return tiers_->locks(); }
  void DropOutgrown() const override { tiers_->DropOutgrown(); }
  StoreStats Stats() const override { return tiers_->Stats(); }

  Status Find(const ExecContext& context, const KeyBatch& batch, const DefaultRows& defaults,
              void* weights, bool* exists, const SlotsOut& slots) const override {
    return WithKeys(context, batch, exists,
                    [&](const ExecContext& inner, const KeyBatch& keys, bool* flags) {
                      return tiers_->Find(inner, keys, defaults, weights, flags, slots);
                    });
  }
  Status Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const override {
    return WithKeys(context, batch, exists,
                    [&](const ExecContext& inner, const KeyBatch& keys, bool* flags) {
                      return tiers_->Contains(inner, keys, flags);
                    });
  }
  Status FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                      const DefaultRows& defaults, void* weights, bool* exists) override {
    return WithKeys(context, batch, exists,
                    [&](const ExecContext& inner, const KeyBatch& keys, bool* flags) {
                      return tiers_->FindOrInsert(inner, keys, defaults, weights, flags);
                    });
  }
  Status InsertOrAssign(const ExecContext& context, const KeyBatch& batch, const void* weights,
                        const SlotsIn& slots) override {
    return WithKeys(context, batch, nullptr,
                    [&](const ExecContext& inner, const KeyBatch& keys, bool*) {
                      return tiers_->InsertOrAssign(inner, keys, weights, slots);
                    });
  }
  Status Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
               const void* new_rows, const bool* exists) override {
    return WithKeys(context, batch, exists,
                    [&](const ExecContext& inner, const KeyBatch& keys, const bool* flags) {
                      return tiers_->Accum(inner, keys, old_rows, new_rows, flags);
                    });
  }
  using Store::Apply;
  Status Apply(const ExecContext& context, const KeyBatch& batch, const Gradients& gradients,
               const Rule& rule) override {
    return WithKeys(context, batch, nullptr,
                    [&](const ExecContext& inner, const KeyBatch& keys, bool*) {
                      return tiers_->Apply(inner, keys, gradients, rule);
                    });
  }
  Status UpdateAllRows(const ExecContext& context, const Rule& rule) override {
    return tiers_->UpdateAllRows(context, rule);
  }
  Status Erase(const ExecContext& context, const KeyBatch& batch) override {
    return WithKeys(context, batch, nullptr,
                    [&](const ExecContext& inner, const KeyBatch& keys, bool*) {
                      return tiers_->Erase(inner, keys);
                    });
  }
  using Store::Clear;
  Status Clear(const ExecContext& context) override { return tiers_->Clear(context); }

  Status FindPointers(const ExecContext&, const KeyBatch&, const void**) const override {
    return Refusal("addresses of rows, which move");
  }
  Status FindPooled(const ExecContext& context, const PooledFind* finds,
                    size_t count) const override {
    for (size_t i = 0; i < count; ++i) {
      TF_EMBED_RETURN_IF_ERROR(FindPooledOnHost(context, finds[i]));
    }
    return Status();
  }
  Status ApplyBags(const ExecContext& context, const float* gradients, const BagGradients* batches,
                   size_t count, Combiner combiner, const Rule& rule) override {
    BagsOnHost bags(HostAllocator());
    TF_EMBED_RETURN_IF_ERROR(bags.Read(memory_, context, options().name, batches, count, combiner));
    OnDevice<size_t> begins(memory_, context);
    OnDevice<float> factors(memory_, context);
    TF_EMBED_RETURN_IF_ERROR(begins.Write(bags.begins(), bags.size()));
    TF_EMBED_RETURN_IF_ERROR(factors.Write(bags.factors(), bags.size()));
    const Gradients of_keys{gradients, DataType::kFloat, begins.data(), factors.data()};
    ExecContext inner = context;
    inner.rows_on_device = true;
    return tiers_->Apply(inner, KeyBatch{bags.keys(), bags.size()}, of_keys, rule);
  }

 private:
  // Calls `verb(context, keys, flags)` with host copies of the keys and flags.
  template <typename Verb>
  Status WithKeys(const ExecContext& context, const KeyBatch& batch, const bool* exists,
                  const Verb& verb) const {
    KeysOnHost keys(HostAllocator());
    OnHost<bool> flags(HostAllocator());
    TF_EMBED_RETURN_IF_ERROR(keys.Read(memory_, context, batch));
    TF_EMBED_RETURN_IF_ERROR(flags.Read(memory_, context, exists, keys.places()));
    ExecContext inner = context;
    inner.rows_on_device = true;
    TF_EMBED_RETURN_IF_ERROR(verb(inner, keys.batch(), flags.data()));
    return flags.WriteBack(memory_, context);
  }

  // REQUIRES: all shards are of this class.
  Status FindPooledOnHost(const ExecContext& context, const PooledFind& find) const {
    TF_EMBED_RETURN_IF_ERROR(CheckPooledFind(find));  // otherwise the width below could wrap around
    const size_t num_keys = find.bags->num_keys();
    const size_t row_bytes = options().dim * SizeOf(options().value_type);
    const size_t compute_bytes = options().value_type == DataType::kDouble ? 8 : 4;
    OnHost<int64_t> keys(HostAllocator());
    OnHost<char> weights(HostAllocator()), defaults(HostAllocator()), pooled(HostAllocator());
    OnHost<char> found(HostAllocator());
    std::vector<const Store*> shards;
    for (size_t i = 0; i < find.keys.num_shards; ++i) {
      shards.push_back(static_cast<const DeviceTiers*>(find.keys.shards[i])->tiers_);
    }
    TF_EMBED_RETURN_IF_ERROR(keys.Read(memory_, context, find.keys.keys, num_keys));
    TF_EMBED_RETURN_IF_ERROR(weights.Read(memory_, context,
                                          static_cast<const char*>(find.pooling.weights),
                                          num_keys * compute_bytes));
    const size_t num_defaults = find.defaults.kind == DefaultRows::Kind::kInitializer ? 0
                                : find.defaults.kind == DefaultRows::Kind::kOneEach   ? num_keys
                                                                                      : 1;
    TF_EMBED_RETURN_IF_ERROR(defaults.Read(
        memory_, context, static_cast<const char*>(find.defaults.rows), num_defaults * row_bytes));
    // Copy no more than this: the memory behind may belong to another tensor, and change meanwhile.
    const size_t width = options().dim - (find.quantized ? kQuantizedTail : 0);
    const size_t num_pooled =
        find.bags->size() == 0 ? 0 : (find.bags->size() - 1) * find.stride + width;
    TF_EMBED_RETURN_IF_ERROR(pooled.Read(memory_, context, static_cast<const char*>(find.pooled),
                                         num_pooled * compute_bytes));
    TF_EMBED_RETURN_IF_ERROR(found.Read(memory_, context, static_cast<const char*>(find.found),
                                        num_keys * width * compute_bytes));
    PooledFind on_host = find;
    on_host.keys.keys = keys.data();
    on_host.keys.shards = shards.data();
    on_host.pooling.weights = weights.data();
    on_host.defaults.rows = defaults.data();
    on_host.pooled = pooled.data();
    on_host.found = found.data();
    TF_EMBED_RETURN_IF_ERROR(tf_embed::FindPooled(context, &on_host, 1));
    TF_EMBED_RETURN_IF_ERROR(found.WriteBack(memory_, context));
    return pooled.WriteBack(memory_, context);
  }

  Status Refusal(const char* what) const {
    return Status::FailedPrecondition("Table '" + options().name +
                                      "' has rows below the GPU's memory, and so no " + what + ".");
  }

  Store* const tiers_;
  DeviceMemory* const memory_;
};

}  // namespace

std::unique_ptr<DeviceStore> NewDeviceTiers(Store* tiers, DeviceMemory* memory) {
  return std::make_unique<DeviceTiers>(tiers, memory);
}

}  // namespace tf_embed
