// Registers kernels for GPUs.
//
//     const OnGpu<EraseOp> erase("TfEmbedErase", {"table", "owners"}, KeyTypes::kWide);
//
// The arguments that are named are in the host's memory, all others in the GPU's; gpu_tables.h says
// what a kernel does with either.
#ifndef TF_EMBED_CC_TF_ON_GPU_H_
#define TF_EMBED_CC_TF_ON_GPU_H_

#include <initializer_list>

#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Keys that a kernel is registered for: all, or those of 64 or of 32 bits. A device's table takes
// the former from the GPU's memory; the latter are widened on the host.
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
    if (keys == KeyTypes::kWide) {
      builder.TypeConstraint("key_dtype", {tf::DT_INT64, tf::DT_UINT64});
    } else if (keys == KeyTypes::kNarrow) {
      builder.TypeConstraint("key_dtype", {tf::DT_INT32, tf::DT_UINT32});
    }
    tf::kernel_factory::OpKernelRegistrar(
        builder.Build(), op, [](tf::OpKernelConstruction* construction) -> tf::OpKernel* {
          return new Kernel(construction);
        });
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_ON_GPU_H_
