// SPDX-License-Identifier: Apache-2.0
// A find that pools rows as it finds them, so that the rows of all keys need not exist together.
#ifndef TF_EMBED_CC_CORE_POOLING_POOLED_FIND_H_
#define TF_EMBED_CC_CORE_POOLING_POOLED_FIND_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/pooling/bags.h"
#include "cc/core/store/store.h"

namespace tf_embed {

// A batch of keys and the shards that it is spread over; see ShardSplit::Build.
struct ShardedKeys {
  const int64_t* keys = nullptr;  // [bags.num_keys()]
  const int32_t* owners = nullptr;
  bool unsigned_keys = false;
  const Store* const* shards = nullptr;  // of one type and dim
  size_t num_shards = 1;
};

// A batch of keys, its bags, and the output for the pooled rows.
struct PooledFind {
  ShardedKeys keys;
  const Bags* bags = nullptr;
  Pooling pooling;
  DefaultRows defaults;    // of absent keys, by the key's position in the batch
  void* pooled = nullptr;  // [bags, dim], of the compute type of the rows
  size_t stride = 0;       // from one pooled row to the next, in values; at least dim
  // Null, or an array [num_keys, dim] for the row of each key, by the key's position, of the type
  // of the pooled rows. Padding has a row of zeros.
  void* found = nullptr;
  // The rows have the format of quantized_row.h. The pooled rows are float and have as many values
  // as a row has weights.
  bool quantized = false;
  // The time of the table's own clock, which dates uses and expiry; null: the context's moment.
  const Moment* now = nullptr;

  // The context of the verbs of this batch.
  ExecContext Dated(const ExecContext& context) const {
    ExecContext dated = context;
    if (now != nullptr) dated.now = *now;
    return dated;
  }
};

// Finds the rows of the keys and pools them, for `count` batches at once, of any tables. Nothing is
// inserted. Each row is read at one moment; rows of different blocks may be of different moments.
//
// A thread takes some bags, finds a block of their keys into memory that stays in its second cache,
// adds the rows up, and continues with the next block. Sums are taken in the order of the places,
// so the result is the same for any number of threads. The bags of all batches form one line, of
// which each thread takes a part: many small batches cost little more than a large batch.
Status FindPooled(const ExecContext& context, const PooledFind* finds, size_t count);

// Argument checks of pooled finds, with their messages.
Status CheckPooledFind(const PooledFind& find);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POOLING_POOLED_FIND_H_
