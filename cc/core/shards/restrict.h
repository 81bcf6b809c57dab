// SPDX-License-Identifier: Apache-2.0
// Restriction: the rows of lowest rank leave until a number is left, exactly so many in all shards
// together.
#ifndef TF_EMBED_CC_CORE_SHARDS_RESTRICT_H_
#define TF_EMBED_CC_CORE_SHARDS_RESTRICT_H_

#include <cstddef>

#include "cc/core/policy/row_policy.h"
#include "cc/core/store/store.h"

namespace tf_embed {

// Takes out the expired rows of the stores of a table, then those of lowest rank while there are
// more than `num_reserved`; `removed` says how many. Gives memory back where many were. Other
// writers wait meanwhile; readers go on, and a row that one of them uses for training goes by its
// rank after that use. The stores have the statistics of `order`.
//
// The rank below which rows go is found by a sample first, which tells two ranks between which it
// lies, and then by the rows between the two: two passes, and room for some percent of the ranks.
Status RestrictRows(const ExecContext& context, Store* const* shards, size_t num_shards,
                    EvictionOrder order, size_t num_reserved, size_t* removed);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SHARDS_RESTRICT_H_
