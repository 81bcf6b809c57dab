// SPDX-License-Identifier: Apache-2.0
// Rows of weights in bytes, as FBGEMM's INT8 rows: each weight is a number from 0 to 255 on the
// row's scale.
//
//     | codes: dim x uint8 | scale: float | bias: float |        weight = code x scale + bias
//
// To a store such a row is dim + 8 numbers of int8. A row of zeros has zero weights. No optimizer
// trains them: a step would be lost between two codes.
#ifndef TF_EMBED_CC_CORE_ROWS_QUANTIZED_ROW_H_
#define TF_EMBED_CC_CORE_ROWS_QUANTIZED_ROW_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/core/base/data_type.h"

namespace tf_embed {

inline constexpr size_t kQuantizedTail = 2 * sizeof(float);

// A row of weights as numbers to compute with. T: the stored type.
template <typename T>
struct WideRow {
  using Compute = typename Number<T>::Compute;
  static constexpr size_t kTail = 0;  // numbers after the weights

  WideRow(const T* row, size_t /*dim*/) : row(row) {}
  Compute operator[](size_t j) const { return Number<T>::Load(row[j]); }

  const T* row;
};

template <>
struct WideRow<int8_t> {
  using Compute = float;
  static constexpr size_t kTail = kQuantizedTail;

  // `row` [dim + kTail], at any address.
  WideRow(const int8_t* row, size_t dim) : codes(reinterpret_cast<const uint8_t*>(row)) {
    std::memcpy(&scale, row + dim, sizeof(scale));
    std::memcpy(&bias, row + dim + sizeof(scale), sizeof(bias));
  }
  float operator[](size_t j) const { return static_cast<float>(codes[j]) * scale + bias; }

  const uint8_t* codes;
  float scale;
  float bias;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_QUANTIZED_ROW_H_
