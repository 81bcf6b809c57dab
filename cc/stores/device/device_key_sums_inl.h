// SPDX-License-Identifier: Apache-2.0
// DeviceKeySums on a device. Equal keys are grouped as for a write, and a prefix sum over their
// first positions numbers them in batch order. Then a tile sums the gradients of a key in batch
// order. Gradients of bags are read in place.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/allocator.h"
#include "cc/core/pooling/key_gradients.h"
#include "cc/stores/device/device_groups.h"
#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/rule_kernels.h"
#include "cc/stores/device/staging_buffer.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

// The distinct keys of a batch and their numbers.
struct NumberedKeys {
  GroupsView groups;
  bool has_padding = false;
  int64_t padding = 0;
  // [batch size + 1]: 1 at the first position of each key except padding; then the running sum.
  uint32_t* firsts = nullptr;

  TF_EMBED_DEVICE bool IsPadding(const DeviceGroup& group) const {
    return has_padding && group.key == padding;
  }
  TF_EMBED_DEVICE uint32_t NumberOf(const DeviceGroup& group) const {
    return firsts[group.members[0]];
  }
};

// For each group.
struct MarkFirstsKernel {
  NumberedKeys keys;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (!keys.groups.Has(i) || tile.lane() != 0) return;
    const DeviceGroup group = keys.groups.groups[i];
    // Each group has one lane, and groups have different members, so plain writes suffice.
    if (!keys.IsPadding(group)) keys.firsts[group.members[0]] = 1;
  }
};

// For each group.
struct WriteNumbersKernel {
  NumberedKeys keys;
  int64_t* distinct;
  int32_t* inverse;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (!keys.groups.Has(i)) return;
    const DeviceGroup group = keys.groups.groups[i];
    int32_t number = -1;
    if (!keys.IsPadding(group)) {
      number = static_cast<int32_t>(keys.NumberOf(group));
      if (tile.lane() == 0) distinct[number] = group.key;
    }
    ForEachLane(tile, group.count, [&](size_t k) { inverse[group.members[k]] = number; });
  }
};

// For each bag: writes the offset and the factor of the gradient of each of its keys, in the form
// of Gradients.
template <typename Compute>
struct SpreadPooledGradientsKernel {
  BagsView bags;
  size_t dim;
  size_t* begins;
  Compute* factors;  // may be null: sums without weights

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t bag) const {
    const size_t begin = bags.Begin(bag);
    const size_t end = bags.Begin(bag + 1);
    Compute scale{1};
    if (Divides(bags.combiner)) {
      uint64_t padding = 0;
      const Compute divisor = bags.Divisor<Compute>(begin, end, &padding);
      // The forward pass gives 0 for such a bag, whatever its rows are, so its gradient is 0 too.
      scale = divisor == Compute{0} ? Compute{0} : Compute{1} / divisor;
    }
    ForEachLane(tile, end - begin, [&](size_t k) {
      const size_t position = bags.Position(begin + k);
      begins[position] = bag * dim;
      if (factors != nullptr) factors[position] = bags.Weight<Compute>(position) * scale;
    });
  }
};

// The sums that SumKernel writes for each key except padding. G: the gradients; S: the sums.
template <typename G, typename S>
struct NumberedSums {
  NumberedKeys keys;
  BatchView batch;
  GradientsView<G> gradients;
  S* sums;

  bool SumsOnlyRepeated() const { return false; }
  TF_EMBED_DEVICE bool WantsSum(const DeviceGroup& group) const { return !keys.IsPadding(group); }
  TF_EMBED_DEVICE void PutSum(const DeviceGroup& group, size_t column,
                              typename Number<G>::Compute sum) const {
    sums[keys.NumberOf(group) * gradients.dim + column] = Number<S>::Store(sum);
  }
};

template <class Device>
class DeviceKeySumsOn final : public DeviceKeySums {
 public:
  DeviceKeySumsOn(const Device& device, Allocator* host)
      : device_(device), host_(host), groups_(device_, context_), firsts_(device_, context_) {}

  Status Build(const ExecContext& context, const int64_t* keys, size_t num_keys,
               const int64_t* padding) override {
    TF_EMBED_RETURN_IF_ERROR(CheckNumberOfKeys(num_keys));
    const typename Device::Current current(device_);
    context_ = context;
    batch_.keys = keys;
    batch_.size = num_keys;
    if (num_keys == 0) return Status();
    TF_EMBED_RETURN_IF_ERROR(groups_.Build(batch_));
    TF_EMBED_RETURN_IF_ERROR(firsts_.MakeZeros(num_keys + 1));
    keys_.groups = groups_.view();
    keys_.has_padding = padding != nullptr;
    if (keys_.has_padding) keys_.padding = *padding;
    keys_.firsts = firsts_.data();
    device_.Launch(context_, num_keys, kKeyCost, MarkFirstsKernel{keys_});
    TF_EMBED_RETURN_IF_ERROR(device_.RunningSum(context_, firsts_.data(), num_keys + 1));
    // The only wait: the number is the shape of the outputs, which the caller allocates.
    device_.CopyOut(context_, firsts_.data() + num_keys, sizeof(size_), &size_);
    return device_.Check(context_);
  }

  size_t size() const override { return size_; }

  Status WriteKeys(int64_t* distinct, int32_t* inverse) const override {
    device_.Launch(context_, batch_.size, kKeyCost, WriteNumbersKernel{keys_, distinct, inverse});
    return device_.Check(context_);
  }

  Status WriteSums(const KeyGradients& gradients, DataType type, void* sums) const override {
    const typename Device::Current current(device_);
    return DispatchFloating(gradients.type, [&](auto tag) {
      return SumInto<typename decltype(tag)::Type>(gradients, type, sums);
    });
  }

 private:
  template <typename T>
  using Array = DeviceArray<Device, T>;
  static constexpr size_t kKeyCost = 10;  // nanoseconds, for splitting work over threads

  template <typename G>
  Status SumInto(const KeyGradients& of, DataType type, void* sums) const {
    using Compute = typename Number<G>::Compute;
    return DispatchFloating(type, [&](auto tag) {
      using S = typename decltype(tag)::Type;
      if constexpr (std::is_same_v<Compute, typename Number<S>::Compute>) {
        return this->template Sum<G>(of, static_cast<S*>(sums));
      } else {
        return OtherComputeType();
      }
    });
  }

  template <typename G, typename S>
  Status Sum(const KeyGradients& of, S* sums) const {
    using Compute = typename Number<G>::Compute;
    GradientsView<G> gradients{static_cast<const G*>(of.gradients), of.dim, nullptr,
                               static_cast<const Compute*>(of.pooling.weights)};
    Array<size_t> begins(device_, context_);
    Array<Compute> factors(device_, context_);
    StagingBuffer<Device> copied(device_, context_, host_);
    if (of.bags != nullptr) {
      TF_EMBED_RETURN_IF_ERROR(begins.Make(batch_.size));
      if (Divides(of.pooling.combiner) || of.pooling.weights != nullptr) {
        TF_EMBED_RETURN_IF_ERROR(factors.Make(batch_.size));
      }
      TF_EMBED_RETURN_IF_ERROR(copied.Make(StagingBuffer<Device>::For(*of.bags)));
      const BagsView bags = copied.Put(*of.bags, of.pooling, batch_.keys);
      copied.Copy();
      const size_t length = batch_.size / std::max<size_t>(1, of.bags->size()) + 1;
      device_.Launch(
          context_, of.bags->size(), kKeyCost * length,
          SpreadPooledGradientsKernel<Compute>{bags, of.dim, begins.data(), factors.data()});
      gradients.begins = begins.data();
      gradients.factors = factors.data();
    }
    const size_t blocks = gradients.template Blocks<typename Device::Tile>();
    const SumKernel kernel(keys_.groups, 0, batch_.size, blocks,
                           NumberedSums<G, S>{keys_, BatchView(batch_), gradients, sums});
    LaunchBlocks(device_, context_, kernel.MostTiles(), kKeyCost, kernel);
    return device_.Check(context_);
  }

  const Device device_;
  Allocator* const host_;
  ExecContext context_ = ExecContext::Serial();
  KeyBatch batch_;
  uint32_t size_ = 0;
  DeviceGroups<Device> groups_;
  Array<uint32_t> firsts_;
  NumberedKeys keys_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_KEY_SUMS_INL_H_
