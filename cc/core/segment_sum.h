// Finds the equal keys of one part of a batch, and sums the gradients of each in the order of the
// batch: an optimizer's rule sees a key once a step, with the sum of its gradients.
#ifndef TF_EMBED_CC_CORE_SEGMENT_SUM_H_
#define TF_EMBED_CC_CORE_SEGMENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/allocator.h"
#include "cc/core/data_type.h"
#include "cc/core/gradient_rows.h"
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

// The sum of the rows at `positions` [count], in that order: one of `rows` itself where that is all
// of it, else `sum` [dim].
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

#endif  // TF_EMBED_CC_CORE_SEGMENT_SUM_H_
