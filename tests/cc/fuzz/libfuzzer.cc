// SPDX-License-Identifier: Apache-2.0
// Lets libFuzzer feed a target.
#include <cstddef>
#include <cstdint>

#include "tests/cc/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tf_embed::fuzz::Read({reinterpret_cast<const char*>(data), size});
  return 0;
}
