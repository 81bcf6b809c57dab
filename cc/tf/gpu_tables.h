// SPDX-License-Identifier: Apache-2.0
// Tables on TensorFlow's GPUs.
//
// A kernel registered for a GPU has its arrays in GPU memory, except the HostMemory arguments. It
// passes them, with its stream, as TableKeys::on_device. Other kernels have host arrays.
//
// TF_EMBED_EMULATE_GPU=1 makes the host emulate every GPU (EmulatesDevice). Together with the
// host-backed GPU device of tests/cc/gpu, all of this runs on a machine without a GPU.
#ifndef TF_EMBED_CC_TF_GPU_TABLES_H_
#define TF_EMBED_CC_TF_GPU_TABLES_H_

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/pooling/pooled_find.h"
#include "cc/core/table/table.h"
#include "cc/stores/device/device_key_sums.h"
#include "cc/stores/device/device_split.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"
#include "cc/stores/new_store.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// The CUDA device number of the GPU that runs the op.
int GpuOf(tensorflow::OpKernelConstruction* construction);

// The first store of a table on a GPU, for arrays there.
inline DeviceStore* OnDevice(const Table& table) {
  return static_cast<DeviceStore*>(table.shard(0).on_device);
}

// A pooled lookup in tables on a GPU, where `finds[i]` is of `tables[i]`: in each tiered table
// separately, and in all others together.
absl::Status FindPooledOnGpu(const ExecContext& exec, const std::vector<const Table*>& tables,
                             const std::vector<PooledFind>& finds);

// Calls work(context, i) for each i in [0, count), verbs of tables on a GPU that the caller holds,
// and makes their launches together.
absl::Status TogetherOnGpu(const ExecContext& exec, size_t count,
                           absl::FunctionRef<Status(const ExecContext& exec, size_t i)> work);

// Adds advice on saving GPU memory to an out-of-memory status; returns others unchanged.
absl::Status WithMemoryAdvice(absl::Status status);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_GPU_TABLES_H_
