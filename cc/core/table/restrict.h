// SPDX-License-Identifier: Apache-2.0
// Restriction: the rows of lowest rank leave until a given number is left in all shards together.
#ifndef TF_EMBED_CC_CORE_TABLE_RESTRICT_H_
#define TF_EMBED_CC_CORE_TABLE_RESTRICT_H_

#include <cstddef>

#include "cc/core/store/store.h"

namespace tf_embed {

// Evicts the expired rows of the stores of a table, then the rows of lowest rank while there are
// more than `num_reserved`; `removed` says how many. Frees memory if many were removed. Other
// writers wait meanwhile. Readers continue, and a row that a reader uses for training is ranked by
// that use. The stores have the statistics of `order`.
//
// The rank below which rows leave is found by a sample first, which gives two ranks between which
// it lies, and then by the rows between these: two passes, and room for some percent of the ranks.
Status RestrictRows(const ExecContext& context, Store* const* shards, size_t num_shards,
                    EvictionOrder order, size_t num_reserved, size_t* removed);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_RESTRICT_H_
