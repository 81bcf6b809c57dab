// SPDX-License-Identifier: Apache-2.0
// An allocator that counts live blocks, checks freed blocks, fills memory with garbage before and
// after its use, and fails on demand. Thread-safe.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_FAILING_ALLOCATOR_H_
#define TF_EMBED_TESTS_CC_SUPPORT_FAILING_ALLOCATOR_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cc/core/base/allocator.h"
#include "gtest/gtest.h"

namespace tf_embed {

class FailingAllocator final : public Allocator {
 public:
  ~FailingAllocator() override { EXPECT_EQ(0u, live_blocks_) << "blocks that were not freed"; }

  // Lets `count` allocations pass and refuses the next allocation, or all later allocations.
  void FailAfter(int64_t count, bool for_good = false) {
    std::lock_guard<std::mutex> lock(mutex_);
    passes_ = count;
    for_good_ = for_good;
  }
  void NeverFail() { FailAfter(INT64_MAX); }

  void* Allocate(size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (passes_ <= 0) {
      if (!for_good_) passes_ = INT64_MAX;
      return nullptr;
    }
    --passes_;
    const size_t rounded = (bytes / kLine + 1) * kLine;
    char* const memory = static_cast<char*>(std::aligned_alloc(kLine, kLine + rounded));
    std::memcpy(memory, &bytes, sizeof(bytes));
    std::memset(memory + kLine, 0xa5, rounded);
    ++live_blocks_;
    live_bytes_ += bytes;
    return memory + kLine;
  }

  void Deallocate(void* memory, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    char* const block = static_cast<char*>(memory) - kLine;
    size_t allocated;
    std::memcpy(&allocated, block, sizeof(allocated));
    EXPECT_EQ(allocated, bytes) << "not as it was allocated, or freed twice";
    --live_blocks_;
    live_bytes_ -= bytes;
    std::memset(block, 0xdd, kLine + bytes);
    std::free(block);
  }

  size_t live_bytes() const { return live_bytes_; }
  size_t live_blocks() const { return live_blocks_; }

 private:
  static constexpr size_t kLine = 64;  // a line before each block, with its size

  std::mutex mutex_;
  size_t live_blocks_ = 0;
  size_t live_bytes_ = 0;
  int64_t passes_ = INT64_MAX;
  bool for_good_ = false;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_FAILING_ALLOCATOR_H_
