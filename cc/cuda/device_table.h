// Makes tables whose rows are in the memory of a device: an NVIDIA GPU, or the host in its place.
// The arrays of a batch (keys, positions, rows, gradients, flags, defaults) are then in memory that
// the device reads and writes, and are ready on the stream of the ExecContext; what is exported is
// on the host. Free of CUDA types.
#ifndef TF_EMBED_CC_CUDA_DEVICE_TABLE_H_
#define TF_EMBED_CC_CUDA_DEVICE_TABLE_H_

#include <cstdint>
#include <memory>

#include "cc/core/status.h"
#include "cc/core/table.h"

namespace tf_embed {

struct DeviceOptions {
  int device = 0;  // the GPU's number
  // What index and rows may take. A table that would need more refuses new keys and counts them
  // (TableStats::refused).
  uint64_t max_bytes = UINT64_MAX;
};

// Makes a table on a GPU. kUnavailable where this build has no GPU support, or the machine no GPU;
// kInvalidArgument for what such a table does not do yet: bounds on rows, expiry, admission and
// sinks of evicted rows.
Status NewDeviceTable(const TableOptions& options, const DeviceOptions& device,
                      std::unique_ptr<Table>* table);

// The same table with the host for a device, whose memory is the allocator of the options and whose
// threads are the caller's. For tests, and to find out what a table on a GPU would do.
Status NewDeviceTableOnHost(const TableOptions& options, const DeviceOptions& device,
                            std::unique_ptr<Table>* table);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CUDA_DEVICE_TABLE_H_
