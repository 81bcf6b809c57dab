// SPDX-License-Identifier: Apache-2.0
// Splits a batch over the shards of a table: each shard gets the keys that it owns, in the order of
// the batch, with their positions, and reads and writes the batch's rows in place.
#ifndef TF_EMBED_CC_CORE_TABLE_SHARD_SPLIT_H_
#define TF_EMBED_CC_CORE_TABLE_SHARD_SPLIT_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/platform.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_batch.h"

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

// The same for a batch in device memory, whose keys the host can't read. Results are equal.
class DeviceSplit {
 public:
  virtual ~DeviceSplit() = default;

  // Called once. `keys` [size] is in device memory. `owners` [size], in host memory, has the shard
  // of each key; null means DefaultShard. If there are several shards, waits for the stream of the
  // context, because verbs need the sizes of their batches. `owners` may go when it returns. The
  // stream and `keys` outlive the split.
  virtual Status Build(const ExecContext& context, const int64_t* keys, size_t size,
                       const int32_t* owners, size_t num_shards, bool unsigned_keys) = 0;

  // The keys of a shard, with their positions, in device memory.
  virtual KeyBatch shard(size_t number) const = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_SHARD_SPLIT_H_
