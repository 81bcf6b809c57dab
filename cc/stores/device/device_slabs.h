// SPDX-License-Identifier: Apache-2.0
// The memory for the rows of a DeviceStore: device memory, and beyond a bound, pinned host memory.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_SLABS_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_SLABS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cc/core/base/exec_context.h"
#include "cc/stores/device/device_rows.h"
#include "cc/stores/device/device_store.h"

namespace tf_embed {

template <class Device>
class DeviceSlabs {
 public:
  // Other memory that counts toward the bounds.
  struct Beside {
    uint64_t device_bytes = 0;
    uint64_t host_bytes = 0;
  };

  // The result of Add.
  enum class Added { kYes, kOutOfBounds, kNoMemory };

  DeviceSlabs(const Device& device, const DeviceOptions& options)
      : device_(device), options_(options) {}

  const RowSlabs& view() const { return view_; }
  uint32_t count() const { return count_; }
  uint64_t rows() const { return RowSlabs::RowsBefore(count_); }
  uint64_t device_bytes() const { return device_bytes_; }
  uint64_t host_bytes() const { return host_bytes_; }

  // Adds the next slab, for rows of `stride` bytes. The caller owns `numbers`, the slab's part of
  // the list of free rows.
  Added Add(const ExecContext& context, size_t stride, const Beside& beside, uint32_t* numbers) {
    const size_t bytes = RowSlabs::RowsOf(count_) * stride;
    const bool for_device = device_bytes_ + bytes <= options_.max_row_bytes &&
                            beside.device_bytes + device_bytes_ + bytes <= options_.max_bytes;
    const bool for_host = beside.host_bytes + host_bytes_ + bytes <= options_.max_host_bytes;
    char* slab = nullptr;
    // A GPU without memory is no failure as long as the host's bound has room: the slab then goes
    // to the host.
    if (for_device) slab = static_cast<char*>(device_.AllocateLasting(context, bytes));
    on_host_[count_] = slab == nullptr && for_host;
    if (on_host_[count_]) slab = static_cast<char*>(device_.AllocatePinned(context, bytes));
    // At a bound, the caller refuses or evicts rows. Only a lack of memory within the bounds is an
    // error.
    if (slab == nullptr) return for_device || for_host ? Added::kNoMemory : Added::kOutOfBounds;
    (on_host_[count_] ? host_bytes_ : device_bytes_) += bytes;
    view_.freed[count_] = numbers;
    view_.slabs[count_++] = slab;
    return Added::kYes;
  }

  // Frees all slabs, of rows of `stride` bytes, but not their `numbers`, which the caller owns.
  void Free(const ExecContext& context, size_t stride) {
    for (uint32_t i = 0; i < count_; ++i) {
      const size_t bytes = RowSlabs::RowsOf(i) * stride;
      if (on_host_[i]) {
        device_.FreePinned(context, view_.slabs[i], bytes);
      } else {
        device_.FreeLasting(context, view_.slabs[i], bytes);
      }
    }
    view_ = RowSlabs();
    count_ = 0;
    device_bytes_ = host_bytes_ = 0;
  }

  // Swaps contents with slabs of the same device and bounds.
  void Swap(DeviceSlabs* other) {
    // `device_` and `options_` are references that both share, so they need no swap.
    std::swap(view_, other->view_);
    std::swap(on_host_, other->on_host_);
    std::swap(count_, other->count_);
    std::swap(device_bytes_, other->device_bytes_);
    std::swap(host_bytes_, other->host_bytes_);
  }

 private:
  const Device& device_;
  const DeviceOptions& options_;
  RowSlabs view_;
  bool on_host_[RowSlabs::kMax] = {};
  uint32_t count_ = 0;
  uint64_t device_bytes_ = 0;
  uint64_t host_bytes_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_SLABS_H_
