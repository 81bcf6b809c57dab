// SPDX-License-Identifier: Apache-2.0
// Messages between workers: for each worker a row of 32-bit words, all rows of the same length, in
// which parts follow each other. A part holds keys, or rows, of one table.
//
// Bytes. A part begins at a word. Fixed-size rows lie side by side. A part of strings has the
// length of each, in a word, and then their bytes, side by side. The rest of the row is not read.
#ifndef TF_EMBED_CC_CORE_EXCHANGE_MESSAGE_H_
#define TF_EMBED_CC_CORE_EXCHANGE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "cc/core/base/status.h"
#include "cc/core/batch/string_batch.h"

namespace tf_embed {

// The encoding of numbers in a message.
enum class WireType : uint8_t {
  kAsTheyAre,
  kBFloat16,  // float32 rounded to the nearest bfloat16
  kHalf,      // float32 rounded to the nearest float16; above 65504 it is infinite
};

constexpr size_t kWordBytes = 4;
constexpr uint64_t WordsOfBytes(uint64_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

// Bytes that a row takes in a message.
constexpr size_t WireRowBytes(size_t row_bytes, WireType wire) {
  return wire == WireType::kAsTheyAre ? row_bytes : row_bytes / 2;
}

// Words of a part of strings.
uint64_t WordsOfStrings(const StringBatch& strings, size_t begin, size_t end);

// Copies rows of `row_bytes` to a message, or back. Bytes that fill up the last word are zeros.
void PackRows(const char* rows, size_t count, size_t row_bytes, WireType wire, char* message);
void UnpackRows(const char* message, size_t count, size_t row_bytes, WireType wire, char* rows);

void PackStrings(const StringBatch& strings, size_t begin, size_t end, char* message);
// Calls `take(i, string)` for each of `count` strings, and returns how many words they took. Fails
// if they do not lie within `most_words`.
Status UnpackStrings(const char* message, uint64_t most_words, size_t count,
                     const std::function<void(size_t i, std::string_view string)>& take,
                     uint64_t* words);

// Lengths of messages, in words. TensorFlow never forgets which shape was used under which key of a
// collective. So there is a bounded number of lengths, kNumCapacities, each with its own keys.
// There are eight to an octave, so that a message is at most an eighth longer than it needs to be.
struct Capacity {
  uint64_t words;
  int32_t number;  // from 0, less than kNumCapacities
};
constexpr uint64_t kMinCapacityWords = 64;
constexpr uint64_t kMaxCapacityWords = uint64_t{1} << 31;
constexpr int32_t kNumCapacities = 256;
Capacity CapacityFor(uint64_t words);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_EXCHANGE_MESSAGE_H_
