// SPDX-License-Identifier: Apache-2.0
// Steps of a rule on rows of a table, for all types of weights and slots. Float16 and bfloat16 are
// widened for the step and rounded once after it: weights to nearest or stochastically, slots to
// nearest.
#ifndef TF_EMBED_CC_CORE_LOOPS_ROW_STEPPER_H_
#define TF_EMBED_CC_CORE_LOOPS_ROW_STEPPER_H_

#include <type_traits>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/loops/table_loops.h"
#include "cc/core/rows/row_copy.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/rows/stochastic_rounding.h"
#include "cc/core/rows/stored_slots.h"

namespace tf_embed {

// For one thread. T: the weight type. kNarrowSlots: the layout's narrow_slots.
template <typename T, bool kNarrowSlots>
class RowStepper {
 public:
  using Compute = typename Number<T>::Compute;

  // `stored` are the slots as stored in rows.
  RowStepper(const RowLayout& layout, const RuleSlots& stored, StepFunction<Compute> step,
             const Rule& rule, const RoundingNoise& noise, Allocator* allocator)
      : layout_(layout),
        stored_(stored),
        step_(step),
        constants_(rule),
        by_noise_(rule.stochastic_rounding),
        noise_(noise),
        narrow_(allocator),
        wide_(allocator),
        narrow_slots_(allocator),
        wide_slots_(allocator) {}

  // REQUIRES: called before the first step.
  Status MakeRoom() {
    if constexpr (kNarrowSlots) {
      TF_EMBED_RETURN_IF_ERROR(narrow_slots_.Resize(layout_.slot_bytes));
      TF_EMBED_RETURN_IF_ERROR(wide_slots_.Resize(layout_.slots_per_row));
    }
    if (std::is_same_v<T, Compute>) return Status();
    TF_EMBED_RETURN_IF_ERROR(narrow_.Resize(layout_.dim));
    return wide_.Resize(layout_.dim);
  }

  // `gradient` [dim] is null for a step that needs none. REQUIRES: the caller is the row's only
  // writer.
  void Step(int64_t key, const Compute* gradient, char* row) {
    char* const slots = row + layout_.slot_offset;
    if constexpr (kNarrowSlots) {
      LoadRow(slots, layout_.slot_bytes, narrow_slots_.data());
      WidenSlots(stored_, narrow_slots_.data(), wide_slots_.data());
      StepWith(wide_slots_.data(), key, gradient, row);
      NarrowSlots(stored_, wide_slots_.data(), narrow_slots_.data());
      StoreRow(narrow_slots_.data(), layout_.slot_bytes, slots);
    } else {
      StepWith(reinterpret_cast<Compute*>(slots), key, gradient, row);
    }
  }

 private:
  TF_EMBED_INLINE void StepWith(Compute* slots, int64_t key, const Compute* gradient, char* row) {
    if constexpr (std::is_same_v<T, Compute>) {
      step_(constants_, layout_.dim, gradient, reinterpret_cast<T*>(row), slots);
    } else {
      LoadRow(row, layout_.weight_bytes, narrow_.data());
      for (size_t j = 0; j < layout_.dim; ++j) wide_[j] = Number<T>::Load(narrow_[j]);
      step_(constants_, layout_.dim, gradient, wide_.data(), slots);
      if (by_noise_) {
        noise_.Round(key, wide_.data(), layout_.dim, narrow_.data());
      } else {
        for (size_t j = 0; j < layout_.dim; ++j) narrow_[j] = Number<T>::Store(wide_[j]);
      }
      StoreRow(narrow_.data(), layout_.weight_bytes, row);
    }
  }

  const RowLayout& layout_;
  const RuleSlots& stored_;
  const StepFunction<Compute> step_;
  const RuleConstants<Compute> constants_;
  const bool by_noise_;
  const RoundingNoise noise_;
  Buffer<T> narrow_;
  Buffer<Compute> wide_;
  Buffer<char> narrow_slots_;
  Buffer<Compute> wide_slots_;
};

// Calls function(TypeTag<RowStepper<T, kNarrowSlots>>()) with the layout's RowStepper.
template <typename T, typename Function>
auto DispatchStepper(const RowLayout& layout, const Function& function) {
  if (layout.narrow_slots) return function(TypeTag<RowStepper<T, true>>());
  return function(TypeTag<RowStepper<T, false>>());
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_LOOPS_ROW_STEPPER_H_
