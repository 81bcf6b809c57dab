// SPDX-License-Identifier: Apache-2.0
// Interfaces to write and read files. The core knows no file system: kernels implement these by
// TensorFlow's file system, tests in memory.
#ifndef TF_EMBED_CC_CORE_FILES_BYTE_STREAM_H_
#define TF_EMBED_CC_CORE_FILES_BYTE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/core/base/status.h"

namespace tf_embed {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status Append(const void* bytes, size_t size) = 0;
};

// Bytes that do not change. Any thread may read.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // for messages
  virtual uint64_t size() const = 0;
  // Reads exactly `size` bytes, or fails.
  virtual Status Read(uint64_t offset, size_t size, void* bytes) const = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_FILES_BYTE_STREAM_H_
