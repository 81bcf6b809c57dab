// SPDX-License-Identifier: Apache-2.0
// The staging buffer of a verb: small arrays packed into consecutive host words, so that one copy
// moves them all to the device. The device address of each is known before the copy.
#ifndef TF_EMBED_CC_STORES_DEVICE_STAGING_BUFFER_H_
#define TF_EMBED_CC_STORES_DEVICE_STAGING_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/pooling/bags.h"
#include "cc/stores/device/bags_view.h"
#include "cc/stores/device/device_content.h"

namespace tf_embed {

template <class Device>
class StagingBuffer {
 public:
  StagingBuffer(const Device& device, const ExecContext& context, Allocator* host)
      : device_(device), context_(context), own_(host), array_(device, context) {}

  static size_t For(size_t bytes) { return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t); }
  static size_t For(const Bags& bags) {
    return (bags.splits() == nullptr ? 0 : bags.size() + 1) +
           (bags.order() == nullptr ? 0 : For(bags.num_keys() * sizeof(uint32_t)));
  }

  Status Make(size_t words) {
    TF_EMBED_RETURN_IF_ERROR(own_.Resize(words));
    return array_.Make(words);
  }
  // Appends `count` values; returns their address in device memory.
  template <typename T>
  const T* Put(const T* values, size_t count) {
    // Make has allocated the device memory, so later parts of the same copy can contain addresses.
    const T* const there = Next<T>();
    if (count > 0) std::memcpy(own_.data() + used_, values, count * sizeof(T));
    used_ += For(count * sizeof(T));
    return there;
  }
  template <typename T>
  const T* Next() const {
    return reinterpret_cast<const T*>(array_.data() + used_);
  }
  BagsView Put(const Bags& bags, const Pooling& pooling, const int64_t* keys) {
    BagsView view(pooling, keys);
    view.length = bags.length();
    if (bags.splits() != nullptr) view.splits = Put(bags.splits(), bags.size() + 1);
    if (bags.order() != nullptr) view.order = Put(bags.order(), bags.num_keys());
    return view;
  }
  void Copy() {
    if (used_ == 0) return;
    device_.CopyIn(context_, own_.data(), used_ * sizeof(uint64_t), array_.data());
  }

 private:
  const Device& device_;
  const ExecContext& context_;
  Buffer<uint64_t> own_;
  DeviceArray<Device, uint64_t> array_;
  size_t used_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_STAGING_BUFFER_H_
