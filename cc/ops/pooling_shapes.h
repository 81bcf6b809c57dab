// SPDX-License-Identifier: Apache-2.0
// The shapes of pooled lookups.
#ifndef TF_EMBED_CC_OPS_POOLING_SHAPES_H_
#define TF_EMBED_CC_OPS_POOLING_SHAPES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cc/ops/shapes.h"

namespace tf_embed {

// The shape of the bags, without dim, of which the `num_bags` tensors begin at input `first`.
inline absl::Status BagsShape(InferenceContext* c, ShapeHandle keys, int64_t num_bags, int first,
                              ShapeHandle* shape) {
  if (num_bags == 0) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(keys, 1, &keys));
    return c->Subshape(keys, 0, -1, shape);
  }
  if (num_bags == 1) {
    ShapeHandle splits;
    DimensionHandle bags;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 1, &splits));
    TF_RETURN_IF_ERROR(c->Subtract(c->Dim(splits, 0), 1, &bags));
    *shape = c->Vector(bags);
    return absl::OkStatus();
  }
  ShapeHandle unused, dense;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 2, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first + 1), 1, &unused));
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(first + 1, &dense));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(dense, 1, &dense));
  return c->Subshape(dense, 0, -1, shape);
}

// The same for the attribute `num_bags`.
inline absl::Status BagsShape(InferenceContext* c, ShapeHandle keys, int first,
                              ShapeHandle* shape) {
  int64_t num_bags;
  TF_RETURN_IF_ERROR(c->GetAttr("num_bags", &num_bags));
  return BagsShape(c, keys, num_bags, first, shape);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_OPS_POOLING_SHAPES_H_
