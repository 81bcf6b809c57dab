// SPDX-License-Identifier: Apache-2.0
// DeviceStore on an NVIDIA GPU: the counterpart of EmulatedDevice. This is the only file that nvcc
// compiles (`make cuda`). Uses --fmad=false, because otherwise the last bits of initial rows would
// differ from the CPU's, and no fast math.
#include <cuda_runtime.h>

#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/stores/device/cuda_frequent_keys_inl.h"
#include "cc/stores/device/cuda_memory_inl.h"
#include "cc/stores/device/current_gpu.h"
#include "cc/stores/device/device_key_sums_inl.h"
#include "cc/stores/device/device_split_inl.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/host_access_store.h"
#include "cc/stores/device/launch_queue.h"

namespace tf_embed {
namespace {

// Half a warp: two loads of 16 bytes a lane read a row of 64 floats, and one load reads a bucket's
// seven entries.
struct CudaTile {
  static constexpr size_t kLanes = 16;
  static constexpr bool kBlocks = true;
  // CUDA declares its functions for this 64-bit type, which differs from uint64_t.
  using Word = unsigned long long;

  __device__ size_t lane() const { return threadIdx.x % kLanes; }
  __device__ void Sync() const { __syncwarp(Mask()); }
  template <typename T>
  __device__ T From(T x, size_t lane) const {
    return __shfl_sync(Mask(), x, static_cast<int>(lane), kLanes);
  }
  template <typename T>
  __device__ T Down(T x, size_t distance) const {
    return __shfl_down_sync(Mask(), x, static_cast<unsigned>(distance), kLanes);
  }
  __device__ uint32_t Highest(uint32_t x) const { return __reduce_max_sync(Mask(), x); }
  __device__ uint32_t Where(bool x) const {
    return __ballot_sync(Mask(), x) >> (threadIdx.x & 16u) & 0xffffu;
  }
  __device__ uint32_t Equal(uint64_t x) const {
    return __match_any_sync(Mask(), static_cast<Word>(x)) >> (threadIdx.x & 16u) & 0xffffu;
  }

  static __device__ uint64_t Load(const uint64_t* from) {
    // Aligned words are loaded whole; volatile keeps the compiler from reusing an earlier load.
    return *reinterpret_cast<const volatile uint64_t*>(from);
  }
  static __device__ uint64_t Add(uint64_t* to, uint64_t x) {
    return atomicAdd(reinterpret_cast<Word*>(to), static_cast<Word>(x));
  }
  static __device__ uint64_t Exchange(uint64_t* to, uint64_t x) {
    return atomicExch(reinterpret_cast<Word*>(to), static_cast<Word>(x));
  }
  static __device__ void Max(uint64_t* to, uint64_t x) {
    atomicMax(reinterpret_cast<Word*>(to), static_cast<Word>(x));
  }
  static __device__ bool CompareExchange(uint64_t* to, uint64_t* expected, uint64_t x) {
    const uint64_t there =
        atomicCAS(reinterpret_cast<Word*>(to), static_cast<Word>(*expected), static_cast<Word>(x));
    const bool same = there == *expected;
    *expected = there;
    return same;
  }

 private:
  // The threads of this half of the warp.
  __device__ static unsigned Mask() { return 0xffffu << (threadIdx.x & 16u); }
};

constexpr unsigned kThreads = 256;

// Lookups have a batch, and a grid has tiles for all its keys. Other kernels loop. Without the
// loop, some of them need fewer registers and some more; which is faster was not measured.
template <class Kernel>
inline constexpr bool kFitsOneGrid =
    std::is_same_v<Kernel, FindKernel> || std::is_same_v<Kernel, FindPlainKernel> ||
    std::is_same_v<Kernel, FindPointersKernel> || std::is_same_v<Kernel, ContainsKernel> ||
    std::is_same_v<Kernel, ProbeKernel>;

template <class Kernel>
inline constexpr bool kFitsOneGrid<Together<Kernel>> = kFitsOneGrid<Kernel>;

template <class Kernel>
__global__ void __launch_bounds__(kThreads)
    RunTiles(const __grid_constant__ Kernel kernel, size_t count) {
  // All lanes of a tile have the same i, so they leave the loop together. The two tiles of a warp
  // may not, so masks name half a warp.
  size_t i = (size_t{blockIdx.x} * kThreads + threadIdx.x) / CudaTile::kLanes;
  if constexpr (kFitsOneGrid<Kernel>) {
    if (i < count) kernel(CudaTile(), i);
  } else {
    const size_t tiles = size_t{gridDim.x} * (kThreads / CudaTile::kLanes);
    for (; i < count; i += tiles) kernel(CudaTile(), i);
  }
}

// Results of CUDA calls are not checked one by one. A failure stays the thread's last error, which
// Check returns at the end of each verb. A failure in a destructor is returned by the thread's next
// verb.
class CudaDevice {
 public:
  using Tile = CudaTile;

  struct Current : OnGpu {
    explicit Current(const CudaDevice& device) : OnGpu(device.device_) {}
  };

  // Reads wait for the last write, and a write waits for all reads since; both wait on the device.
  // Verbs of one stream are in order anyway, so an event is recorded only when a verb comes on
  // another stream. It is then recorded on the stream of the earlier verb, after work that was
  // queued there since: the wait may be longer than needed, but not shorter.
  class Order {
   public:
    explicit Order(const CudaDevice& device) : device_(device.device_) {}
    ~Order() {
      const OnGpu current(device_);
      if (event_ != nullptr) cudaEventDestroy(event_);
    }

    void BeginRead(const ExecContext& context) {
      std::lock_guard<std::mutex> lock(mutex_);
      // A stream that has read since the last write has waited for it.
      if (context.stream != wrote_ && reads_.insert(context.stream).second) Wait(context, wrote_);
    }
    void BeginWrite(const ExecContext& context) {
      WaitForAll(context);
      std::lock_guard<std::mutex> lock(mutex_);
      reads_.clear();
      wrote_ = context.stream;
    }
    // Waits for all earlier verbs. Unlike BeginWrite, it may be called while other verbs read.
    void WaitForAll(const ExecContext& context) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (context.stream != wrote_) Wait(context, wrote_);
      for (void* const read : reads_) {
        if (context.stream != read) Wait(context, read);
      }
    }

   private:
    void Wait(const ExecContext& context, void* earlier) {
      const OnGpu current(device_);
      // An event may be reused: a stream that already waits for it keeps the record that it saw
      // then.
      if (event_ == nullptr) cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
      cudaEventRecord(event_, static_cast<cudaStream_t>(earlier));
      cudaStreamWaitEvent(StreamOf(context), event_, 0);
    }

    const int device_;
    std::mutex mutex_;
    cudaEvent_t event_ = nullptr;
    void* wrote_ = nullptr;  // the stream of the last write; a new store is filled on the default
    std::set<void*> reads_;  // the other streams that have read since
  };

  // A copy of device memory at a point of the stream. The copy is queued on the stream; a later
  // call detects its arrival. At most one copy is in flight.
  class AsyncReadback {
   public:
    // Allocates its memory here, because allocating pinned memory may wait for the device.
    explicit AsyncReadback(const CudaDevice& device) : device_(device.device_) {
      const OnGpu current(device_);
      bytes_ = MemoryOrNull(
          [](void** memory) { return cudaHostAlloc(memory, kMaxBytes, cudaHostAllocPortable); });
      if (cudaEventCreateWithFlags(&sent_, cudaEventDisableTiming) != cudaSuccess) sent_ = nullptr;
    }
    AsyncReadback(const AsyncReadback&) = delete;
    AsyncReadback& operator=(const AsyncReadback&) = delete;
    ~AsyncReadback() {
      const OnGpu current(device_);
      if (sent_ != nullptr) {
        // The copy writes to bytes_ until then.
        cudaEventSynchronize(sent_);
        cudaEventDestroy(sent_);
      }
      if (bytes_ != nullptr) cudaFreeHost(bytes_);
    }

    // Returns false, without a copy, if one is in flight or can't be started.
    bool Send(const CudaDevice&, const ExecContext& context, const void* from, size_t bytes) {
      if (bytes_ == nullptr || sent_ == nullptr || (is_under_way_ && Arrived() == nullptr)) {
        return false;
      }
      const OnGpu current(device_);
      const cudaStream_t stream = StreamOf(context);
      // If either call fails, has_sent_ is false and bytes_ is never read.
      has_sent_ =
          cudaMemcpyAsync(bytes_, from, bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
          cudaEventRecord(sent_, stream) == cudaSuccess;
      return is_under_way_ = has_sent_;
    }

    // Null if nothing was sent, or the copy is still in flight.
    const void* Arrived() {
      if (is_under_way_) {
        const OnGpu current(device_);
        const cudaError_t query = cudaEventQuery(sent_);
        if (query == cudaErrorNotReady) (void)cudaGetLastError();  // not an error
        is_under_way_ = query != cudaSuccess;
      }
      return has_sent_ && !is_under_way_ ? bytes_ : nullptr;
    }

   private:
    static constexpr size_t kMaxBytes = 64;

    const int device_;
    void* bytes_ = nullptr;  // pinned
    cudaEvent_t sent_ = nullptr;
    bool has_sent_ = false;
    bool is_under_way_ = false;
  };

  explicit CudaDevice(int device) : device_(device), scratch_(device) {}

  void* Allocate(const ExecContext& context, size_t bytes) const {
    return scratch_.Allocate(context, bytes);
  }
  void* AllocateLasting(const ExecContext& context, size_t bytes) const {
    const OnGpu current(device_);
    return MemoryOrNull(
        [&](void** memory) { return cudaMallocAsync(memory, bytes, StreamOf(context)); });
  }
  void Free(const ExecContext& context, void* memory, size_t bytes) const {
    scratch_.Free(context, memory, bytes);
  }
  void FreeLasting(const ExecContext& context, void* memory, size_t) const {
    const OnGpu current(device_);
    cudaFreeAsync(memory, StreamOf(context));
  }
  // Host and device have the same addresses for it: all supported GPUs have unified addressing.
  void* AllocatePinned(const ExecContext&, size_t bytes) const {
    const OnGpu current(device_);
    constexpr unsigned kFlags = cudaHostAllocMapped | cudaHostAllocPortable;
    return MemoryOrNull([&](void** memory) { return cudaHostAlloc(memory, bytes, kFlags); });
  }
  // Waits for the stream. Then all other uses of the memory are over, because the stream waits for
  // them.
  void FreePinned(const ExecContext& context, void* memory, size_t) const {
    const OnGpu current(device_);
    cudaStreamSynchronize(StreamOf(context));
    cudaFreeHost(memory);
  }
  void Fill(const ExecContext& context, void* to, int byte, size_t bytes) const {
    if (bytes == 0) return;
    const OnGpu current(device_);
    cudaMemsetAsync(to, byte, bytes, StreamOf(context));
  }
  // The host memory is not pinned, so the caller may change it when this returns.
  void CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) const {
    if (bytes == 0) return;
    const OnGpu current(device_);
    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, StreamOf(context));
  }
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    if (bytes == 0) return;
    const OnGpu current(device_);
    cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, StreamOf(context));
    cudaStreamSynchronize(StreamOf(context));
  }

  template <class Kernel>
  void Launch(const ExecContext& context, size_t count, size_t, const Kernel& kernel) const {
    if (count == 0) return;
    const OnGpu current(device_);
    constexpr size_t kTilesOfBlock = kThreads / CudaTile::kLanes;
    // RunTiles loops over the rest. A grid stays below 2^31 blocks, the limit of every GPU.
    constexpr size_t kMaxBlocks = kFitsOneGrid<Kernel> ? kMaxBatchSize : 1 << 20;
    const size_t blocks = (count + kTilesOfBlock - 1) / kTilesOfBlock;
    RunTiles<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0,
               StreamOf(context)>>>(kernel, count);
  }

  // See device_content.h.
  template <class Kernel>
  void LaunchBlocks(const ExecContext& context, size_t tiles, const Kernel& kernel) const {
    constexpr unsigned kBlocks = 128;
    // As many tiles as fill a GPU. They loop over the rest.
    constexpr size_t kMostForTiles = 256;
    const OnGpu current(device_);
    const size_t blocks = tiles / (kThreadsOfBlock / CudaTile::kLanes) + 1;
    RunBlocks<CudaTile>
        <<<kBlocks + static_cast<unsigned>(blocks < kMostForTiles ? blocks : kMostForTiles),
           kThreadsOfBlock, 0, StreamOf(context)>>>(kernel, kBlocks);
  }

  Status RunningSum(const ExecContext& context, uint32_t* numbers, size_t count) const {
    const OnGpu current(device_);
    const cudaStream_t stream = StreamOf(context);
    size_t bytes = 0;
    TF_EMBED_RETURN_IF_ERROR(
        ToStatus(cub::DeviceScan::ExclusiveSum(nullptr, bytes, numbers, numbers, count, stream)));
    void* const scratch = Allocate(context, bytes);
    if (scratch == nullptr) return NoMemory(context, bytes);
    const cudaError_t error =
        cub::DeviceScan::ExclusiveSum(scratch, bytes, numbers, numbers, count, stream);
    // Free is queued on the stream, after the scan that uses the memory.
    Free(context, scratch, bytes);
    return ToStatus(error);
  }

  Status Sort(const ExecContext& context, const uint64_t* keys, const uint32_t* values,
              size_t count, int bits, uint64_t* sorted_keys, uint32_t* sorted_values) const {
    const OnGpu current(device_);
    const cudaStream_t stream = StreamOf(context);
    size_t bytes = 0;
    TF_EMBED_RETURN_IF_ERROR(ToStatus(cub::DeviceRadixSort::SortPairs(
        nullptr, bytes, keys, sorted_keys, values, sorted_values, count, 0, bits, stream)));
    void* const scratch = Allocate(context, bytes);
    if (scratch == nullptr) return NoMemory(context, bytes);
    const cudaError_t error = cub::DeviceRadixSort::SortPairs(
        scratch, bytes, keys, sorted_keys, values, sorted_values, count, 0, bits, stream);
    Free(context, scratch, bytes);
    return ToStatus(error);
  }

  void Wait() const {
    const OnGpu current(device_);
    cudaDeviceSynchronize();
  }

  Status Check(const ExecContext&) const { return ToStatus(cudaGetLastError()); }

 private:
  Status ToStatus(cudaError_t error) const { return StatusOf(error, device_); }
  Status NoMemory(const ExecContext& context, size_t bytes) const {
    TF_EMBED_RETURN_IF_ERROR(Check(context));  // another failure is not a lack of memory
    return Status::ResourceExhausted([bytes] {
      return "No device memory for " + std::to_string(bytes) + " bytes of scratch space.";
    });
  }

  int device_;
  ScratchMemory scratch_;
};

}  // namespace

int NumGpus() {
  int count = 0;
  int driver = 0;
  // Older drivers have no parameters of 30 KiB (launch_queue.h).
  constexpr int kOldestDriver = 12010;
  if (cudaGetDeviceCount(&count) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess ||
      driver < kOldestDriver) {
    count = 0;
  }
  // Without CUDA there is no GPU. The error must not stay for other callers.
  (void)cudaGetLastError();
  return count;
}

DeviceMemory* MemoryOfDevice(int device) {
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<GpuMemory>> memories;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<GpuMemory>& memory = memories[device];
  if (memory == nullptr) memory = std::make_unique<GpuMemory>(device);
  return memory.get();
}

std::unique_ptr<DeviceSplit> NewDeviceSplit(int device) {
  using Device = QueuedDevice<CudaDevice>;
  return std::make_unique<DeviceSplitOn<Device>>(Device(device), HostAllocator());
}

std::unique_ptr<DeviceKeySums> NewDeviceKeySums(int device) {
  return std::make_unique<DeviceKeySumsOn<CudaDevice>>(CudaDevice(device), HostAllocator());
}

Status NewDeviceStore(const StoreOptions& options, const DeviceOptions& device,
                      std::unique_ptr<Store>* store) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    // The error is in the status below. Other callers must not take it for their own.
    (void)cudaGetLastError();
    return Status::Unavailable("Table '" + options.name + "' can't be on GPU " +
                               std::to_string(device.device) +
                               ": CUDA finds none: " + cudaGetErrorString(counted) + ".");
  }
  if (device.device < 0 || device.device >= count) {
    return Status::Unavailable("Table '" + options.name + "' can't be on GPU " +
                               std::to_string(device.device) + ": this machine has " +
                               std::to_string(count) + " that CUDA can use.");
  }
  int has_pools = 0;
  const cudaError_t asked =
      cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device.device);
  TF_EMBED_RETURN_IF_ERROR(StatusOf(asked, device.device));
  if (has_pools == 0) {
    cudaDeviceProp properties = {};
    (void)cudaGetDeviceProperties(&properties, device.device);
    (void)cudaGetLastError();  // without the name, the message is still right
    return Status::Unavailable("Table '" + options.name + "' can't be on GPU " +
                               std::to_string(device.device) + " (" + properties.name +
                               "): its driver has no memory pools, as those of GPUs that virtual "
                               "machines share may have none.");
  }
  using Device = QueuedDevice<CudaDevice>;
  return DeviceStoreImpl<Device>::Create(options, device, Device(device.device), store);
}

}  // namespace tf_embed
