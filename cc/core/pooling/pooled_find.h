// SPDX-License-Identifier: Apache-2.0
// A find that pools rows as it finds them, so that the rows of all keys never exist together.
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

// A batch of keys, the bags that they make, and where the pooled rows go.
struct PooledFind {
  ShardedKeys keys;
  const Bags* bags = nullptr;
  Pooling pooling;
  DefaultRows defaults;    // of absent keys; they go by the key's position in the batch
  void* pooled = nullptr;  // [bags, dim], of the compute type of the rows
  size_t stride = 0;       // from one pooled row to the next, in values; at least dim
  // The rows are those of quantized_row.h, and so the pooled ones of as many values less than the
  // table's dim, in float.
  bool quantized = false;
  // Of the table's own clock, by which it dates uses and expiry; null: the context's moment.
  const Moment* now = nullptr;

  // The context of the verbs of this batch.
  ExecContext Dated(const ExecContext& context) const {
    ExecContext dated = context;
    if (now != nullptr) dated.now = *now;
    return dated;
  }
};

// Finds the rows of the keys and pools them, for `count` batches at once, of any tables. Nothing is
// inserted. Each row is found as a whole; rows of other blocks of a batch may be of other moments.
//
// A thread takes some bags and finds a block of their keys into memory that stays in its second
// cache, adds the rows up, and goes on to the next block. Sums are taken in the order of the
// places, so the result is the same for any number of threads. The bags of all batches stand in one
// line, of which each thread takes a part: many small batches cost little more than a large one.
Status FindPooled(const ExecContext& context, const PooledFind* finds, size_t count);

// Argument checks of pooled finds, with their messages.
Status CheckPooledFind(const PooledFind& find);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POOLING_POOLED_FIND_H_
