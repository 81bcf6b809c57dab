// SPDX-License-Identifier: Apache-2.0
// The gradients that are summed by key, on the host (key_sums.h) and on devices.
#ifndef TF_EMBED_CC_CORE_POOLING_KEY_GRADIENTS_H_
#define TF_EMBED_CC_CORE_POOLING_KEY_GRADIENTS_H_

#include <cstddef>

#include "cc/core/base/data_type.h"
#include "cc/core/base/status.h"
#include "cc/core/pooling/bags.h"

namespace tf_embed {

// Gradients [keys, dim] of a batch's keys; or, with bags, [bags, dim] of their pooled rows.
struct KeyGradients {
  const void* gradients = nullptr;
  DataType type = DataType::kFloat;
  size_t dim = 1;
  Bags* bags = nullptr;  // in the order of the batch's keys
  Pooling pooling;       // of the bags
};

// Argument checks for sums by key, with their messages.
Status CheckNumberOfKeys(size_t num_keys);
Status OtherComputeType();

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POOLING_KEY_GRADIENTS_H_
