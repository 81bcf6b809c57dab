// SPDX-License-Identifier: Apache-2.0
// Helpers for all targets.
#ifndef TF_EMBED_TESTS_CC_FUZZ_TOOLS_H_
#define TF_EMBED_TESTS_CC_FUZZ_TOOLS_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/files/byte_stream.h"
#include "cc/core/files/crc32c.h"

namespace tf_embed::fuzz {

// Ends the process if a reader breaks a promise.
inline void Require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "Broken: %s\n", promise);
  std::abort();
}

// Host memory. The bytes in use must never exceed a bound.
class BoundedAllocator final : public Allocator {
 public:
  explicit BoundedAllocator(size_t most_bytes) : most_bytes_(most_bytes) {}

  void* Allocate(size_t bytes) override {
    used_ += bytes;
    Require(bytes <= most_bytes_ && used_ <= most_bytes_, "memory is in proportion to the bytes");
    return HostAllocator()->Allocate(bytes);
  }
  void Deallocate(void* memory, size_t bytes) override {
    used_ -= bytes;
    HostAllocator()->Deallocate(memory, bytes);
  }

 private:
  const size_t most_bytes_;
  size_t used_ = 0;
};

// A file in memory.
class MemoryFile final : public ByteSink, public ByteSource {
 public:
  MemoryFile() = default;
  explicit MemoryFile(std::string_view bytes) : bytes_(bytes) {}

  Status Append(const void* bytes, size_t size) override {
    bytes_.append(static_cast<const char*>(bytes), size);
    return Status();
  }
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  Status Read(uint64_t offset, size_t size, void* bytes) const override {
    Require(offset <= bytes_.size() && size <= bytes_.size() - offset, "reads lie in the file");
    // The destination may be null if nothing is read.
    if (size > 0) std::memcpy(bytes, bytes_.data() + offset, size);
    return Status();
  }
  const std::string& bytes() const { return bytes_; }

 private:
  const std::string name_ = "file";
  std::string bytes_;
};

template <typename T>
T Load(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

template <typename T>
void StoreAt(T value, size_t offset, std::string* bytes) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}

// The bytes as numbers. An incomplete number at the end is dropped.
inline std::vector<int64_t> NumbersOf(std::string_view bytes) {
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(int64_t));
  return numbers;
}

inline std::string BytesOf(const std::vector<int64_t>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()),
                     numbers.size() * sizeof(int64_t));
}

}  // namespace tf_embed::fuzz

#endif  // TF_EMBED_TESTS_CC_FUZZ_TOOLS_H_
