// SPDX-License-Identifier: Apache-2.0
// Texts, byte strings of any content, as a batch brings them, and their hash.
#ifndef TF_EMBED_CC_CORE_BATCH_TEXT_BATCH_H_
#define TF_EMBED_CC_CORE_BATCH_TEXT_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"

namespace tf_embed {

// The texts of a batch, in whatever strings the caller has. They outlive it.
struct TextBatch {
  const void* strings = nullptr;
  size_t size = 0;
  std::string_view (*text)(const void* strings, size_t i) = nullptr;

  std::string_view operator[](size_t i) const { return text(strings, i); }
};

// Rough nanoseconds that it takes to hash a text and to go where it lies, by which a thread pool
// splits work.
inline constexpr size_t kTextCost = 150;

// 64 bits of a text: blocks of 8 bytes, the last one filled up with zeros, are chained through
// Mix64 as CBC-MAC chains them through a cipher (Bellare, Kilian and Rogaway, "The security of the
// cipher block chaining message authentication code", 1994), from a start that has the length. The
// same on every machine whose bytes are in little-endian order.
inline uint64_t HashText(std::string_view text, uint64_t seed) {
  uint64_t state = Mix64(seed + (text.size() + 1) * kGolden64);
  const char* at = text.data();
  size_t left = text.size();
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

// Gives each text of a batch the number of the first one that equals it: where that stands.
Status NumberTexts(const ExecContext& context, const TextBatch& texts, Allocator* allocator,
                   int64_t* numbers);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_TEXT_BATCH_H_
