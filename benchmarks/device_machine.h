// SPDX-License-Identifier: Apache-2.0
// The machine of device_store_benchmark.cu: a GPU if nvcc compiles it, otherwise the host in its
// place, so that the program can be tried without a GPU; times of the host say nothing.
#ifndef TF_EMBED_BENCHMARKS_DEVICE_MACHINE_H_
#define TF_EMBED_BENCHMARKS_DEVICE_MACHINE_H_

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/stores/device/device_store.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace tf_embed {

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

#if defined(__CUDACC__)

class Machine {
 public:
  static constexpr bool kGpu = true;
  static void Check(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
  }
  static bool IsHere() {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(found));
    return found == cudaSuccess && count > 0;
  }
  static std::string Name() {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, 0));
    return properties.name;
  }
  static uint64_t FreeBytes() {
    size_t free = 0, total = 0;
    Check(cudaMemGetInfo(&free, &total));
    return free;
  }
  static void* Take(size_t bytes) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, bytes));
    return memory;
  }
  static void Give(void* memory) { cudaFree(memory); }
  static void CopyIn(const void* host, size_t bytes, void* to) {
    // On the stream, which does not wait for work under way on the default one.
    Check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, Stream()));
    Wait();
  }
  static void CopyWithin(const void* from, size_t bytes, void* to) {
    Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, Stream()));
  }
  static void Zero(void* memory, size_t bytes) {
    Check(cudaMemsetAsync(memory, 0, bytes, Stream()));
  }
  static void Wait() { Check(cudaStreamSynchronize(Stream())); }
  static cudaStream_t Stream() {
    static const cudaStream_t stream = [] {
      cudaStream_t made;
      Check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
      return made;
    }();
    return stream;
  }
  // Runs from its making to Seconds, in the stream.
  class Clock {
   public:
    Clock() {
      for (cudaEvent_t* event : {&begin_, &end_}) Check(cudaEventCreate(event));
      Check(cudaEventRecord(begin_, Stream()));
    }
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    ~Clock() {
      for (cudaEvent_t event : {begin_, end_}) cudaEventDestroy(event);
    }
    double Seconds() const {
      float milliseconds = 0;
      Check(cudaEventRecord(end_, Stream()));
      Check(cudaEventSynchronize(end_));
      Check(cudaEventElapsedTime(&milliseconds, begin_, end_));
      return 1e-3 * static_cast<double>(milliseconds);
    }

   private:
    cudaEvent_t begin_;
    cudaEvent_t end_;
  };
  static ExecContext Context() {
    ExecContext context = ExecContext::Serial();
    context.stream = Stream();
    return context;
  }
  // Streams beside the main one, for work that does not depend on one another.
  class Side {
   public:
    explicit Side(size_t count) : streams_(count), done_(count) {
      for (cudaStream_t& stream : streams_) {
        Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      }
      Check(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming));
      for (cudaEvent_t& event : done_) {
        Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      }
    }
    Side(const Side&) = delete;
    Side& operator=(const Side&) = delete;
    ~Side() {
      for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
      for (cudaEvent_t event : done_) cudaEventDestroy(event);
      cudaEventDestroy(begun_);
    }
    cudaStream_t stream(size_t i) const { return streams_[i]; }
    // They go on behind the main one, and it behind them.
    void Fork() const {
      Check(cudaEventRecord(begun_, Stream()));
      for (cudaStream_t stream : streams_) Check(cudaStreamWaitEvent(stream, begun_, 0));
    }
    void Join() const {
      for (size_t i = 0; i < streams_.size(); ++i) {
        Check(cudaEventRecord(done_[i], streams_[i]));
        Check(cudaStreamWaitEvent(Stream(), done_[i], 0));
      }
    }

   private:
    std::vector<cudaStream_t> streams_;
    std::vector<cudaEvent_t> done_;
    cudaEvent_t begun_;
  };
  static Status NewStore(const StoreOptions& options, const DeviceOptions& device,
                         std::unique_ptr<Store>* table) {
    return NewDeviceStore(options, device, table);
  }
};

#else

class Machine {
 public:
  static constexpr bool kGpu = false;
  static bool IsHere() { return true; }
  static std::string Name() { return "the host in a GPU's place"; }
  static uint64_t FreeBytes() { return PhysicalMemoryBytes() / 4; }
  static void* Take(size_t bytes) { return std::malloc(bytes); }
  static void Give(void* memory) { std::free(memory); }
  static void CopyIn(const void* host, size_t bytes, void* to) { std::memcpy(to, host, bytes); }
  static void CopyWithin(const void* from, size_t bytes, void* to) { std::memcpy(to, from, bytes); }
  static void Zero(void* memory, size_t bytes) { std::memset(memory, 0, bytes); }
  static void Wait() {}
  class Clock {
   public:
    double Seconds() const {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    }

   private:
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };
  static ExecContext Context() { return ExecContext::Serial(); }
  class Side {
   public:
    explicit Side(size_t) {}
    void* stream(size_t) const { return nullptr; }
    void Fork() const {}
    void Join() const {}
  };
  static Status NewStore(const StoreOptions& options, const DeviceOptions& device,
                         std::unique_ptr<Store>* table) {
    return NewEmulatedDeviceStore(options, device, table);
  }
};

#endif

// An array in the machine's memory.
template <typename T>
class MachineArray {
 public:
  explicit MachineArray(size_t size)
      : size_(size), data_(static_cast<T*>(Machine::Take(size * sizeof(T)))) {
    Machine::Zero(data_, size * sizeof(T));
  }
  explicit MachineArray(const std::vector<T>& values) : MachineArray(values.size()) {
    Write(values);
  }
  MachineArray(const MachineArray&) = delete;
  MachineArray& operator=(const MachineArray&) = delete;
  ~MachineArray() { Machine::Give(data_); }

  void Write(const std::vector<T>& values) {
    Machine::CopyIn(values.data(), values.size() * sizeof(T), data_);
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  T* data_;
};

// Seconds from a queue that is empty to one that is empty again, by the clock of the machine.
template <typename Run>
double SecondsOf(const Run& run) {
  Machine::Wait();
  Machine::Clock clock;
  run();
  return clock.Seconds();
}

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_DEVICE_MACHINE_H_
