// SPDX-License-Identifier: Apache-2.0
// Parts of shape functions.
#ifndef TF_EMBED_CC_OPS_SHAPES_H_
#define TF_EMBED_CC_OPS_SHAPES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_embed {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Checks the ranks of the first inputs; -1: any.
inline absl::Status CheckRanks(InferenceContext* c, const std::vector<int>& ranks) {
  ShapeHandle unused;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    if (ranks[i] >= 0) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), ranks[i], &unused));
  }
  return absl::OkStatus();
}

// The shape function of an op of which only the ranks of the first inputs, as in CheckRanks, and of
// the outputs are known.
inline auto Ranks(std::vector<int> inputs, std::vector<int> outputs = {}) {
  return [inputs = std::move(inputs),
          outputs = std::move(outputs)](InferenceContext* c) -> absl::Status {
    for (int i = 0; i < static_cast<int>(outputs.size()); ++i) {
      c->set_output(i, c->UnknownShapeOfRank(outputs[i]));
    }
    return CheckRanks(c, inputs);
  };
}

// Returns shape + [size]. Fails if the known axes and elements exceed a tensor's limits: TensorFlow
// aborts the process on a shape that no tensor can have.
inline absl::Status WithAxis(InferenceContext* c, ShapeHandle shape,
                             tensorflow::shape_inference::DimensionOrConstant size,
                             ShapeHandle* longer) {
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

#endif  // TF_EMBED_CC_OPS_SHAPES_H_
