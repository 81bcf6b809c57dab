// SPDX-License-Identifier: Apache-2.0
#include "cc/core/exchange/message.h"

#include <algorithm>
#include <cstring>

#include "cc/core/base/half.h"

namespace tf_embed {
namespace {

template <typename Narrow>
void PackNarrow(const char* rows, size_t numbers, char* message) {
  for (size_t i = 0; i < numbers; ++i) {
    float number;
    std::memcpy(&number, rows + i * sizeof(number), sizeof(number));
    const Narrow narrow = Narrow::FromFloat(number);
    std::memcpy(message + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
}

template <typename Narrow>
void UnpackNarrow(const char* message, size_t numbers, char* rows) {
  for (size_t i = 0; i < numbers; ++i) {
    Narrow narrow;
    std::memcpy(&narrow, message + i * sizeof(narrow), sizeof(narrow));
    const float number = narrow.ToFloat();
    std::memcpy(rows + i * sizeof(number), &number, sizeof(number));
  }
}

// Fills the last word of a part of `bytes` bytes with zeros.
void FillWord(uint64_t bytes, char* part) {
  std::memset(part + bytes, 0, WordsOfBytes(bytes) * kWordBytes - bytes);
}

}  // namespace

uint64_t WordsOfStrings(const StringBatch& strings, size_t begin, size_t end) {
  uint64_t bytes = (end - begin) * kWordBytes;
  for (size_t i = begin; i < end; ++i) bytes += strings[i].size();
  return WordsOfBytes(bytes);
}

void PackRows(const char* rows, size_t count, size_t row_bytes, WireType wire, char* message) {
  const size_t bytes = count * row_bytes;
  if (bytes == 0) return;
  switch (wire) {
    case WireType::kAsTheyAre:
      std::memcpy(message, rows, bytes);
      break;
    case WireType::kBFloat16:
      PackNarrow<BFloat16>(rows, bytes / sizeof(float), message);
      break;
    case WireType::kHalf:
      PackNarrow<Half>(rows, bytes / sizeof(float), message);
      break;
  }
  FillWord(count * WireRowBytes(row_bytes, wire), message);
}

void UnpackRows(const char* message, size_t count, size_t row_bytes, WireType wire, char* rows) {
  const size_t bytes = count * row_bytes;
  if (bytes == 0) return;
  switch (wire) {
    case WireType::kAsTheyAre:
      std::memcpy(rows, message, bytes);
      break;
    case WireType::kBFloat16:
      UnpackNarrow<BFloat16>(message, bytes / sizeof(float), rows);
      break;
    case WireType::kHalf:
      UnpackNarrow<Half>(message, bytes / sizeof(float), rows);
      break;
  }
}

void PackStrings(const StringBatch& strings, size_t begin, size_t end, char* message) {
  char* at = message + (end - begin) * kWordBytes;
  for (size_t i = begin; i < end; ++i) {
    const std::string_view string = strings[i];
    const uint32_t length = static_cast<uint32_t>(string.size());
    std::memcpy(message + (i - begin) * kWordBytes, &length, sizeof(length));
    std::memcpy(at, string.data(), string.size());
    at += string.size();
  }
  FillWord(static_cast<uint64_t>(at - message), message);
}

Status UnpackStrings(const char* message, uint64_t most_words, size_t count,
                     const std::function<void(size_t i, std::string_view string)>& take,
                     uint64_t* words) {
  const uint64_t most = most_words * kWordBytes;
  uint64_t at = uint64_t{count} * kWordBytes;
  const auto outside = [] {
    return Status::DataLoss("A message between workers is shorter than the strings in it.");
  };
  if (at > most) return outside();
  for (size_t i = 0; i < count; ++i) {
    uint32_t length;
    std::memcpy(&length, message + i * kWordBytes, sizeof(length));
    if (length > most - at) return outside();
    take(i, std::string_view(message + at, length));
    at += length;
  }
  *words = WordsOfBytes(at);
  return Status();
}

Capacity CapacityFor(uint64_t words) {
  constexpr int kMinOctave = 6;
  static_assert(uint64_t{1} << kMinOctave == kMinCapacityWords);
  words = std::max(words, kMinCapacityWords);
  int octave = kMinOctave;
  while (uint64_t{2} << octave <= words) ++octave;
  // The eighths of the octave that it takes; 8 is the next octave's first capacity.
  const uint64_t eighth = uint64_t{1} << (octave - 3);
  const uint64_t eighths = (words - (uint64_t{1} << octave) + eighth - 1) / eighth;
  return {(uint64_t{1} << octave) + eighths * eighth,
          static_cast<int32_t>((octave - kMinOctave) * 8 + static_cast<int>(eighths))};
}

}  // namespace tf_embed
