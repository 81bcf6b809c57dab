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

  // The number of the distinct key at record j of the range.
  uint32_t number(size_t j) const { return numbers_[j]; }

  // The last of them.
  size_t last_position(size_t i) const { return positions_[ends_[i] - 1]; }

  // The sum of the gradients [batch, dim] of key i: a row of `gradients` itself where one suffices,
  // else `sum` [dim].
  template <typename T>
  const typename Number<T>::Compute* SumGradients(const TableLoops& loops, size_t i,
                                                  const T* gradients, size_t dim,
                                                  typename Number<T>::Compute* sum) const;

  // Asks for the first gradients of key i.
  template <typename T>
  void PrefetchGradient(size_t i, const T* gradients, size_t dim) const {
    const size_t end = ends_[i] < begin(i) + kPrefetched ? ends_[i] : begin(i) + kPrefetched;
    for (size_t j = begin(i); j < end; ++j) {
      PrefetchRow<false>(reinterpret_cast<const char*>(gradients + positions_[j] * dim),
                         dim * sizeof(T));
    }
  }

 private:
  static constexpr size_t kPrefetched = 2;

  size_t begin(size_t i) const { return i == 0 ? 0 : ends_[i - 1]; }

  size_t size_ = 0;
  Buffer<int64_t> keys_;
  Buffer<uint32_t> ends_;       // of each key's places in positions_
  Buffer<uint32_t> numbers_;    // of the key of each record
  Buffer<uint32_t> positions_;  // key by key
  Buffer<uint32_t> buckets_;    // open addressing; number of a key, or kNone
};

template <typename T>
const typename Number<T>::Compute* DistinctKeys::SumGradients(
    const TableLoops& loops, size_t i, const T* gradients, size_t dim,
    typename Number<T>::Compute* sum) const {
  const uint32_t* const places = positions(i);
  if constexpr (std::is_same_v<T, typename Number<T>::Compute>) {
    if (count(i) == 1) return gradients + places[0] * dim;
    loops.Sum<T>()(gradients, places, count(i), dim, sum);
  } else {
    const T* const first = gradients + places[0] * dim;
    for (size_t j = 0; j < dim; ++j) sum[j] = Number<T>::Load(first[j]);
    for (size_t k = 1; k < count(i); ++k) {
      const T* const other = gradients + places[k] * dim;
      for (size_t j = 0; j < dim; ++j) sum[j] += Number<T>::Load(other[j]);
    }
  }
  return sum;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SEGMENT_SUM_H_
