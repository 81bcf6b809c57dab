// SPDX-License-Identifier: Apache-2.0
// An io_uring for reads, without liburing.
//
// The ring is memory shared with the kernel. This side moves the end of the request queue, and the
// kernel moves its beginning; the completion queue is the reverse. Each side publishes with a
// store-release of its end, and reads the other end with a load-acquire.
//
// Not thread-safe.
#ifndef TF_EMBED_CC_TIERS_DISK_IO_URING_H_
#define TF_EMBED_CC_TIERS_DISK_IO_URING_H_

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

  // Creates the ring for `entries` concurrent requests, a power of two. Returns 0 or an errno.
  int Open(uint32_t entries);
  uint32_t entries() const { return entries_; }

  // Queues a read. REQUIRES: fewer than entries() requests are queued or in flight.
  void QueueRead(int descriptor, void* bytes, uint32_t size, uint64_t offset, uint64_t tag);

  // Submits all queued requests and waits for `least` completions. Returns 0 or an errno. After
  // EINTR, EAGAIN or EBUSY the call can be repeated; some requests may have been submitted.
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

#endif  // TF_EMBED_CC_TIERS_DISK_IO_URING_H_
