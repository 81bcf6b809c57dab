// SPDX-License-Identifier: Apache-2.0
// Reads many blocks of files in parallel, at the queue depth that a disk needs.
//
// There are two implementations: io_uring, and threads that call pread for kernels without
// io_uring. The threads only wait in system calls, and start with the first read that needs them.
//
// Thread safety: any thread may call Read at any time.
#ifndef TF_EMBED_CC_TIERS_DISK_BLOCK_READER_H_
#define TF_EMBED_CC_TIERS_DISK_BLOCK_READER_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"
#include "cc/tiers/disk/file.h"

namespace tf_embed {

struct BlockRead {
  const File* file = nullptr;
  uint64_t offset = 0;
  uint32_t bytes = 0;
};

class BlockReader {
 public:
  virtual ~BlockReader() = default;

  // Receives a block. `error` is 0 or an errno. `bytes` are valid only during the call. Concurrent
  // calls are possible.
  class Visitor {
   public:
    virtual ~Visitor() = default;
    virtual void Visit(size_t i, const char* bytes, int error) = 0;
  };

  // Reads blocks of at most `most_bytes` each, and visits each of them once. Fails if memory is
  // short, possibly after some visits.
  virtual Status Read(const BlockRead* reads, size_t count, size_t most_bytes,
                      Visitor* visitor) = 0;

  // The highest queue depth so far.
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
// Null if io_uring is missing or not permitted.
std::unique_ptr<BlockReader> NewIoUringReader(Allocator* allocator);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_BLOCK_READER_H_
