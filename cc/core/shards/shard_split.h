// SPDX-License-Identifier: Apache-2.0
// Spreads a batch over the shards of a variable: each shard gets the keys that it owns, in the
// order of the batch, with their positions, and reads and writes the batch's rows in place.
#ifndef TF_EMBED_CC_CORE_SHARDS_SHARD_SPLIT_H_
#define TF_EMBED_CC_CORE_SHARDS_SHARD_SPLIT_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/platform.h"
#include "cc/core/base/status.h"
#include "cc/core/store/store.h"

namespace tf_embed {

// The default shard of a key: floor_mod(key, num_shards); of the key's bits as uint64 if keys are
// unsigned.
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE size_t DefaultShard(int64_t key, size_t num_shards,
                                                         bool unsigned_keys) {
  if (unsigned_keys) return static_cast<uint64_t>(key) % num_shards;
  const int64_t n = static_cast<int64_t>(num_shards);
  const int64_t rest = key % n;
  return static_cast<size_t>(rest < 0 ? rest + n : rest);
}

// The position of the first owner that is not a shard; `size` if all are.
size_t FirstWrongOwner(const int32_t* owners, size_t size, size_t num_shards);
Status WrongOwner(int32_t owner, int64_t key, size_t num_shards);

class ShardSplit {
 public:
  explicit ShardSplit(Allocator* allocator)
      : keys_(allocator), positions_(allocator), offsets_(allocator) {}

  // `owners` [size]: the shard of each key; or null for DefaultShard. `keys` and `owners` outlive
  // the split.
  Status Build(const int64_t* keys, size_t size, const int32_t* owners, size_t num_shards,
               bool unsigned_keys);

  KeyBatch shard(size_t number) const;

 private:
  KeyBatch whole_;  // the batch itself, with one shard
  size_t num_shards_ = 1;
  Buffer<int64_t> keys_;
  Buffer<uint32_t> positions_;
  Buffer<uint32_t> offsets_;  // the offset of each shard's keys; one more for the end
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SHARDS_SHARD_SPLIT_H_
