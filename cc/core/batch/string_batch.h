// SPDX-License-Identifier: Apache-2.0
// The strings of a batch, which are bytes of any content, and their hash.
#ifndef TF_EMBED_CC_CORE_BATCH_STRING_BATCH_H_
#define TF_EMBED_CC_CORE_BATCH_STRING_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"

namespace tf_embed {

// The strings of a batch, in whatever type the caller has. They outlive it.
struct StringBatch {
  const void* strings = nullptr;
  size_t size = 0;
  std::string_view (*string)(const void* strings, size_t i) = nullptr;

  std::string_view operator[](size_t i) const { return string(strings, i); }
};

// Approximate nanoseconds to hash or look up a string, by which a thread pool splits work.
inline constexpr size_t kStringCost = 150;

// 64 bits of a string: blocks of 8 bytes, the last filled up with zeros, are chained through Mix64
// as CBC-MAC chains them through a cipher (Bellare, Kilian and Rogaway, "The security of the cipher
// block chaining message authentication code", 1994), from a start that includes the length. The
// same on every little-endian machine.
inline uint64_t HashString(std::string_view string, uint64_t seed) {
  uint64_t state = Mix64(seed + (string.size() + 1) * kGolden64);
  const char* at = string.data();
  size_t left = string.size();
  uint64_t block = 0;
  for (; left >= sizeof(block); at += sizeof(block), left -= sizeof(block)) {
    std::memcpy(&block, at, sizeof(block));
    state = Mix64(state ^ block);
  }
  if (left == 0) return state;
  block = 0;
  std::memcpy(&block, at, left);
  return Mix64(state ^ block);
}

// Gives each string of a batch the position of the first string that equals it.
Status NumberDistinctStrings(const ExecContext& context, const StringBatch& strings,
                             Allocator* allocator, int64_t* numbers);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_STRING_BATCH_H_
