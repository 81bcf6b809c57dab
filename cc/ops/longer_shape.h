// SPDX-License-Identifier: Apache-2.0
// Adds an axis to a shape in shape functions. The check is needed because TensorFlow aborts the
// process on a shape that no tensor can have.
#ifndef TF_EMBED_CC_OPS_LONGER_SHAPE_H_
#define TF_EMBED_CC_OPS_LONGER_SHAPE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_embed {

// Returns shape + [size]. Fails if the known axes and elements exceed a tensor's limits.
inline absl::Status WithAxis(tensorflow::shape_inference::InferenceContext* c,
                             tensorflow::shape_inference::ShapeHandle shape,
                             tensorflow::shape_inference::DimensionOrConstant size,
                             tensorflow::shape_inference::ShapeHandle* longer) {
  TF_RETURN_IF_ERROR(c->Concatenate(shape, c->Vector(size), longer));
  if (!c->RankKnown(*longer)) return absl::OkStatus();
  int64_t elements = 1;
  bool fits = c->Rank(*longer) <= tensorflow::TensorShape::MaxDimensions();
  for (int axis = 0; fits && axis < c->Rank(*longer); ++axis) {
    const auto dim = c->Dim(*longer, axis);
    fits = !c->ValueKnown(dim) || !__builtin_mul_overflow(elements, c->Value(dim), &elements);
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("There is no tensor of shape ",
                                                 c->DebugString(*longer),
                                                 ": it would have too many elements, or axes."));
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_OPS_LONGER_SHAPE_H_
