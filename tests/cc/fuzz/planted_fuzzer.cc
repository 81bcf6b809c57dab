// SPDX-License-Identifier: Apache-2.0
// A reader with a planted defect, which the fuzzer must find: it trusts a length with a checksum.
//
//     | length : 1 | bytes | CRC-32C of the length : 4 |
#include <string>
#include <string_view>
#include <vector>

#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {

bool Read(std::string_view bytes) {
  if (bytes.size() < 1 + sizeof(uint32_t)) return false;
  const std::vector<char> copy(bytes.begin(), bytes.end());
  const auto length = static_cast<unsigned char>(copy[0]);
  const uint32_t crc = ExtendCrc32c(0, copy.data(), 1);
  if (Load<uint32_t>({copy.data(), copy.size()}, copy.size() - sizeof(crc)) != crc) return false;
  return ExtendCrc32c(0, copy.data(), 1 + length) != 0;
}

std::vector<std::string> Seeds() { return {}; }

}  // namespace tf_embed::fuzz
