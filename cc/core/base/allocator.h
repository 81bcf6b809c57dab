// SPDX-License-Identifier: Apache-2.0
// The allocator of the engine's memory: rows, index and scratch. An interface, so that tests can
// make allocations fail and other kinds of memory can be added. Thread-safe.
#ifndef TF_EMBED_CC_CORE_BASE_ALLOCATOR_H_
#define TF_EMBED_CC_CORE_BASE_ALLOCATOR_H_

#include <cstddef>
#include <utility>

#include "cc/core/base/status.h"

namespace tf_embed {

class Allocator {
 public:
  virtual ~Allocator() = default;

  // Returns `bytes` of memory with unspecified content, aligned to a cache line, or nullptr.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Deallocate(void* memory, size_t bytes) = 0;
};

// The process's memory. Large blocks are mapped separately, on huge pages if the system allows it
// (random rows then cost 1.1 to 1.7 times less), and return to the system when they are freed.
Allocator* HostAllocator();

// The memory of this machine. The system may grant more, and end the process when it uses it.
size_t PhysicalMemoryBytes();

// An array of trivial values that an Allocator owns. Move-only.
template <typename T>
class Buffer {
 public:
  explicit Buffer(Allocator* allocator) : allocator_(allocator) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) allocator_->Deallocate(data_, size_ * sizeof(T));
  }

  // Makes room for at least `size` values. The contents of the buffer are lost.
  Status Resize(size_t size) {
    if (size <= size_) return Status();
    Buffer larger(allocator_);
    larger.data_ = static_cast<T*>(allocator_->Allocate(size * sizeof(T)));
    if (larger.data_ == nullptr) {
      return Status::ResourceExhausted([size] {
        return "No memory for " + std::to_string(size * sizeof(T)) + " bytes of scratch space.";
      });
    }
    larger.size_ = size;
    *this = std::move(larger);
    return Status();
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  Allocator* allocator_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_ALLOCATOR_H_
