// SPDX-License-Identifier: Apache-2.0
// Shapes of the ops of a table, and the inputs that they share. One set of ops serves every store
// and every device: key type, value type and dim are run-time values of the handle, so nothing is
// repeated for a dtype.
//
//   table    the resource. It holds every shard of one variable.
//   keys     any shape. A row's shape is [dim], so rows have shape keys.shape + [dim].
//            Strings are any bytes, and different strings are different keys.
//   owners   the shard of each key, flattened: int32 [num_keys]; or int32 [0], which leaves
//            the choice to the table: floor_mod(key, num_shards), for a string of its 64-bit key.
//   scores   none; or the scores of the written rows, keys.shape, in a table that keeps scores.
//            The last of equal keys wins. If scores decide evictions, a new row only replaces a
//            row of an equal or lower score.
#ifndef TF_EMBED_CC_OPS_TABLE_SHAPES_H_
#define TF_EMBED_CC_OPS_TABLE_SHAPES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cc/ops/shapes.h"

namespace tf_embed {

// Checks inputs 0 to 2: table, keys, owners.
inline absl::Status CheckKeys(InferenceContext* c) { return CheckRanks(c, {0, -1, 1}); }

// Checks the same, and returns the shape of the keys' rows, keys.shape + [dim].
inline absl::Status ShapeOfRows(InferenceContext* c, ShapeHandle* rows) {
  int64_t dim;
  TF_RETURN_IF_ERROR(CheckKeys(c));
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  return WithAxis(c, c->input(1), dim, rows);
}

// Checks inputs 0 to 3: table, keys, owners, a row for each key.
inline absl::Status CheckRows(InferenceContext* c) {
  ShapeHandle rows, merged;
  TF_RETURN_IF_ERROR(ShapeOfRows(c, &rows));
  return c->Merge(c->input(3), rows, &merged);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_OPS_TABLE_SHAPES_H_
