// Steps of a rule on rows of a table, whatever type the weights are: those of float16 and bfloat16
// are widened for the step and rounded once after it, to nearest or by noise.
#ifndef TF_EMBED_CC_CORE_ROW_STEPPER_H_
#define TF_EMBED_CC_CORE_ROW_STEPPER_H_

#include <type_traits>

#include "cc/core/allocator.h"
#include "cc/core/data_type.h"
#include "cc/core/row_copy.h"
#include "cc/core/row_layout.h"
#include "cc/core/stochastic_rounding.h"
#include "cc/core/table_loops.h"

namespace tf_embed {

// For one thread. T: the weights.
template <typename T>
class RowStepper {
 public:
  using Compute = typename Number<T>::Compute;

  RowStepper(const RowLayout& layout, StepFunction<Compute> step, const Rule& rule,
             const RoundingNoise& noise, Allocator* allocator)
      : layout_(layout),
        step_(step),
        constants_(rule),
        noise_(noise),
        narrow_(allocator),
        wide_(allocator) {}

  // Comes before the first step.
  Status MakeRoom() {
    if (std::is_same_v<T, Compute>) return Status();
    TF_EMBED_RETURN_IF_ERROR(narrow_.Resize(layout_.dim));
    return wide_.Resize(layout_.dim);
  }

  // The caller is the row's only writer. `gradient` [dim]; null for a step that needs none.
  void Step(int64_t key, const Compute* gradient, char* row) {
    Compute* const slots = reinterpret_cast<Compute*>(row + layout_.slot_offset);
    if constexpr (std::is_same_v<T, Compute>) {
      step_(constants_, layout_.dim, gradient, reinterpret_cast<T*>(row), slots);
    } else {
      LoadRow(row, layout_.weight_bytes, narrow_.data());
      for (size_t j = 0; j < layout_.dim; ++j) wide_[j] = Number<T>::Load(narrow_[j]);
      step_(constants_, layout_.dim, gradient, wide_.data(), slots);
      if (constants_.rule.stochastic_rounding) {
        noise_.Round(key, wide_.data(), layout_.dim, narrow_.data());
      } else {
        for (size_t j = 0; j < layout_.dim; ++j) narrow_[j] = Number<T>::Store(wide_[j]);
      }
      StoreRow(narrow_.data(), layout_.weight_bytes, row);
    }
  }

 private:
  const RowLayout& layout_;
  const StepFunction<Compute> step_;
  const RuleConstants<Compute> constants_;
  const RoundingNoise noise_;
  Buffer<T> narrow_;
  Buffer<Compute> wide_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROW_STEPPER_H_
