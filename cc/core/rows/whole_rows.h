// SPDX-License-Identifier: Apache-2.0
// Rows outside of a store: key, weights, slots and statistics of each. The output of exports and
// evictions.
#ifndef TF_EMBED_CC_CORE_ROWS_WHOLE_ROWS_H_
#define TF_EMBED_CC_CORE_ROWS_WHOLE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"

namespace tf_embed {

// Keeps the first `kept` of the `present` statistics of each row.
inline void KeepStatistics(size_t rows, size_t present, size_t kept, uint64_t* statistics) {
  if (kept == present) return;
  for (size_t i = 0; i < rows; ++i) {
    for (size_t word = 0; word < kept; ++word) {
      statistics[i * kept + word] = statistics[i * present + word];
    }
  }
}

// Callers reuse the buffers from one batch to the next, so they may be larger than `size` rows.
struct WholeRows {
  explicit WholeRows(Allocator* allocator)
      : keys(allocator), weights(allocator), slots(allocator), statistics(allocator) {}

  // Makes room for `rows` rows. The sizes are per row.
  Status Resize(size_t rows, size_t weight_bytes, size_t slot_bytes, size_t num_statistics) {
    TF_EMBED_RETURN_IF_ERROR(keys.Resize(rows));
    TF_EMBED_RETURN_IF_ERROR(weights.Resize(rows * weight_bytes));
    TF_EMBED_RETURN_IF_ERROR(slots.Resize(rows * slot_bytes));
    return statistics.Resize(rows * num_statistics);
  }

  // Keeps only the rows at `places` [count], which rise. The sizes are per row.
  void Keep(const uint32_t* places, size_t count, size_t weight_bytes, size_t slot_bytes,
            size_t num_statistics) {
    for (size_t to = 0; to < count; ++to) {
      const size_t from = places[to];
      if (from == to) continue;
      keys[to] = keys[from];
      if (weight_bytes > 0) {
        std::memcpy(weights.data() + to * weight_bytes, weights.data() + from * weight_bytes,
                    weight_bytes);
      }
      if (slot_bytes > 0) {
        std::memcpy(slots.data() + to * slot_bytes, slots.data() + from * slot_bytes, slot_bytes);
      }
      for (size_t i = 0; i < num_statistics; ++i) {
        statistics[to * num_statistics + i] = statistics[from * num_statistics + i];
      }
    }
    size = count;
  }

  void KeepStatistics(size_t present, size_t kept) {
    tf_embed::KeepStatistics(size, present, kept, statistics.data());
  }

  size_t size = 0;
  Buffer<int64_t> keys;
  Buffer<char> weights;         // size x dim values
  Buffer<char> slots;           // size x slots of a row, of the compute type
  Buffer<uint64_t> statistics;  // size x statistics of a row
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_WHOLE_ROWS_H_
