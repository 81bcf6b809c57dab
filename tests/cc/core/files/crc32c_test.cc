// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/crc32c.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tf_embed {
namespace {

// The definition: bit by bit.
uint32_t BitByBit(const std::string& bytes) {
  uint32_t rest = ~uint32_t{0};
  for (const char byte : bytes) {
    rest ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~rest;
}

std::string RandomBytes(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(Crc32c, GivesTheValuesOfRfc3720) {
  EXPECT_EQ(0u, ExtendCrc32c(0, "", 0));
  EXPECT_EQ(0xe3069283u, ExtendCrc32c(0, "123456789", 9));
  EXPECT_EQ(0x8a9136aau, ExtendCrc32c(0, std::string(32, '\0').data(), 32));
  EXPECT_EQ(0x62a8ab43u, ExtendCrc32c(0, std::string(32, '\xff').data(), 32));
}

TEST(Crc32c, IsTheSameByInstructionAndByTable) {
  for (size_t size = 0; size < 100; ++size) {
    const std::string bytes = RandomBytes(size);
    const uint32_t expected = BitByBit(bytes);
    EXPECT_EQ(expected, ExtendCrc32c(0, bytes.data(), size)) << size;
    EXPECT_EQ(expected, ExtendCrc32cByTable(0, bytes.data(), size)) << size;
  }
}

TEST(Crc32c, GoesOnFromWhereItStopped) {
  const std::string bytes = RandomBytes(77);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t begun = ExtendCrc32c(0, bytes.data(), cut);
    EXPECT_EQ(BitByBit(bytes), ExtendCrc32c(begun, bytes.data() + cut, bytes.size() - cut));
    EXPECT_EQ(BitByBit(bytes), ExtendCrc32cByTable(begun, bytes.data() + cut, bytes.size() - cut));
  }
}

}  // namespace
}  // namespace tf_embed
