// SPDX-License-Identifier: Apache-2.0
// A batch as a store sees it: keys, the gradients of their rows, the rows of absent keys.
#ifndef TF_EMBED_CC_CORE_BATCH_KEY_BATCH_H_
#define TF_EMBED_CC_CORE_BATCH_KEY_BATCH_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/data_type.h"
#include "cc/core/base/platform.h"
#include "cc/core/base/status.h"

namespace tf_embed {

// The keys of a batch. Key i belongs to place `positions[i]` of the arrays that accompany the batch
// (rows, flags), or to place i if `positions` is null.
struct KeyBatch {
  const int64_t* keys = nullptr;
  size_t size = 0;
  const uint32_t* positions = nullptr;
  // By place, the scores of the rows that a verb writes; the last of equal keys decides. If scores
  // decide which rows are evicted, a new row with a score only evicts rows of equal or lower
  // scores. Null: present rows keep their scores, and new rows start at 0.
  const int64_t* scores = nullptr;
  // By place. If it is given, a writing verb inserts nothing: it sets the places of the keys
  // without a row, and leaves the others as they are.
  bool* absent = nullptr;
  // Says that no key is repeated, so that a write need not search for equal keys. If a key is
  // repeated all the same, each of its places is handled separately, in any order.
  bool distinct = false;

  TF_EMBED_INLINE size_t Position(size_t i) const {
    return positions == nullptr ? i : positions[i];
  }
  // The least length of the arrays that accompany the batch.
  size_t NumPositions() const;
};
inline constexpr size_t kMaxBatchSize = 0xffffffffu;
Status CheckBatchSize(size_t size);

// The gradients of a batch's places: `dim` values each.
struct Gradients {
  const void* values = nullptr;
  DataType type = DataType::kFloat;
  // By place, the offset of its gradient in `values`. Several places may share a gradient, as the
  // keys of a bag do. Null: gradients are contiguous.
  const size_t* begins = nullptr;
  // By place, the factor of its gradient, of the compute type. Null: 1.
  const void* factors = nullptr;
};

// The rows of absent keys.
struct DefaultRows {
  enum class Kind : uint8_t { kInitializer, kOneForAll, kOneEach };
  Kind kind = Kind::kInitializer;
  const void* rows = nullptr;  // [dim] or [batch, dim] values

  const char* Row(size_t position, size_t row_bytes) const {
    const char* const base = static_cast<const char*>(rows);
    return kind == Kind::kOneEach ? base + position * row_bytes : base;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_KEY_BATCH_H_
