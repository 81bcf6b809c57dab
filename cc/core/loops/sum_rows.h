// SPDX-License-Identifier: Apache-2.0
// Sums the gradients of equal keys in the order of the batch.
#ifndef TF_EMBED_CC_CORE_LOOPS_SUM_ROWS_H_
#define TF_EMBED_CC_CORE_LOOPS_SUM_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/data_type.h"
#include "cc/core/batch/gradient_rows.h"
#include "cc/core/loops/table_loops.h"

namespace tf_embed {

// The sum of the rows at `positions` [count], in that order. A single row is returned in place,
// otherwise the result is in `sum` [dim].
template <typename T>
const typename Number<T>::Compute* SumRows(const TableLoops& loops, const GradientRows<T>& rows,
                                           const uint32_t* positions, size_t count,
                                           typename Number<T>::Compute* sum) {
  using Compute = typename Number<T>::Compute;
  if constexpr (std::is_same_v<T, Compute>) {
    if (count == 1 && rows.factors == nullptr) return rows.Row(positions[0]);
    loops.Sum<T>()(rows, positions, count, sum);
  } else {
    for (size_t k = 0; k < count; ++k) {
      const T* const row = rows.Row(positions[k]);
      const Compute factor = rows.Factor(positions[k]);
      for (size_t j = 0; j < rows.dim; ++j) {
        const Compute gradient = factor * Number<T>::Load(row[j]);
        sum[j] = k == 0 ? gradient : sum[j] + gradient;
      }
    }
  }
  return sum;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_LOOPS_SUM_ROWS_H_
