// SPDX-License-Identifier: Apache-2.0
// Reads many blocks of files at once, with as many requests under way as a disk works on side by
// side.
//
// There are two of them: one by io_uring, and one by threads that call pread, for kernels that
// refuse io_uring. These threads wait in system calls and do no other work; they are made with the
// first read that needs them.
//
// Thread safety: any thread may call Read at any time.
#ifndef TF_EMBED_CC_DISK_BLOCK_READER_H_
#define TF_EMBED_CC_DISK_BLOCK_READER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"
#include "cc/disk/file.h"

namespace tf_embed {

struct BlockRead {
  const File* file = nullptr;
  uint64_t offset = 0;
  uint32_t bytes = 0;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;

  // Takes a block that was read. `error` is 0, or the errno of the failure; `bytes` are lost when
  // it returns. May be called by several threads at once.
  class Visitor {
   public:
    virtual ~Visitor() = default;
    virtual void Visit(size_t i, const char* bytes, int error) = 0;
  };

  // Reads blocks of at most `most_bytes` each and visits each of them once. Fails if there is no
  // memory; then some may have been visited.
  virtual Status Read(const BlockRead* reads, size_t count, size_t most_bytes,
                      Visitor* visitor) = 0;

  // The most requests that were under way at once.
  uint64_t max_depth() const { return max_depth_.load(std::memory_order_relaxed); }

 protected:
  void NoteDepth(uint64_t depth) {
    uint64_t most = max_depth_.load(std::memory_order_relaxed);
    while (depth > most &&
           !max_depth_.compare_exchange_weak(most, depth, std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<uint64_t> max_depth_{0};
};

std::unique_ptr<BlockReader> NewPreadReader(Allocator* allocator);
// Null if the kernel has no io_uring or does not allow it.
std::unique_ptr<BlockReader> NewIoUringReader(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DISK_BLOCK_READER_H_
