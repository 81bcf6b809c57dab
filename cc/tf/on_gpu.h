// SPDX-License-Identifier: Apache-2.0
// Registers kernels for GPUs.
//
//     const OnGpu<EraseOp> erase("TfEmbedErase", {"table", "owners"}, KeyTypes::kWide);
//
// The named arguments are in host memory, all others in GPU memory. See gpu_tables.h.
#ifndef TF_EMBED_CC_TF_ON_GPU_H_
#define TF_EMBED_CC_TF_ON_GPU_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// The key types of a registration: all, 64-bit only, or narrower only. A device table reads 64-bit
// keys from GPU memory; narrower keys are widened on the host.
enum class KeyTypes { kAll, kWide, kNarrow };

template <class Kernel>
class OnGpu {
 public:
  OnGpu(const char* op, std::initializer_list<const char*> on_host,
        KeyTypes keys = KeyTypes::kAll) {
    namespace tf = ::tensorflow;
    tf::KernelDefBuilder builder(op);
    builder.Device(tf::DEVICE_GPU);
    for (const char* const argument : on_host) builder.HostMemory(argument);
    if (keys != KeyTypes::kAll) {
      std::vector<tf::DataType> types;
#define TF_EMBED_KEY(type, dtype, name, stored) \
  if ((sizeof(type) == sizeof(int64_t)) == (keys == KeyTypes::kWide)) types.push_back(tf::dtype);
      TF_EMBED_INTEGER_KEYS(TF_EMBED_KEY)
#undef TF_EMBED_KEY
      builder.TypeConstraint("key_dtype", types);
    }
    // The class behind REGISTER_KERNEL_BUILDER, because the macro takes no list of arguments that
    // is known at run time only.
    tf::kernel_factory::OpKernelRegistrar(
        builder.Build(), op, [](tf::OpKernelConstruction* construction) -> tf::OpKernel* {
          return new Kernel(construction);
        });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_ON_GPU_H_
