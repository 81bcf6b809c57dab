// SPDX-License-Identifier: Apache-2.0
// The gradients of a batch's places, with their type.
#ifndef TF_EMBED_CC_CORE_BATCH_GRADIENT_ROWS_H_
#define TF_EMBED_CC_CORE_BATCH_GRADIENT_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/data_type.h"
#include "cc/core/base/platform.h"
#include "cc/core/batch/key_batch.h"
#include "cc/core/rows/row_copy.h"

namespace tf_embed {

// T: the type of the gradients.
template <typename T>
struct GradientRows {
  using Compute = typename Number<T>::Compute;

  // Contiguous rows.
  GradientRows(const T* values, size_t dim) : values(values), dim(dim) {}
  GradientRows(const Gradients& gradients, size_t dim)
      : values(static_cast<const T*>(gradients.values)),
        begins(gradients.begins),
        factors(static_cast<const Compute*>(gradients.factors)),
        dim(dim) {}

  TF_EMBED_INLINE const T* Row(size_t place) const {
    return values + (begins == nullptr ? place * dim : begins[place]);
  }
  TF_EMBED_INLINE Compute Factor(size_t place) const {
    return factors == nullptr ? Compute{1} : factors[place];
  }

  // Prefetches the first of the rows at `positions` [count]; a sum prefetches the others.
  void Prefetch(const uint32_t* positions, size_t count) const {
    constexpr size_t kMax = 2;
    for (size_t k = 0; k < count && k < kMax; ++k) {
      PrefetchRow<false>(reinterpret_cast<const char*>(Row(positions[k])), dim * sizeof(T));
    }
  }

  const T* values;
  const size_t* begins = nullptr;    // as in Gradients
  const Compute* factors = nullptr;  // as in Gradients
  size_t dim;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_GRADIENT_ROWS_H_
