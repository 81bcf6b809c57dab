// SPDX-License-Identifier: Apache-2.0
// Groups the keys of a batch by the worker that owns them, each key once.
#ifndef TF_EMBED_CC_CORE_EXCHANGE_KEY_ROUTE_H_
#define TF_EMBED_CC_CORE_EXCHANGE_KEY_ROUTE_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"
#include "cc/core/pooling/key_sums.h"
#include "cc/core/table/shard_split.h"

namespace tf_embed {

// The rule that chooses the owner of a key.
enum class OwnerRule : uint8_t {
  kHash,       // a hash of the key, so that any set of keys is spread evenly
  kRemainder,  // DefaultShard: floor_mod(key, num_workers)
};

// The owner by a 64-bit hash. It hashes again, because a table takes stripe and bucket from
// HashKey: otherwise the keys of one worker would only use a part of its table's stripes.
inline size_t OwnerByHash(uint64_t hash, size_t num_workers) {
  return static_cast<size_t>(((Mix64(hash + kGolden64) >> 32) * num_workers) >> 32);
}

inline size_t OwnerOf(int64_t key, size_t num_workers, OwnerRule rule, bool unsigned_keys) {
  return rule == OwnerRule::kHash ? OwnerByHash(HashKey(key), num_workers)
                                  : DefaultShard(key, num_workers, unsigned_keys);
}

// The distinct keys of a batch, worker 0's first. The keys of a worker are in the order of first
// occurrence. Results are the same for any number of threads.
class KeyRoute {
 public:
  explicit KeyRoute(Allocator* allocator)
      : sums_(allocator), distinct_(allocator), places_(allocator), counts_(allocator) {}

  // `keys` [size] outlive this. `owners` [size]: the owner of each key, the same for equal keys;
  // null: by the rule. Fails if an owner is out of range, or equal keys have different owners.
  Status Build(const ExecContext& context, const int64_t* keys, size_t size, const int32_t* owners,
               OwnerRule rule, bool unsigned_keys, size_t num_workers);

  // Number of distinct keys.
  size_t size() const { return sums_.size(); }
  // Distinct keys of each worker [num_workers].
  const int32_t* counts() const { return counts_.data(); }
  // Writes the distinct keys [size()].
  void WriteKeys(int64_t* routed) const;
  // Writes the place of each key of the batch among the distinct keys.
  void WritePlaces(const ExecContext& context, int32_t* places) const;
  // Writes the sums [size(), dim] of the gradients of equal keys; see KeySums::WriteSums.
  Status WriteSums(const ExecContext& context, const KeyGradients& gradients, DataType type,
                   void* sums);

 private:
  size_t batch_size_ = 0;
  KeySums sums_;
  Buffer<int64_t> distinct_;  // in the order of first occurrence
  Buffer<int32_t> places_;    // the place of each distinct key
  Buffer<int32_t> counts_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_EXCHANGE_KEY_ROUTE_H_
