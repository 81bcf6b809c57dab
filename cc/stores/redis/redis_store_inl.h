// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the files of RedisStore.
#ifndef TF_EMBED_CC_STORES_REDIS_REDIS_STORE_INL_H_
#define TF_EMBED_CC_STORES_REDIS_REDIS_STORE_INL_H_

#include <cstring>
#include <new>
#include <string>

#include "cc/core/rows/initializer.h"
#include "cc/core/store/store.h"
#include "cc/stores/redis/redis_rows.h"

namespace tf_embed {

// Runs an action of a verb. Returns an error if an allocation of a standard container fails.
template <typename Action>
Status WithMemory(const std::string& store, const Action& act) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted(
        [&] { return "No memory for a batch of table '" + store + "' in Redis."; });
  }
}

inline bool SameBytes(const char* one, const char* other, size_t bytes) {
  return bytes == 0 || std::memcmp(one, other, bytes) == 0;
}

// Writes the value of a row.
inline void WriteValue(const RedisRowHeader& header, const char* weights, size_t weight_bytes,
                       const char* slots, size_t slot_bytes, char* value) {
  std::memcpy(value, &header, sizeof(header));
  std::memcpy(value + sizeof(header), weights, weight_bytes);
  if (slot_bytes > 0) std::memcpy(value + sizeof(header) + weight_bytes, slots, slot_bytes);
}

// Writes the weights of an absent key.
inline void DefaultRow(const StoreOptions& options, const RowInitializer& initializer,
                       const DefaultRows& defaults, int64_t key, size_t position, char* weights) {
  DispatchDataType(options.value_type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (defaults.kind == DefaultRows::Kind::kInitializer) {
      return InitializeWeights(initializer, key, options.dim, reinterpret_cast<T*>(weights));
    }
    const size_t bytes = options.dim * sizeof(T);
    std::memcpy(weights, defaults.Row(position, bytes), bytes);
  });
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_REDIS_STORE_INL_H_
