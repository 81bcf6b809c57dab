// SPDX-License-Identifier: Apache-2.0
// Messages between workers: strings with lengths from the sender, and rows.
//
//     | number of strings : 4 | message |
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/exchange/message.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

StringBatch BatchOf(const std::vector<std::string>& strings) {
  return {strings.data(), strings.size(), [](const void* strings, size_t i) {
            return std::string_view(static_cast<const std::string*>(strings)[i]);
          }};
}

std::string Packed(const std::vector<std::string>& strings) {
  const StringBatch batch = BatchOf(strings);
  std::string message(WordsOfStrings(batch, 0, batch.size) * kWordBytes, '?');
  PackStrings(batch, 0, batch.size, message.data());
  return message;
}

bool ReadStrings(const std::string& message, size_t count) {
  std::vector<std::string> strings;
  uint64_t words = 0;
  const uint64_t most = message.size() / kWordBytes;
  const Status status = UnpackStrings(
      message.data(), most, count,
      [&](size_t i, std::string_view string) {
        Require(i == strings.size(), "strings come in their order");
        strings.emplace_back(string);
      },
      &words);
  if (!status.ok()) return false;
  Require(strings.size() == count && words <= most, "strings lie in the message");
  Require(Packed(strings).size() == words * kWordBytes,
          "strings take what they would be packed to");
  return true;
}

void ReadRows(const std::string& message) {
  for (const WireType wire : {WireType::kAsTheyAre, WireType::kBFloat16, WireType::kHalf}) {
    constexpr size_t kRowBytes = 3 * sizeof(float);
    const size_t count = message.size() / WireRowBytes(kRowBytes, wire);
    std::string rows(count * kRowBytes, '\0');
    UnpackRows(message.data(), count, kRowBytes, wire, rows.data());
  }
}

}  // namespace

bool Read(std::string_view bytes) {
  if (bytes.size() < sizeof(uint32_t)) return false;
  const std::string message(bytes.substr(sizeof(uint32_t)));
  ReadRows(message);
  return ReadStrings(message, Load<uint32_t>(bytes, 0));
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const std::vector<std::string>& strings :
       {std::vector<std::string>{}, {"a"}, {"", "some", "longer string", ""}}) {
    const auto count = static_cast<uint32_t>(strings.size());
    seeds.push_back(std::string(reinterpret_cast<const char*>(&count), sizeof(count)) +
                    Packed(strings));
  }
  return seeds;
}

}  // namespace tf_embed::fuzz
