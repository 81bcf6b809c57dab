// SPDX-License-Identifier: Apache-2.0
// Registers kernels for GPUs.
//
//     const OnGpu<EraseOp> erase("TfEmbedErase", {"table", "owners"}, KeyTypes::kWide);
//
// The arguments that are named are in the host's memory, all others in the GPU's; gpu_tables.h says
// what a kernel does with either.
#ifndef TF_EMBED_CC_TF_ON_GPU_H_
#define TF_EMBED_CC_TF_ON_GPU_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "cc/ops/key_types.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Keys that a kernel is registered for: all, or those of 64 bits or of fewer. A device's table
// takes the former from the GPU's memory; the latter are widened on the host.
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
    tf::kernel_factory::OpKernelRegistrar(
        builder.Build(), op, [](tf::OpKernelConstruction* construction) -> tf::OpKernel* {
          return new Kernel(construction);
        });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_ON_GPU_H_
