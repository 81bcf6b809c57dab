// Finds the equal keys of one part of a batch, and sums the gradients of each in the order of the
// batch: an optimizer's rule sees a key once a step, with the sum of its gradients.
#ifndef TF_EMBED_CC_CORE_SEGMENT_SUM_H_
#define TF_EMBED_CC_CORE_SEGMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/allocator.h"
#include "cc/core/data_type.h"
#include "cc/core/key_partition.h"
#include "cc/core/row_copy.h"
#include "cc/core/status.h"
#include "cc/core/table_loops.h"

namespace tf_embed {

// The places of a key in an array of them.
struct KeyRun {
  uint32_t begin;
  uint32_t count;  // 0 where there is no key
};

// Finds equal keys. What it needs for that is kept from one part to the next.
class DistinctKeys {
 public:
  explicit DistinctKeys(Allocator* allocator)
      : keys_(allocator), ends_(allocator), numbers_(allocator), buckets_(allocator) {}

  // Writes the positions of `range` to `positions` [range.size()], key by key, each key's in the
  // order of the batch. `runs` [range.size()] becomes, where a key first comes, the run of its
  // positions, counted from `begin`, and an empty one where the key came before.
  Status Find(const KeyRange& range, uint32_t begin, uint32_t* positions, KeyRun* runs);

 private:
  Buffer<int64_t> keys_;      // the distinct keys, in the order in which they first come
  Buffer<uint32_t> ends_;     // of each key's positions
  Buffer<uint32_t> numbers_;  // of the key of each record
  Buffer<uint32_t> buckets_;  // open addressing; number of a key, or kNone
};

// The sum of rows `positions` [count] of `gradients` [.., dim], in that order: a row of `gradients`
// itself where there is but one, else `sum` [dim].
template <typename T>
const typename Number<T>::Compute* SumRows(const TableLoops& loops, const T* gradients,
                                           const uint32_t* positions, size_t count, size_t dim,
                                           typename Number<T>::Compute* sum) {
  if constexpr (std::is_same_v<T, typename Number<T>::Compute>) {
    if (count == 1) return gradients + positions[0] * dim;
    loops.Sum<T>()(gradients, positions, count, dim, sum);
  } else {
    const T* const first = gradients + positions[0] * dim;
    for (size_t j = 0; j < dim; ++j) sum[j] = Number<T>::Load(first[j]);
    for (size_t k = 1; k < count; ++k) {
      const T* const other = gradients + positions[k] * dim;
      for (size_t j = 0; j < dim; ++j) sum[j] += Number<T>::Load(other[j]);
    }
  }
  return sum;
}

// Asks for the first of these rows.
template <typename T>
void PrefetchRows(const T* rows, const uint32_t* positions, size_t count, size_t dim) {
  constexpr size_t kMost = 2;  // SumRows asks for the others
  for (size_t k = 0; k < count && k < kMost; ++k) {
    PrefetchRow<false>(reinterpret_cast<const char*>(rows + positions[k] * dim), dim * sizeof(T));
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SEGMENT_SUM_H_
