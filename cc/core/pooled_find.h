// A find that pools rows as it finds them, so that the rows of all keys never exist together.
#ifndef TF_EMBED_CC_CORE_POOLED_FIND_H_
#define TF_EMBED_CC_CORE_POOLED_FIND_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/bags.h"
#include "cc/core/exec_context.h"
#include "cc/core/status.h"
#include "cc/core/table.h"

namespace tf_embed {

// A batch of keys and the tables that it is spread over; see ShardSplit::Build.
struct ShardedKeys {
  const int64_t* keys = nullptr;  // [bags.num_keys()]
  const int32_t* owners = nullptr;
  bool unsigned_keys = false;
  const Table* const* shards = nullptr;  // of one type and dim
  size_t num_shards = 1;
};

// Finds the keys' rows and pools them to `pooled` [bags, dim], of the compute type of the rows.
// Absent keys have their defaults, which go by the key's position in the batch; nothing is
// inserted. Each row is found as a whole; rows of other blocks of the batch may be of other
// moments.
//
// A thread takes some bags and finds a block of their keys into memory that stays in its second
// cache, adds the rows up, and goes on to the next block. Sums are taken in the order of the
// places, so the result is the same for any number of threads.
Status FindPooled(const ExecContext& context, const ShardedKeys& keys, const Bags& bags,
                  const Pooling& pooling, const DefaultRows& defaults, void* pooled);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POOLED_FIND_H_
