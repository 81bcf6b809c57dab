// SPDX-License-Identifier: Apache-2.0
// Memory of an NVIDIA GPU, and the errors of CUDA. Included only by device_store.cu.
#ifndef TF_EMBED_CC_STORES_DEVICE_CUDA_MEMORY_INL_H_
#define TF_EMBED_CC_STORES_DEVICE_CUDA_MEMORY_INL_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/stores/device/current_gpu.h"
#include "cc/stores/device/host_access_store.h"

namespace tf_embed {
namespace {

// The pool of the scratch memory of batches. It is separate from the pool of the stores: a pool
// that holds more than its threshold, used or not, frees its idle memory at each wait for a stream.
// In a pool with the rows of a large store, the arrays of each batch would be mapped again. Null if
// there is no memory for a pool; scratch memory is then taken from the pool of the stores.
cudaMemPool_t ScratchPool(int device) {
  constexpr uint64_t kKeptBytes = uint64_t{4} << 30;
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  std::lock_guard<std::mutex> lock(mutex);
  const auto [entry, is_new] = pools.try_emplace(device, nullptr);
  if (!is_new) return entry->second;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  uint64_t kept = kKeptBytes;
  const OnGpu current(device);
  if (cudaMemPoolCreate(&entry->second, &properties) == cudaSuccess) {
    // If this fails, the pool keeps no idle memory, which is only slower.
    (void)cudaMemPoolSetAttribute(entry->second, cudaMemPoolAttrReleaseThreshold, &kept);
  } else {
    entry->second = nullptr;
    (void)cudaGetLastError();  // null says it
  }
  return entry->second;
}

// Clears the thread's last error, which other callers would take for their own.
Status StatusOf(cudaError_t error, int device) {
  if (error == cudaSuccess) return Status();
  (void)cudaGetLastError();  // in the status below
  return Status::Unavailable("GPU " + std::to_string(device) +
                             " failed: " + cudaGetErrorString(error) + ".");
}

// Returns null if there is no memory. An earlier failure of another kind stays the thread's last
// error, which Check returns.
template <typename Allocate>
void* MemoryOrNull(const Allocate& allocate) {
  void* memory = nullptr;
  const cudaError_t error = allocate(&memory);
  if (error == cudaSuccess) return memory;
  if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError();  // null says it
  return nullptr;
}

cudaStream_t StreamOf(const ExecContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

// The memory that came from the pool although the caller lends some, since that was used up.
class OwnMemory {
 public:
  static OwnMemory& Get() {
    static OwnMemory& memory =
        *new OwnMemory;  // other threads may use it at the end of the process
    return memory;
  }
  void Add(void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.insert(memory);
  }
  bool Remove(void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    return all_.erase(memory) > 0;
  }

 private:
  std::mutex mutex_;
  std::set<void*> all_;
};

// Memory for the duration of a verb, in the order of its stream: the caller's, or else the pool's.
// So neither call waits for the device, unlike cudaMalloc and cudaFree.
class ScratchMemory {
 public:
  explicit ScratchMemory(int device) : device_(device), pool_(ScratchPool(device)) {}

  // Returns null if there is no memory.
  void* Allocate(const ExecContext& context, size_t bytes) const {
    if (context.scratch != nullptr) {
      void* const lent = context.scratch->Allocate(bytes);
      if (lent != nullptr) return lent;
    }
    const OnGpu current(device_);
    void* const own = MemoryOrNull([&](void** memory) {
      return pool_ == nullptr ? cudaMallocAsync(memory, bytes, StreamOf(context))
                              : cudaMallocFromPoolAsync(memory, bytes, pool_, StreamOf(context));
    });
    if (context.scratch != nullptr && own != nullptr) OwnMemory::Get().Add(own);
    return own;
  }
  // REQUIRES: `context` has the allocator that it had in Allocate.
  void Free(const ExecContext& context, void* memory, size_t bytes) const {
    if (context.scratch != nullptr && !OwnMemory::Get().Remove(memory)) {
      return context.scratch->Deallocate(memory, bytes);
    }
    const OnGpu current(device_);
    cudaFreeAsync(memory, StreamOf(context));
  }

 private:
  int device_;
  cudaMemPool_t pool_;
};

// For the host's copies in both directions.
class GpuMemory final : public DeviceMemory {
 public:
  explicit GpuMemory(int device) : device_(device), scratch_(device) {}

  void* Allocate(const ExecContext& context, size_t bytes) override {
    return scratch_.Allocate(context, bytes);
  }
  void Free(const ExecContext& context, void* memory, size_t bytes) override {
    scratch_.Free(context, memory, bytes);
  }
  Status CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) override {
    return Copy(context, host, bytes, cudaMemcpyHostToDevice, device);
  }
  Status CopyOut(const ExecContext& context, const void* device, size_t bytes,
                 void* host) override {
    const OnGpu current(device_);
    TF_EMBED_RETURN_IF_ERROR(Copy(context, device, bytes, cudaMemcpyDeviceToHost, host));
    return Wait(context);
  }
  Status CopyWithin(const ExecContext& context, const void* from, size_t bytes, void* to) override {
    return Copy(context, from, bytes, cudaMemcpyDeviceToDevice, to);
  }
  Status Wait(const ExecContext& context) override {
    const OnGpu current(device_);
    return StatusOf(cudaStreamSynchronize(StreamOf(context)), device_);
  }

 private:
  Status Copy(const ExecContext& context, const void* from, size_t bytes, cudaMemcpyKind kind,
              void* to) const {
    if (bytes == 0) return Status();
    const OnGpu current(device_);
    return StatusOf(cudaMemcpyAsync(to, from, bytes, kind, StreamOf(context)), device_);
  }

  const int device_;
  const ScratchMemory scratch_;
};

}  // namespace
}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_CUDA_MEMORY_INL_H_
