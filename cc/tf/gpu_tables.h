// SPDX-License-Identifier: Apache-2.0
// Tables on the GPUs of TensorFlow.
//
// An op that is registered for a GPU has its arrays in the GPU's memory (HostMemory says which are
// not), and hands them, with its stream, to TableResource::device_shard. All others have them on
// the host, and go by TableResource::shard as everywhere.
//
// With TF_EMBED_EMULATE_GPU=1 in the environment the host stands in for every GPU (EmulatesDevice).
// With a device of TensorFlow that calls itself a GPU and is the host too (tests/cc/gpu) all of
// this runs where no GPU is.
#ifndef TF_EMBED_CC_TF_GPU_TABLES_H_
#define TF_EMBED_CC_TF_GPU_TABLES_H_

#include <memory>

#include "absl/status/status.h"
#include "cc/core/table/table.h"
#include "cc/device/copying_table.h"
#include "cc/device/device_key_sums.h"
#include "cc/device/device_split.h"
#include "cc/device/device_table.h"
#include "cc/stores/new_store.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Whether tables can be on GPUs: as this library was built, and by what CUDA finds on this machine.
bool HasGpuTables();

// The number, among those of the machine, of the GPU that an op is made for.
int GpuOf(tensorflow::OpKernelConstruction* construction);

// What TableResource::device_shard gives.
inline DeviceTable* OnDevice(Table* device_shard) {
  return static_cast<DeviceTable*>(device_shard);
}

// The memory of a GPU that has such tables.
inline DeviceMemory* MemoryOfGpu(int gpu) { return MemoryOfStores(gpu); }

// The same status; if it says that there is no memory, also what leaves tables on a GPU more.
absl::Status WithMemoryAdvice(absl::Status status);

// Spreads keys in the memory of that GPU over tables there.
std::unique_ptr<DeviceSplit> NewGpuSplit(int gpu);

// Sums the gradients of equal keys in the memory of that GPU.
std::unique_ptr<DeviceKeySums> NewGpuKeySums(int gpu);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_GPU_TABLES_H_
