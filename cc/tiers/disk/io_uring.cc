// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/io_uring.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tf_embed {

// IORING_OP_READ needs Linux 5.6. The single mapping of both queues needs 5.4.
int IoUring::Open(uint32_t entries) {
  io_uring_params parameters = {};
  const long descriptor = syscall(__NR_io_uring_setup, entries, &parameters);
  if (descriptor < 0) return errno;
  descriptor_ = static_cast<int>(descriptor);
  if ((parameters.features & IORING_FEAT_SINGLE_MMAP) == 0 ||
      (parameters.features & IORING_FEAT_NODROP) == 0) {
    return ENOSYS;
  }
  entries_ = parameters.sq_entries;
  rings_bytes_ =
      std::max<size_t>(parameters.sq_off.array + parameters.sq_entries * sizeof(uint32_t),
                       parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
  void* mapped = mmap(nullptr, rings_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      descriptor_, IORING_OFF_SQ_RING);
  if (mapped == MAP_FAILED) return errno;
  rings_ = mapped;
  requests_bytes_ = parameters.sq_entries * sizeof(io_uring_sqe);
  mapped = mmap(nullptr, requests_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                descriptor_, IORING_OFF_SQES);
  if (mapped == MAP_FAILED) return errno;
  requests_ = static_cast<io_uring_sqe*>(mapped);
  // A child of fork() must not use it.
  madvise(rings_, rings_bytes_, MADV_DONTFORK);
  madvise(requests_, requests_bytes_, MADV_DONTFORK);

  char* const base = static_cast<char*>(rings_);
  const auto number = [&](uint32_t offset) { return reinterpret_cast<uint32_t*>(base + offset); };
  request_begin_ = number(parameters.sq_off.head);
  request_end_ = number(parameters.sq_off.tail);
  request_mask_ = *number(parameters.sq_off.ring_mask);
  completion_begin_ = number(parameters.cq_off.head);
  completion_end_ = number(parameters.cq_off.tail);
  completion_mask_ = *number(parameters.cq_off.ring_mask);
  completions_ = reinterpret_cast<io_uring_cqe*>(base + parameters.cq_off.cqes);
  // The queue holds request indices; each entry keeps its own permanently.
  uint32_t* const array = number(parameters.sq_off.array);
  for (uint32_t i = 0; i < parameters.sq_entries; ++i) array[i] = i;
  return 0;
}

IoUring::~IoUring() {
  if (requests_ != nullptr) munmap(requests_, requests_bytes_);
  // None of these calls can fail for existing mappings and an open descriptor.
  if (rings_ != nullptr) munmap(rings_, rings_bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

void IoUring::QueueRead(int descriptor, void* bytes, uint32_t size, uint64_t offset, uint64_t tag) {
  const uint32_t end = *request_end_;  // moved only by this side
  io_uring_sqe* const request = &requests_[end & request_mask_];
  std::memset(request, 0, sizeof(*request));
  request->opcode = IORING_OP_READ;
  request->fd = descriptor;
  request->addr = reinterpret_cast<uint64_t>(bytes);
  request->len = size;
  request->off = offset;
  request->user_data = tag;
  __atomic_store_n(request_end_, end + 1, __ATOMIC_RELEASE);
}

int IoUring::Enter(uint32_t least) {
  const uint32_t queued = *request_end_ - __atomic_load_n(request_begin_, __ATOMIC_ACQUIRE);
  const long done = syscall(__NR_io_uring_enter, descriptor_, queued, least, IORING_ENTER_GETEVENTS,
                            nullptr, size_t{0});
  return done < 0 ? errno : 0;
}

bool IoUring::Take(uint64_t* tag, int32_t* result) {
  const uint32_t begin = *completion_begin_;  // moved only by this side
  if (begin == __atomic_load_n(completion_end_, __ATOMIC_ACQUIRE)) return false;
  const io_uring_cqe& completion = completions_[begin & completion_mask_];
  *tag = completion.user_data;
  *result = completion.res;
  __atomic_store_n(completion_begin_, begin + 1, __ATOMIC_RELEASE);
  return true;
}

}  // namespace tf_embed
