// SPDX-License-Identifier: Apache-2.0
// Registers the kernels of an op: one for the CPU, and, given lists of arguments, others for GPUs.
//
//     const Kernels<EraseOp> erase("TfEmbedErase", {"table", "owners"}, {"keys"});
//
// On a GPU the arguments of the first list are in host memory, all others in GPU memory. A device
// table reads 64-bit keys from GPU memory, and narrower keys are widened on the host. So for the
// latter the arguments of a second list are in host memory too. See gpu_tables.h. The keys of many
// tables, whose types are a list attribute, must all be wide or all be narrow.
#ifndef TF_EMBED_CC_TF_KERNELS_H_
#define TF_EMBED_CC_TF_KERNELS_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

template <class Kernel>
class Kernels {
 public:
  using Names = std::initializer_list<const char*>;

  explicit Kernels(const char* op) { Register(op, tensorflow::DEVICE_CPU, {}); }
  Kernels(const char* op, Names on_host) : Kernels(op) {
    Register(op, tensorflow::DEVICE_GPU, {on_host});
  }
  Kernels(const char* op, Names on_host, Names for_narrow_keys, const char* key_types = "key_dtype")
      : Kernels(op) {
    std::vector<tensorflow::DataType> wide, narrow;
#define TF_EMBED_KEY(type, dtype, name, stored) \
  (sizeof(type) == sizeof(int64_t) ? wide : narrow).push_back(tensorflow::dtype);
    TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
    Register(op, tensorflow::DEVICE_GPU, {on_host}, key_types, wide);
    Register(op, tensorflow::DEVICE_GPU, {on_host, for_narrow_keys}, key_types, narrow);
  }

 private:
  static void Register(const char* op, const char* device, std::initializer_list<Names> on_host,
                       const char* attribute = nullptr,
                       const std::vector<tensorflow::DataType>& types = {}) {
    tensorflow::KernelDefBuilder builder(op);
    builder.Device(device);
    for (const Names& names : on_host) {
      for (const char* const argument : names) builder.HostMemory(argument);
    }
    if (attribute != nullptr) builder.TypeConstraint(attribute, types);
    // The class behind REGISTER_KERNEL_BUILDER, because the macro takes no list of arguments that
    // is known at run time only.
    tensorflow::kernel_factory::OpKernelRegistrar(
        builder.Build(), op,
        [](tensorflow::OpKernelConstruction* construction) -> tensorflow::OpKernel* {
          return new Kernel(construction);
        });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_KERNELS_H_
