// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_batch.h"

#include <algorithm>
#include <string>

namespace tf_embed {

size_t KeyBatch::NumPositions() const {
  if (positions == nullptr) return size;
  size_t places = 0;
  for (size_t i = 0; i < size; ++i) places = std::max<size_t>(places, size_t{positions[i]} + 1);
  return places;
}

Status CheckBatchSize(size_t size) {
  if (size <= kMaxBatchSize) return Status();
  return Status::InvalidArgument("A batch may have at most " + std::to_string(kMaxBatchSize) +
                                 " keys. Received: " + std::to_string(size) + ".");
}

}  // namespace tf_embed
