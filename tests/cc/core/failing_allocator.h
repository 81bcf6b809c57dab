// An allocator that counts what is out, checks what comes back, fills memory with rubbish before
// and after its use, and fails when told to. Thread-safe.
#ifndef TF_EMBED_TESTS_CC_CORE_FAILING_ALLOCATOR_H_
#define TF_EMBED_TESTS_CC_CORE_FAILING_ALLOCATOR_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "cc/core/allocator.h"
#include "gtest/gtest.h"

namespace tf_embed {

class FailingAllocator final : public Allocator {
 public:
  ~FailingAllocator() override { EXPECT_EQ(0u, blocks_.size()) << "blocks that were not freed"; }

  // Lets `count` allocations pass and refuses the next one, or all from there on.
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
      ++failures_;
      return nullptr;
    }
    --passes_;
    const size_t rounded = (bytes / 64 + 1) * 64;
    void* const memory = std::aligned_alloc(64, rounded);
    std::memset(memory, 0xa5, rounded);
    blocks_[memory] = bytes;
    live_bytes_ += bytes;
    return memory;
  }

  void Deallocate(void* memory, size_t bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(memory);
    ASSERT_NE(blocks_.end(), block) << "not a block of this allocator";
    EXPECT_EQ(block->second, bytes);
    live_bytes_ -= block->second;
    std::memset(memory, 0xdd, block->second);
    std::free(memory);
    blocks_.erase(block);
  }

  size_t live_bytes() const { return live_bytes_; }
  size_t live_blocks() const { return blocks_.size(); }
  int failures() const { return failures_; }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> blocks_;
  size_t live_bytes_ = 0;
  int64_t passes_ = INT64_MAX;
  bool for_good_ = false;
  int failures_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_CORE_FAILING_ALLOCATOR_H_
