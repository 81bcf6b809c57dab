// SPDX-License-Identifier: Apache-2.0
// Rows of cc/core/rows/quantized_row.h for tests.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_QUANTIZED_ROWS_H_
#define TF_EMBED_TESTS_CC_SUPPORT_QUANTIZED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/rows/quantized_row.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {

// `count` rows of `dim` weights.
inline std::vector<int8_t> RandomQuantizedRows(size_t count, size_t dim, Random* random) {
  const std::vector<float> tails = RandomValues<float>(2 * count, random);
  std::vector<int8_t> rows;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < dim; ++j) rows.push_back(static_cast<int8_t>((*random)() & 0xff));
    const int8_t* const tail = reinterpret_cast<const int8_t*>(&tails[2 * i]);
    rows.insert(rows.end(), tail, tail + kQuantizedTail);
  }
  return rows;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_QUANTIZED_ROWS_H_
