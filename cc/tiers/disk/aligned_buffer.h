// SPDX-License-Identifier: Apache-2.0
// Page-aligned memory for direct I/O.
#ifndef TF_EMBED_CC_TIERS_DISK_ALIGNED_BUFFER_H_
#define TF_EMBED_CC_TIERS_DISK_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"

namespace tf_embed {

class AlignedBuffer {
 public:
  static constexpr size_t kPage = 4096;

  explicit AlignedBuffer(Allocator* allocator) : buffer_(allocator) {}

  // Resizes to at least `size` bytes. Discards the content.
  Status Resize(size_t size) {
    if (size <= size_) return Status();
    TF_EMBED_RETURN_IF_ERROR(buffer_.Resize(size + kPage));
    size_ = size;
    return Status();
  }

  char* data() {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(buffer_.data());
    return buffer_.data() + ((begin + kPage - 1) / kPage * kPage - begin);
  }
  size_t size() const { return size_; }
  size_t bytes() const { return buffer_.size(); }

 private:
  Buffer<char> buffer_;
  size_t size_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_ALIGNED_BUFFER_H_
