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

#include "cc/core/base/process_salt.h"
#include "cc/stores/device/cuda_groups_inl.h"
#include "cc/stores/device/cuda_memory_inl.h"
#include "cc/stores/device/cuda_sums_inl.h"
#include "cc/stores/device/current_gpu.h"
#include "cc/stores/device/device_key_sums_inl.h"
#include "cc/stores/device/device_split_inl.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/host_access_store.h"

namespace tf_embed {
namespace {

// Half a warp: two loads of 16 bytes a lane read a row of 64 floats, and one load reads a bucket's
// seven entries.
struct CudaTile {
  static constexpr size_t kLanes = 16;

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

  // CUDA declares its atomics for this 64-bit type, which differs from uint64_t.
  using Word = unsigned long long;
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

  // Equal keys, in the order of the batch (cuda_groups_inl.h).
  class Groups {
   public:
    Groups(const CudaDevice& device, const ExecContext& context) : memory_(device, context) {}
    GroupsView view() const { return view_; }

   private:
    friend class CudaDevice;
    DeviceArray<CudaDevice, char> memory_;
    GroupsView view_;
  };

  static constexpr bool kHasFirsts = true;
  static constexpr bool kHasLongSums = true;

  explicit CudaDevice(int device) : device_(device), scratch_(device) {}

  Groups NewGroups(const ExecContext& context) const { return Groups(*this, context); }

  Status Group(const ExecContext& context, const KeyBatch& batch, Groups* groups) const {
    TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(batch.size));
    if (batch.size == 0) return Status();
    const OnGpu current(device_);
    const cudaStream_t stream = StreamOf(context);
    const size_t n = batch.size;
    const int bits = BitsOfClaims(n);
    // | groups | claims | places | sorted places | numbers | members | heads, n + 1 | starts |
    size_t bytes = 0;
    const auto part = [&bytes](size_t size) {
      const size_t begin = bytes;
      bytes += (size + 255) / 256 * 256;
      return begin;
    };
    // A single allocation for all arrays of a batch, so that the host calls the driver once and not
    // nine times. An alignment of 256 bytes suffices for each type, and for CUB.
    const size_t of_batch = n * sizeof(uint32_t);
    const size_t of_claims = sizeof(uint32_t) << bits;
    const size_t at_groups = part(n * sizeof(DeviceGroup)), at_claims = part(of_claims);
    const size_t at_places = part(of_batch), at_sorted = part(of_batch);
    const size_t at_numbers = part(of_batch), at_members = part(of_batch);
    const size_t at_heads = part(of_batch + sizeof(uint32_t)), at_starts = part(of_batch);
    size_t sort_bytes = 0;
    // With null memory, CUB only computes how much it needs.
    TF_EMBED_RETURN_IF_ERROR(ToStatus(cub::DeviceRadixSort::SortPairs<uint32_t, uint32_t>(
        nullptr, sort_bytes, nullptr, nullptr, nullptr, nullptr, n, 0, bits, stream)));
    const size_t at_scratch = part(sort_bytes);
    TF_EMBED_RETURN_IF_ERROR(groups->memory_.Make(bytes));
    char* const memory = groups->memory_.data();
    const auto array = [memory](size_t at) { return reinterpret_cast<uint32_t*>(memory + at); };
    uint32_t* const places = array(at_places);
    uint32_t* const sorted = array(at_sorted);
    uint32_t* const numbers = array(at_numbers);
    uint32_t* const members = array(at_members);
    uint32_t* const heads = array(at_heads);
    uint32_t* const starts = array(at_starts);
    auto* const written = reinterpret_cast<DeviceGroup*>(memory + at_groups);
    // Enough for n + 1 threads, as MarkHeads needs.
    const unsigned blocks = static_cast<unsigned>(n / kThreads + 1);
    cudaMemsetAsync(array(at_claims), 0, of_claims, stream);
    ClaimPlaces<<<blocks, kThreads, 0, stream>>>(batch.keys, n, ProcessSalt(), bits,
                                                 array(at_claims), places, numbers);
    TF_EMBED_RETURN_IF_ERROR(ToStatus(cub::DeviceRadixSort::SortPairs(
        memory + at_scratch, sort_bytes, places, sorted, numbers, members, n, 0, bits, stream)));
    MarkHeads<<<blocks, kThreads, 0, stream>>>(sorted, n, heads);
    TF_EMBED_RETURN_IF_ERROR(RunningSum(context, heads, n + 1));
    // The sort has read `numbers`, so WriteStarts may write the groups of the keys there.
    WriteStarts<<<blocks, kThreads, 0, stream>>>(heads, members, n, starts, numbers);
    WriteGroups<<<blocks, kThreads, 0, stream>>>(batch.keys, members, starts, heads + n, n,
                                                 written);
    // The size stays on the device; the host does not wait to learn it.
    groups->view_ = GroupsView{written, heads + n, numbers};
    return Check(context);
  }

  // The same without a sort, if the caller only needs the key, the first member and the count of a
  // group. The group of a key's first position has these. The groups of its other positions have
  // count 0.
  Status GroupFirsts(const ExecContext& context, const KeyBatch& batch, Groups* groups) const {
    TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(batch.size));
    if (batch.size == 0) return Status();
    const OnGpu current(device_);
    const cudaStream_t stream = StreamOf(context);
    const size_t n = batch.size;
    const int bits = BitsOfClaims(n);
    // | groups | firsts | claims | places | numbers | members | size |
    const size_t of_claims = sizeof(uint32_t) << bits;
    const size_t of_firsts = sizeof(FirstOfPlace) << bits;
    const size_t of_groups = n * sizeof(DeviceGroup);
    const size_t bytes = of_groups + of_firsts + of_claims + (3 * n + 1) * sizeof(uint32_t);
    TF_EMBED_RETURN_IF_ERROR(groups->memory_.Make(bytes));
    char* const memory = groups->memory_.data();
    auto* const written = reinterpret_cast<DeviceGroup*>(memory);
    auto* const firsts = reinterpret_cast<FirstOfPlace*>(memory + of_groups);
    auto* const claims = reinterpret_cast<uint32_t*>(memory + of_groups + of_firsts);
    uint32_t* const places = claims + (size_t{1} << bits);
    uint32_t* const numbers = places + n;
    uint32_t* const members = numbers + n;
    uint32_t* const size = members + n;
    const unsigned blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
    cudaMemsetAsync(firsts, 0, of_firsts + of_claims, stream);
    ClaimFirsts<<<blocks, kThreads, 0, stream>>>(batch.keys, n, ProcessSalt(), bits, claims, places,
                                                 firsts);
    WriteFirsts<<<blocks, kThreads, 0, stream>>>(batch.keys, n, places, firsts, members, numbers,
                                                 written, size);
    groups->view_ = GroupsView{written, size, numbers};
    return Check(context);
  }

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

  // Launches SumKernel for groups of the keys of a batch.
  template <class Sums>
  void LaunchSums(const ExecContext& context, size_t count, size_t keys,
                  const SumKernel<Sums>& given) const {
    // Without memory for the list of long groups, tiles sum all of them.
    char* const memory = keys <= kLongGroup
                             ? nullptr
                             : static_cast<char*>(Allocate(context, LongGroups::Bytes(keys)));
    if (memory == nullptr) return Launch(context, count * given.blocks, 0, given);
    const OnGpu current(device_);
    const cudaStream_t stream = StreamOf(context);
    constexpr unsigned kOfBlock = LongSum<Sums>::kThreads;
    constexpr unsigned kLongBlocks = 128;
    constexpr size_t kMaxBlocks = 1 << 12;
    SumKernel<Sums> kernel = given;
    kernel.most_members = kLongGroup;
    LongGroups listed;
    listed.count = reinterpret_cast<uint32_t*>(memory);
    listed.numbers = listed.count + 1;
    cudaMemsetAsync(listed.count, 0, sizeof(uint32_t), stream);
    ListLongGroups<<<static_cast<unsigned>(count / kThreads + 1), kThreads, 0, stream>>>(
        kernel, count, listed);
    const size_t blocks = count * kernel.blocks / (kOfBlock / CudaTile::kLanes) + 1;
    RunSums<CudaTile>
        <<<kLongBlocks + static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kOfBlock,
           0, stream>>>(kernel, count, listed, kLongBlocks);
    Free(context, memory, LongGroups::Bytes(keys));
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
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
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
  return std::make_unique<DeviceSplitOn<CudaDevice>>(CudaDevice(device), HostAllocator());
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
  return DeviceStoreImpl<CudaDevice>::Create(options, device, CudaDevice(device.device), store);
}

}  // namespace tf_embed
