// SPDX-License-Identifier: Apache-2.0
// The GPU that a thread's CUDA calls go to. For device_store.cu.
#ifndef TF_EMBED_CC_STORES_DEVICE_CURRENT_GPU_H_
#define TF_EMBED_CC_STORES_DEVICE_CURRENT_GPU_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <mutex>

namespace tf_embed {

// Contexts of the driver. Its functions are found at run time, because a program that links the
// driver does not start on a machine without a driver.
class DriverContexts {
 public:
  static DriverContexts& Get() {
    static DriverContexts contexts;
    return contexts;
  }

  // The primary context of a GPU, which the whole process shares. The first call makes it, and it
  // is kept. Null if the driver fails.
  CUcontext PrimaryOf(int device) {
    if (!found_) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    CUcontext& primary = primaries_[device];
    CUdevice handle;
    if (primary == nullptr && (device_get_(&handle, device) != CUDA_SUCCESS ||
                               retain_(&primary, handle) != CUDA_SUCCESS)) {
      primary = nullptr;
    }
    return primary;
  }
  // Makes `context` the thread's context, or none if it is null. `*before` receives the previous
  // context.
  bool Exchange(CUcontext context, CUcontext* before) const {
    return get_current_(before) == CUDA_SUCCESS && Set(context);
  }
  bool Set(CUcontext context) const { return set_current_(context) == CUDA_SUCCESS; }

 private:
  DriverContexts() {
    found_ = Find("cuDeviceGet", &device_get_) && Find("cuDevicePrimaryCtxRetain", &retain_) &&
             Find("cuCtxGetCurrent", &get_current_) && Find("cuCtxSetCurrent", &set_current_);
  }

  template <typename Function>
  static bool Find(const char* name, Function* function) {
    void* found = nullptr;
    // CUDA 13 deprecates the function without a version, and the first releases of CUDA 12 lack the
    // function with a version.
#if CUDART_VERSION >= 12050
    constexpr unsigned kVersion = 7000;  // the version of the newest of these functions
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault);
#else
    const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault);
#endif
    if (error != cudaSuccess) (void)cudaGetLastError();  // the result says it
    *function = reinterpret_cast<Function>(found);
    return error == cudaSuccess && found != nullptr;
  }

  bool found_ = false;
  CUresult (*device_get_)(CUdevice*, int) = nullptr;
  CUresult (*retain_)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get_current_)(CUcontext*) = nullptr;
  CUresult (*set_current_)(CUcontext) = nullptr;
  std::mutex mutex_;
  std::map<int, CUcontext> primaries_;
};

// Makes a GPU the thread's current GPU for the lifetime of this object, then restores the previous
// GPU. Calls with a stream need it too, because a null stream means the default stream of the
// current GPU. A scope inside a scope of the same GPU calls nothing.
// REQUIRES: code in between that makes another GPU current restores this one.
//
// Uses contexts and not cudaSetDevice: for a thread that has used no GPU yet, the previous GPU is
// GPU 0. cudaSetDevice(0) would make a context there, of some hundred megabytes, although the store
// is on another GPU.
class OnGpu {
 public:
  explicit OnGpu(int device) : outer_(here_) {
    if (outer_ == device) return;
    here_ = device;
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == device) return;
    DriverContexts& contexts = DriverContexts::Get();
    const CUcontext primary = contexts.PrimaryOf(device);
    if (primary != nullptr && contexts.Exchange(primary, &context_)) {
      restores_ = Restores::kContext;
    } else {
      cudaSetDevice(device);
      restores_ = Restores::kDevice;
    }
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() {
    here_ = outer_;
    if (restores_ == Restores::kContext) DriverContexts::Get().Set(context_);
    if (restores_ == Restores::kDevice) cudaSetDevice(before_);
  }

 private:
  enum class Restores { kNothing, kContext, kDevice };

  static inline thread_local int here_ = -1;  // the GPU of the innermost scope; -1: no scope
  const int outer_;
  Restores restores_ = Restores::kNothing;
  int before_ = 0;
  CUcontext context_ = nullptr;  // the thread's previous context; null: none
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_CURRENT_GPU_H_
