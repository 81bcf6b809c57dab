// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tf_embed {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;
constexpr size_t kWord = sizeof(uint64_t);

// tables[k][b]: the remainder of byte b followed by k zero bytes, so that the eight bytes of a word
// are looked up side by side.
using Tables = std::array<std::array<uint32_t, 256>, kWord>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit)
      rest = rest >> 1 ^ ((rest & 1) != 0 ? kReversedPolynomial : 0);
    tables[0][byte] = rest;
  }
  for (size_t zeros = 1; zeros < kWord; ++zeros) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[zeros - 1][byte];
      tables[zeros][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc, const void* bytes,
                                                               size_t size) {
  const char* at = static_cast<const char*>(bytes);
  uint64_t rest = ~crc;
  for (; size >= kWord; at += kWord, size -= kWord) {
    uint64_t word;
    std::memcpy(&word, at, kWord);
    rest = _mm_crc32_u64(rest, word);
  }
  uint32_t last = static_cast<uint32_t>(rest);
  for (; size > 0; ++at, --size) last = _mm_crc32_u8(last, static_cast<unsigned char>(*at));
  return ~last;
}
#endif

}  // namespace

uint32_t ExtendCrc32cByTable(uint32_t crc, const void* bytes, size_t size) {
  const unsigned char* at = static_cast<const unsigned char*>(bytes);
  uint32_t rest = ~crc;
  for (; size >= kWord; at += kWord, size -= kWord) {
    uint64_t word;
    std::memcpy(&word, at, kWord);
    word ^= rest;
    rest = 0;
    for (size_t i = 0; i < kWord; ++i) rest ^= kTables[kWord - 1 - i][word >> (8 * i) & 255];
  }
  for (; size > 0; ++at, --size) rest = rest >> 8 ^ kTables[0][(rest ^ *at) & 255];
  return ~rest;
}

uint32_t ExtendCrc32c(uint32_t crc, const void* bytes, size_t size) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ExtendByInstruction(crc, bytes, size);
#endif
  return ExtendCrc32cByTable(crc, bytes, size);
}

}  // namespace tf_embed
