// SPDX-License-Identifier: Apache-2.0
// Bags: runs of a batch's keys whose rows are pooled into one, and the definition of pooling.
//
//     pooled row of a bag = (sum of weight x row over its keys) / divisor
//     divisor: 1 (sum), sum of weights (mean), square root of the sum of squared weights (sqrtn),
//              number of keys (mean of count)
//
// Without weights each weight is 1. A bag whose divisor is 0, such as an empty bag, has a pooled
// row of zeros. Padding keys count for nothing, not even in the divisor. All of it is computed in
// Number<T>::Compute, in the order of the batch.
#ifndef TF_EMBED_CC_CORE_POOLING_BAGS_H_
#define TF_EMBED_CC_CORE_POOLING_BAGS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/names.h"
#include "cc/core/base/status.h"

namespace tf_embed {

// COMBINER(enumerator, name): one line for each combiner of lookups.
#define TF_EMBED_COMBINERS(COMBINER) \
  COMBINER(kSum, "sum")              \
  COMBINER(kMean, "mean")            \
  COMBINER(kSqrtn, "sqrtn")

enum class Combiner : uint8_t {
#define TF_EMBED_COMBINER(enumerator, name) enumerator,
  TF_EMBED_COMBINERS(TF_EMBED_COMBINER)
#undef TF_EMBED_COMBINER
      kMeanOfCount,  // the mean in lookups of many tables, whatever the weights are
};
inline constexpr NamedValue<Combiner> kCombinerNames[] = {
#define TF_EMBED_COMBINER(enumerator, name) {name, Combiner::enumerator},
    TF_EMBED_COMBINERS(TF_EMBED_COMBINER)
#undef TF_EMBED_COMBINER
};
// The combiners of lookups in many tables.
inline constexpr NamedValue<Combiner> kManyTablesCombinerNames[] = {
    {"sum", Combiner::kSum}, {"mean", Combiner::kMeanOfCount}};

// Whether sums are divided by DivisorOf.
constexpr bool Divides(Combiner combiner) { return combiner != Combiner::kSum; }

struct Pooling {
  Combiner combiner = Combiner::kSum;
  const void* weights = nullptr;     // [keys], of the compute type; null: all 1
  const int64_t* padding = nullptr;  // the padding key; null: none
};

// The bag of each key of a batch. The keys of a bag need not be adjacent in the batch: bag b holds
// places begin(b) to begin(b + 1), and place p belongs to key Position(p).
class Bags {
 public:
  explicit Bags(Allocator* allocator)
      : own_splits_(allocator), numbers_(allocator), order_(allocator) {}

  // The keys are lines of `length`, one after the other.
  void OfLines(size_t num_lines, size_t length);

  // Bag b holds the keys splits[b] up to splits[b + 1]. If `splits` [size] is of int64, it outlives
  // the bags.
  template <typename Index>
  Status OfSplits(const Index* splits, size_t size, size_t num_keys);

  // Key i is the value of a sparse array of shape `shape` [rank] at `indices` [keys, rank], in any
  // order. The array's lines along the last axis are the bags.
  Status OfIndices(const int64_t* indices, size_t num_keys, const int64_t* shape, size_t rank);

  size_t size() const { return size_; }
  size_t num_keys() const { return num_keys_; }
  size_t begin(size_t bag) const { return splits_ == nullptr ? bag * length_ : splits_[bag]; }
  size_t Position(size_t place) const { return in_order() ? place : order_[place]; }
  // Whether each key's place is its position.
  bool in_order() const { return !sorted_; }
  // For copies of bags: begin(b) of each bag and the end [size + 1], or null if all bags are of
  // `length`; and, if keys are not in order, Position of each place.
  const int64_t* splits() const { return splits_; }
  size_t length() const { return length_; }
  const uint32_t* order() const { return in_order() ? nullptr : order_.data(); }

  // Fills numbers() [keys] with the bag of each key.
  Status Number();
  const uint32_t* numbers() const { return numbers_.data(); }

 private:
  Status TooMany(const char* what) const;

  size_t size_ = 0;
  size_t num_keys_ = 0;
  size_t length_ = 0;                // of a line, without splits
  const int64_t* splits_ = nullptr;  // [size + 1]
  bool numbered_ = false;
  bool sorted_ = false;  // whether order_ is needed
  Buffer<int64_t> own_splits_;
  Buffer<uint32_t> numbers_;
  Buffer<uint32_t> order_;
};

// The divisor of a bag.
template <typename Compute>
Compute DivisorOf(const Bags& bags, const Pooling& pooling, const int64_t* keys, size_t bag) {
  if (!Divides(pooling.combiner)) return Compute{1};
  const bool weighted = pooling.combiner != Combiner::kMeanOfCount;
  const Compute* const weights = weighted ? static_cast<const Compute*>(pooling.weights) : nullptr;
  const bool squared = pooling.combiner == Combiner::kSqrtn;
  const size_t end = bags.begin(bag + 1);
  Compute sum{0};
  if (weights == nullptr && pooling.padding == nullptr) {
    sum = static_cast<Compute>(end - bags.begin(bag));
  } else {
    for (size_t place = bags.begin(bag); place < end; ++place) {
      const size_t position = bags.Position(place);
      if (pooling.padding != nullptr && keys[position] == *pooling.padding) continue;
      const Compute weight = weights == nullptr ? Compute{1} : weights[position];
      sum += squared ? weight * weight : weight;
    }
  }
  return squared ? std::sqrt(sum) : sum;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POOLING_BAGS_H_
