// SPDX-License-Identifier: Apache-2.0
// A ring of reads that the kernel works on (io_uring), by its system calls alone.
//
// The ring is memory that the kernel shares: a queue of requests, whose end this side moves and
// whose beginning the kernel moves, and a queue of completions, the other way round. A side
// publishes what it wrote by a store-release of its end, and sees the other's by a load-acquire.
//
// Thread safety: one thread at a time.
#ifndef TF_EMBED_CC_DISK_IO_URING_H_
#define TF_EMBED_CC_DISK_IO_URING_H_

#include <cstddef>
#include <cstdint>

struct io_uring_sqe;
struct io_uring_cqe;

namespace tf_embed {

class IoUring {
 public:
  IoUring() = default;
  ~IoUring();
  IoUring(const IoUring&) = delete;
  IoUring& operator=(const IoUring&) = delete;

  // Makes the ring for so many requests at once, a power of two. 0 or errno.
  int Open(uint32_t entries);
  uint32_t entries() const { return entries_; }

  // Queues a read. REQUIRES: fewer than entries() requests are queued or under way.
  void QueueRead(int descriptor, void* bytes, uint32_t size, uint64_t offset, uint64_t tag);

  // Hands all queued requests to the kernel and waits for `least` completions. 0 or errno; EINTR,
  // EAGAIN and EBUSY mean that it can be called again, perhaps with fewer queued by then.
  int Enter(uint32_t least);

  // Takes one completion; false if there is none.
  bool Take(uint64_t* tag, int32_t* result);

 private:
  int descriptor_ = -1;
  uint32_t entries_ = 0;
  void* rings_ = nullptr;
  size_t rings_bytes_ = 0;
  io_uring_sqe* requests_ = nullptr;
  size_t requests_bytes_ = 0;
  io_uring_cqe* completions_ = nullptr;
  uint32_t* request_begin_ = nullptr;  // moved by the kernel
  uint32_t* request_end_ = nullptr;
  uint32_t request_mask_ = 0;
  uint32_t* completion_begin_ = nullptr;
  uint32_t* completion_end_ = nullptr;  // moved by the kernel
  uint32_t completion_mask_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DISK_IO_URING_H_
