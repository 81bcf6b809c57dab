// SPDX-License-Identifier: Apache-2.0
// The declaration of a rule, for host and device. A rule is a struct, a unit:
//
//     // m = momentum m - h g; w += m
//     struct MomentumRule : LaneRule {
//       static constexpr size_t kGroups = 1;  // groups of slots, one slot for each weight
//
//       TF_EMBED_HYPER(momentum);             // struct Hyper, and its names for Python
//
//       template <typename T>
//       struct Constants {                    // constants of all rows, computed once a step
//         Constants(const Rule& rule, const Hyper& hyper) : ...
//         T h;
//         T momentum;
//       };
//
//       template <typename T, typename V>
//       static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c, V g, V& w,
//                                                             V* s) { ... }
//     };
//
// A line in rule_list.h makes it a rule of tables; a line of tf_embed/optimizers/rules.py says
// which Keras optimizer it is.
//
// A step is a function of one weight (w), its slots (s) and its gradient (g), which is summed over
// all positions of the key. V is a number of the compute type T, or a pack of them, so one step
// serves every instruction set. Rows of float16 and bfloat16 are computed in float. In formulas h
// is the learning rate, t the number of the step (from 1), l the rule's weight decay. Only rows of
// the step are touched.
//
// A LaneRule steps weight by weight. A RowRule looks at a whole row first. A step goes over a row
// at most four times:
//   1. Look at each lane, if the rule wants sums of squares (kLooks of them).
//   2. Begin, once: updates the row's slots, and computes the factors from the sums and slots.
//   3. Turn each lane, if the rule needs the norm of its direction; and Settle, once.
//   4. Step at each lane; if the rule bounds norms, once more over rows that got too long.
// Slots of a row, shared by all its weights, follow the slots of each weight.
//
// A rule of several steps names them in `Steps` and chooses by its hyper-parameters in ChooseStep.
// Each step is a struct that derives from the unit.
#ifndef TF_EMBED_CC_CORE_RULES_RULE_UNIT_H_
#define TF_EMBED_CC_CORE_RULES_RULE_UNIT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "cc/core/base/pack.h"
#include "cc/core/base/platform.h"
#include "cc/core/rules/optimizer_rule.h"

// The hyper-parameters of a unit after the learning rate and Keras's weight decay, in the order of
// an op's vector `hyper`.
#define TF_EMBED_HYPER(...) \
  struct Hyper {            \
    double __VA_ARGS__;     \
  };                        \
  static constexpr char kHyperNames[] = #__VA_ARGS__

namespace tf_embed {

// The change that some rules make to all rows between this step and the next, t + 1.
struct AllRowsUpdate {
  AllRowsUpdate() = default;
  TF_EMBED_INLINE explicit AllRowsUpdate(const Rule& rule);  // in rule_list.h

  TF_EMBED_INLINE bool IsDue() const { return averages || swaps; }

  // Whether `step` is a multiple of `every`.
  static TF_EMBED_INLINE bool Divides(double every, int64_t step) {
    return every >= 1.0 && step % static_cast<int64_t>(every) == 0;
  }

  bool averages = false;
  bool swaps = false;
  bool keeps = true;
  bool of_halves = false;  // the second half of a row is the average of the first
  double share = 0.0;      // of the value that the average moves towards
};

// The sum of squares is sixteen sums, of the lanes that are equal modulo 16, which are then added
// by halves: the same bits for any width of packs.
inline constexpr size_t kSquareSums = 16;
template <typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T AddHalves(T* sums) {
  for (size_t half = kSquareSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  }
  return sums[0];
}

// The facts about a row with which a rule changes its weights.
template <typename T>
struct RowFactors {
  T keep = 1;  // factor of the weights
  T rate = 0;  // factor of the gradient or the direction
  T unbias_1 = 1;
  T unbias_2 = 1;
  T root = 1;  // of the row's second moment, and epsilon

  // Of the steps that left the row out:
  int64_t replayed = 0;  // how many of them are replayed one by one
  T keep_1 = 1;          // the share of the moments that they all leave
  T keep_2 = 1;
  T bias_1 = 1;  // 1 - beta^t at the row's last step before them
  T bias_2 = 1;
};

// The defaults of a unit.
struct RuleUnit {
  static constexpr size_t kGroups = 0;
  static constexpr size_t kIdleGroups = 0;  // groups before the others, which steps skip
  static constexpr size_t kRowSlots = 0;
  static constexpr size_t kLooks = 0;
  static constexpr bool kTurns = false;
  static constexpr bool kBoundsNorm = false;
  static constexpr bool kNeedsEvenDim = false;
  // Whether GPUs have kernels compiled for this rule, because most tables have it.
  static constexpr bool kHasKernels = false;

  struct Hyper {};
  static constexpr char kHyperNames[] = "";

  template <typename T>
  struct Constants {
    template <class Hyper>
    Constants(const Rule&, const Hyper&) {}
  };

  using Steps = void;  // the unit itself
  template <class Hyper>
  static TF_EMBED_INLINE size_t ChooseStep(const Hyper&) {
    return 0;
  }

  // The initial value of the first group of slots. The others start from 0.
  template <class Hyper>
  static double InitialSlot(const Hyper&) {
    return 0.0;
  }

  template <class Hyper>
  static TF_EMBED_INLINE AllRowsUpdate PassAfter(const Rule&, const Hyper&) {
    return AllRowsUpdate();
  }
};

struct LaneRule : RuleUnit {
  static constexpr bool kOfLanes = true;
  template <typename C, typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const C&, size_t, const T*, T*,
                                                         RowFactors<T>*) {}
};

struct RowRule : RuleUnit {
  static constexpr bool kOfLanes = false;
};

// Only the decay that precedes each rule; for a table without a fused rule.
struct NoRule : LaneRule {
  template <typename C, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const C&, V, V&, V*) {}
};

// The steps of a unit.
template <class Unit>
using StepsOf = std::conditional_t<std::is_void_v<typename Unit::Steps>, std::tuple<Unit>,
                                   typename Unit::Steps>;
template <class Unit>
inline constexpr size_t kNumSteps = std::tuple_size_v<StepsOf<Unit>>;
template <class Unit, size_t kNumber>
using StepAt = std::tuple_element_t<kNumber, StepsOf<Unit>>;

// The step of R at one lane, for a rule of either kind.
template <class R, typename C, typename T, typename V>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void StepLane(const C& c, const RowFactors<T>& row, V g, V& w,
                                                   V* s) {
  if constexpr (R::kOfLanes) {
    R::Step(c, g, w, s);
  } else {
    R::Step(c, row, g, w, s);
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_RULE_UNIT_H_
