// Finds the distinct keys of one part of a batch, and sums the gradients of each in the order of
// the batch: an optimizer's rule sees a key once a step, with the sum of its gradients.
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

class DistinctKeys {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  explicit DistinctKeys(Allocator* allocator)
      : keys_(allocator),
        ends_(allocator),
        numbers_(allocator),
        positions_(allocator),
        buckets_(allocator) {}

  // Finds the distinct keys of `range`, in the order in which they first come.
  Status Build(const KeyRange& range);

  size_t size() const { return size_; }
  int64_t key(size_t i) const { return keys_[i]; }

  // Where key i stands in the batch, in its order; at least one place.
  const uint32_t* positions(size_t i) const { return positions_.data() + begin(i); }
  size_t count(size_t i) const { return ends_[i] - begin(i); }

  // The number of the distinct key that first comes at record j of the range, kNone where the key
  // came before.
  uint32_t first_at(size_t j) const { return numbers_[j]; }

 private:
  size_t begin(size_t i) const { return i == 0 ? 0 : ends_[i - 1]; }

  size_t size_ = 0;
  Buffer<int64_t> keys_;
  Buffer<uint32_t> ends_;       // of each key's places in positions_
  Buffer<uint32_t> numbers_;    // of each record: first_at
  Buffer<uint32_t> positions_;  // key by key
  Buffer<uint32_t> buckets_;    // open addressing; number of a key, or kNone
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
