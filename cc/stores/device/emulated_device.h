// SPDX-License-Identifier: Apache-2.0
// A device that is the host: its memory is the store's allocator, a launch runs its kernel on the
// caller's threads, and nothing is asynchronous. With it, a machine without a GPU can run, test and
// sanitize every line of a DeviceStore, except device_store.cu and the cuda_*.h files that it
// includes.
//
// A device provides
//     Tile                        the lanes that work on a key (tile.h)
//     Current                     makes the device the thread's, for its lifetime; one around a
//                                 verb makes those inside it cheap
//     Order                       the order of a store's verbs among streams: reads together,
//                                 writes alone
//     LaunchBlocks                if Tile::kBlocks (device_content.h)
//     AsyncReadback               a copy from device memory to the host without a wait; here by
//                                 CopyLater
//     Allocate, Free              memory of a verb; on a GPU, of ExecContext::scratch
//     AllocateLasting, FreeLasting  memory of the store itself
//     Fill, CopyIn, CopyOut
//     AllocatePinned, FreePinned  host memory that kernels access like device memory; FreePinned
//                                 waits
//     Launch                      calls kernel(tile, i) for i in [0, count)
//     RunningSum                  replaces each number by the sum of the numbers before it
//     Sort                        a stable sort of pairs by the lowest `bits` of their keys
//     Check                       the first failure of a launch
// all on the stream of the caller's context, and in its order; CopyOut waits for it. And
//     Wait                        waits until all launches on all streams are done
#ifndef TF_EMBED_CC_STORES_DEVICE_EMULATED_DEVICE_H_
#define TF_EMBED_CC_STORES_DEVICE_EMULATED_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/stores/device/row_kernels.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

class EmulatedDevice {
 public:
  using Tile = SingleTile;

  struct Current {
    explicit Current(const EmulatedDevice&) {}
  };

  // On the host, the store's locks exclude verbs from each other.
  struct Order {
    explicit Order(const EmulatedDevice&) {}
    void BeginRead(const ExecContext&) {}
    void BeginWrite(const ExecContext&) {}
    void WaitForAll(const ExecContext&) {}
  };

  // See CudaDevice. Here the copy arrives at once.
  class AsyncReadback {
   public:
    explicit AsyncReadback(const EmulatedDevice&) {}
    template <class Device>
    bool Send(const Device& device, const ExecContext& context, const void* from, size_t bytes) {
      device.CopyLater(context, from, bytes, bytes_);
      arrived_ = true;
      return true;
    }
    const void* Arrived() const { return arrived_ ? bytes_ : nullptr; }

   private:
    alignas(uint64_t) char bytes_[64];
    bool arrived_ = false;
  };

  // With `in_serial`, launches run only on the caller's thread. The thread may then hold locks that
  // must not be held while it waits for other threads (lock_order.h).
  explicit EmulatedDevice(Allocator* allocator, Allocator* pinned = nullptr, bool in_serial = false)
      : allocator_(allocator),
        pinned_(pinned == nullptr ? allocator : pinned),
        in_serial_(in_serial) {}

  void* Allocate(const ExecContext&, size_t bytes) const { return allocator_->Allocate(bytes); }
  void* AllocateLasting(const ExecContext& context, size_t bytes) const {
    return Allocate(context, bytes);
  }
  void Free(const ExecContext&, void* memory, size_t bytes) const {
    allocator_->Deallocate(memory, bytes);
  }
  void FreeLasting(const ExecContext& context, void* memory, size_t bytes) const {
    Free(context, memory, bytes);
  }
  void* AllocatePinned(const ExecContext&, size_t bytes) const { return pinned_->Allocate(bytes); }
  void FreePinned(const ExecContext&, void* memory, size_t bytes) const {
    pinned_->Deallocate(memory, bytes);
  }
  void Fill(const ExecContext&, void* to, int byte, size_t bytes) const {
    if (bytes > 0) std::memset(to, byte, bytes);
  }
  void CopyIn(const ExecContext&, const void* host, size_t bytes, void* device) const {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  // Numbers that kernels change meanwhile are copied whole, as from a GPU.
  void CopyOut(const ExecContext&, const void* device, size_t bytes, void* host) const {
    if (bytes % sizeof(uint64_t) != 0 ||
        reinterpret_cast<uintptr_t>(device) % alignof(uint64_t) != 0) {
      std::memcpy(host, device, bytes);
      return;
    }
    const uint64_t* const from = static_cast<const uint64_t*>(device);
    char* const to = static_cast<char*>(host);
    for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
      const uint64_t word = __atomic_load_n(from + i, __ATOMIC_RELAXED);
      std::memcpy(to + i * sizeof(word), &word, sizeof(word));
    }
  }

  void CopyLater(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    EmulatedDevice::CopyOut(context, device, bytes, host);
  }

  // `cost`: rough nanoseconds for one i.
  template <class Kernel>
  void Launch(const ExecContext& context, size_t count, size_t cost, const Kernel& kernel) const {
    const auto run = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) kernel(Tile(), i);
    };
    if (in_serial_) return run(0, count);
    if (count > 0) context.parallel_for(count, cost, std::cref(run));
  }

  Status RunningSum(const ExecContext&, uint32_t* numbers, size_t count) const {
    uint32_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t number = numbers[i];
      numbers[i] = sum;
      sum += number;
    }
    return Status();
  }

  Status Sort(const ExecContext&, const uint64_t* keys, const uint32_t* values, size_t count, int,
              uint64_t* sorted_keys, uint32_t* sorted_values) const {
    struct Pair {
      uint64_t key;
      uint32_t value;
    };
    Buffer<Pair> pairs(allocator_);
    TF_EMBED_RETURN_IF_ERROR(pairs.Resize(count));
    for (size_t i = 0; i < count; ++i) pairs[i] = {keys[i], values[i]};
    // Stable like a radix sort, so results on the emulated device and on a GPU are equal.
    std::stable_sort(pairs.data(), pairs.data() + count,
                     [](const Pair& a, const Pair& b) { return a.key < b.key; });
    for (size_t i = 0; i < count; ++i) {
      sorted_keys[i] = pairs[i].key;
      sorted_values[i] = pairs[i].value;
    }
    return Status();
  }

  Status Check(const ExecContext&) const { return Status(); }
  void Wait() const {}

 private:
  Allocator* allocator_;
  Allocator* pinned_;
  bool in_serial_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_EMULATED_DEVICE_H_
