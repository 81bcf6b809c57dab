// Finds the distinct keys of one part of a batch, and sums the gradients of each in the order of
// the batch: an optimizer's rule sees a key once a step, with the sum of its gradients.
#ifndef TF_EMBED_CC_CORE_SEGMENT_SUM_H_
#define TF_EMBED_CC_CORE_SEGMENT_SUM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/allocator.h"
#include "cc/core/data_type.h"
#include "cc/core/hash.h"
#include "cc/core/key_partition.h"
#include "cc/core/status.h"

namespace tf_embed {

class DistinctKeys {
 public:
  explicit DistinctKeys(Allocator* allocator)
      : chains_(allocator), next_(allocator), buckets_(allocator) {}

  // Finds the distinct keys of `range`, in the order in which they first come.
  Status Build(const KeyRange& range);

  size_t size() const { return size_; }
  int64_t key(size_t i) const { return range_.begin[chains_[i].first].key; }

  // The sum of the gradients [batch, dim] of key i: a row of `gradients` itself where one suffices,
  // else `sum` [dim].
  template <typename T>
  const typename Number<T>::Compute* SumGradients(size_t i, const T* gradients, size_t dim,
                                                  typename Number<T>::Compute* sum) const;

  // Asks for the first gradient of key i.
  template <typename T>
  void PrefetchGradient(size_t i, const T* gradients, size_t dim) const {
    __builtin_prefetch(gradients + range_.begin[chains_[i].first].position * dim);
  }

 private:
  static constexpr uint32_t kEnd = 0xffffffffu;

  // A key's records, as a list by their numbers in the range.
  struct Chain {
    uint32_t first;
    uint32_t last;
  };

  KeyRange range_ = {nullptr, nullptr};
  size_t size_ = 0;
  Buffer<Chain> chains_;
  Buffer<uint32_t> next_;
  Buffer<uint32_t> buckets_;  // open addressing; number of a chain, or kEnd
};

inline Status DistinctKeys::Build(const KeyRange& range) {
  range_ = range;
  size_ = 0;
  size_t capacity = 16;
  while (capacity < 2 * range.size()) capacity *= 2;
  TF_EMBED_RETURN_IF_ERROR(chains_.Resize(range.size()));
  TF_EMBED_RETURN_IF_ERROR(next_.Resize(range.size()));
  TF_EMBED_RETURN_IF_ERROR(buckets_.Resize(capacity));
  std::fill(buckets_.data(), buckets_.data() + capacity, kEnd);
  for (uint32_t record = 0; record < range.size(); ++record) {
    const int64_t key = range.begin[record].key;
    next_[record] = kEnd;
    size_t bucket = HashKey(key) & (capacity - 1);
    while (buckets_[bucket] != kEnd && this->key(buckets_[bucket]) != key) {
      bucket = (bucket + 1) & (capacity - 1);
    }
    if (buckets_[bucket] == kEnd) {
      buckets_[bucket] = static_cast<uint32_t>(size_);
      chains_[size_++] = Chain{record, record};
    } else {
      Chain& chain = chains_[buckets_[bucket]];
      next_[chain.last] = record;
      chain.last = record;
    }
  }
  return Status();
}

template <typename T>
const typename Number<T>::Compute* DistinctKeys::SumGradients(
    size_t i, const T* gradients, size_t dim, typename Number<T>::Compute* sum) const {
  const auto gradient = [&](uint32_t record) {
    return gradients + static_cast<size_t>(range_.begin[record].position) * dim;
  };
  const Chain& chain = chains_[i];
  const T* const first = gradient(chain.first);
  if constexpr (std::is_same_v<T, typename Number<T>::Compute>) {
    if (chain.first == chain.last) return first;
  }
  for (size_t j = 0; j < dim; ++j) sum[j] = Number<T>::Load(first[j]);
  for (uint32_t record = next_[chain.first]; record != kEnd; record = next_[record]) {
    const T* const other = gradient(record);
    for (size_t j = 0; j < dim; ++j) sum[j] += Number<T>::Load(other[j]);
  }
  return sum;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SEGMENT_SUM_H_
