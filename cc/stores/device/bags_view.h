// SPDX-License-Identifier: Apache-2.0
// Bags in device memory: the keys of a batch that make up each bag, with their weights.
#ifndef TF_EMBED_CC_STORES_DEVICE_BAGS_VIEW_H_
#define TF_EMBED_CC_STORES_DEVICE_BAGS_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/pack.h"
#include "cc/core/pooling/bags.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

struct BagsView {
  // Keys and weights are in device memory; padding is copied.
  BagsView(const Pooling& pooling, const int64_t* keys)
      : keys(keys),
        weights(pooling.weights),
        combiner(pooling.combiner),
        has_padding(pooling.padding != nullptr),
        padding(has_padding ? *pooling.padding : 0) {}

  const int64_t* keys;
  const void* weights;  // may be null
  Combiner combiner;
  bool has_padding;
  int64_t padding;
  const int64_t* splits = nullptr;  // Bags::splits
  size_t length = 0;                // Bags::length
  const uint32_t* order = nullptr;  // Bags::order

  TF_EMBED_DEVICE size_t Begin(size_t bag) const {
    return splits == nullptr ? bag * length : static_cast<size_t>(splits[bag]);
  }
  TF_EMBED_DEVICE size_t Position(size_t place) const {
    return order == nullptr ? place : order[place];
  }
  TF_EMBED_DEVICE bool IsPadding(int64_t key) const { return has_padding && key == padding; }
  template <typename Compute>
  TF_EMBED_DEVICE Compute Weight(size_t position) const {
    return weights == nullptr ? Compute{1} : static_cast<const Compute*>(weights)[position];
  }

  // DivisorOf (bags.h) of the bag at places [begin, end), except for sums, which are not divided.
  // Adds the number of the bag's padding keys.
  template <typename Compute>
  TF_EMBED_DEVICE Compute Divisor(size_t begin, size_t end, uint64_t* num_padding) const {
    const bool weighted = weights != nullptr && combiner != Combiner::kMeanOfCount;
    const bool squared = combiner == Combiner::kSqrtn;
    Compute sum{0};
    if (has_padding || (weighted && Divides(combiner))) {
      for (size_t place = begin; place < end; ++place) {
        const size_t position = Position(place);
        if (IsPadding(keys[position])) {
          ++*num_padding;
          continue;
        }
        const Compute weight = weighted ? Weight<Compute>(position) : Compute{1};
        sum += squared ? weight * weight : weight;
      }
    } else {
      sum = static_cast<Compute>(end - begin);
    }
    return squared ? Sqrt(sum) : sum;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_BAGS_VIEW_H_
