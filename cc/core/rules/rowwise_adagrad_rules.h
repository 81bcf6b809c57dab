// SPDX-License-Identifier: Apache-2.0
// FBGEMM's row-wise Adagrad in all its forms, on sums of equal keys' gradients. Epsilon is outside
// of the root. rule_unit.h explains the terms.
#ifndef TF_EMBED_CC_CORE_RULES_ROWWISE_ADAGRAD_RULES_H_
#define TF_EMBED_CC_CORE_RULES_ROWWISE_ADAGRAD_RULES_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "cc/core/rules/rule_unit.h"

namespace tf_embed {

// The decay of weights; FBGEMM's WeightDecayMode.
enum class DecayMode : uint8_t {
  kNone = 0,
  kL2 = 1,
  kDecoupled = 2,
  kCounter = 3,
  kCowClip = 4,
  kDecoupledGlobal = 5,
};

// The decay of weights in a rule that counts; FBGEMM's CounterWeightDecayMode.
enum class CounterDecayMode : uint8_t { kNone = 0, kL2 = 1, kDecoupled = 2, kAdagradW = 3 };

// The learning rate of a rule that counts; FBGEMM's LearningRateMode.
enum class CounterRateMode : int8_t {
  kEqual = -1,
  kTailIncrease = 0,
  kTailDecrease = 1,
  kCounterSgd = 2,
};

template <typename T>
struct RowwiseAdagradConstants {
  template <class Hyper>
  RowwiseAdagradConstants(const Rule& rule, const Hyper& hyper)
      : h(static_cast<T>(rule.learning_rate)),
        epsilon(static_cast<T>(hyper.epsilon)),
        decay(static_cast<T>(hyper.decay)),
        keep(1.0 - rule.learning_rate * hyper.decay),
        max_norm(static_cast<T>(hyper.max_norm)),
        decay_mode(static_cast<DecayMode>(hyper.decay_mode)),
        decays_gradient(decay_mode == DecayMode::kL2) {}
  T h;
  T epsilon;
  T decay;      // l
  double keep;  // 1 - h l, for powers; a float of it would be a multiple of 2^-24
  T max_norm;   // of a row's weights after the step; 0: any
  DecayMode decay_mode;
  bool decays_gradient;  // for the row's sum of squares
};

// s += mean(q^2); w = keep w - rate g, with q = g, rate = h / (sqrt(s) + epsilon) and keep = 1; or
//   kL2:         q = g + l w, keep = 1 - rate l
//   kDecoupled:  keep = 1 - h l
// or as in `Decay` of the unit `Form`. Slots: s, then the form's slots.
template <class Form, bool kLooksAtWeights>
struct RowwiseAdagradStep : Form {
  static constexpr size_t kLooks = kLooksAtWeights ? 2 : 1;
  static constexpr bool kBoundsNorm = true;
  static constexpr bool kHasKernels = Form::kHasKernels && !kLooksAtWeights;

  template <class C, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Look(const C& c, V g, V w, V* x) {
    x[0] = g;
    if constexpr (kLooksAtWeights) {
      if (c.decays_gradient) x[0] += c.decay * w;
      x[1] = w;
    }
  }

  template <class C, typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const C& c, size_t dim, const T* sums,
                                                         T* s, RowFactors<T>* row) {
    s[0] += sums[0] / static_cast<T>(dim);
    row->rate = c.h / (Sqrt(s[0]) + c.epsilon);
    switch (c.decay_mode) {
      case DecayMode::kNone:
        break;
      case DecayMode::kL2:
        row->keep = 1 - row->rate * c.decay;
        break;
      case DecayMode::kDecoupled:
        row->keep = 1 - c.h * c.decay;
        break;
      case DecayMode::kDecoupledGlobal:
      case DecayMode::kCounter:
      case DecayMode::kCowClip:
        Form::Decay(c, sums, s, row);
        break;
    }
  }

  template <class C, typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const C&, const RowFactors<T>& row, V g,
                                                        V& w, V*) {
    w = row.keep * w - row.rate * g;
  }
};

// Row-wise Adagrad with the plain modes of decay.
struct RowwiseAdagradRule : RowRule {
  static constexpr size_t kRowSlots = 1;
  static constexpr bool kHasKernels = true;

  TF_EMBED_HYPER(initial_accumulator_value, epsilon, decay, decay_mode, max_norm);
  static double InitialSlot(const Hyper& hyper) { return hyper.initial_accumulator_value; }

  template <typename T>
  using Constants = RowwiseAdagradConstants<T>;

  using Steps = std::tuple<RowwiseAdagradStep<RowwiseAdagradRule, false>,
                           RowwiseAdagradStep<RowwiseAdagradRule, true>>;
  template <class Hyper>
  static TF_EMBED_INLINE size_t ChooseStep(const Hyper& hyper) {
    return static_cast<DecayMode>(hyper.decay_mode) == DecayMode::kL2;
  }

  template <class C, typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Decay(const C&, const T*, T*, RowFactors<T>*) {}
};

// Row-wise Adagrad of rows whose second half is an average of the first. If average_every divides
// t + 1, which is not before average_start: w_2 += average_coefficient (w_1 - w_2).
struct EmaRowwiseAdagradRule : RowwiseAdagradRule {
  static constexpr bool kNeedsEvenDim = true;

  TF_EMBED_HYPER(epsilon, decay, decay_mode, max_norm, average_every, average_start,
                 average_coefficient);
  static double InitialSlot(const Hyper&) { return 0.0; }

  static TF_EMBED_INLINE AllRowsUpdate PassAfter(const Rule& rule, const Hyper& hyper) {
    const int64_t next = rule.step + 1;
    AllRowsUpdate pass;
    pass.averages = AllRowsUpdate::Divides(hyper.average_every, next) &&
                    static_cast<double>(next) >= hyper.average_start;
    pass.of_halves = true;
    pass.share = hyper.average_coefficient;
    return pass;
  }
};

// Row-wise Adagrad with an average of the weights, z. Slots: z, then s.
// If average_every divides t + 1: z += (1 - k)(w - z), where k is 0 up to average_start and then
// average_coefficient. If swap_every does: w = z. If the rule does not keep the average, z = 0 once
// it was taken. A z that is NaN, as in new rows, is the row's weights.
struct EnsembleRowwiseAdagradRule : RowRule {
  static constexpr size_t kIdleGroups = 1;
  static constexpr size_t kRowSlots = 1;

  TF_EMBED_HYPER(epsilon, decay, decay_mode, max_norm, initial_average, average_every, swap_every,
                 average_start, average_coefficient, keeps_average);  // keeps_average: 0 or 1
  static double InitialSlot(const Hyper& hyper) { return hyper.initial_average; }

  template <typename T>
  using Constants = RowwiseAdagradConstants<T>;

  using Steps = std::tuple<RowwiseAdagradStep<EnsembleRowwiseAdagradRule, false>,
                           RowwiseAdagradStep<EnsembleRowwiseAdagradRule, true>>;
  static TF_EMBED_INLINE size_t ChooseStep(const Hyper& hyper) {
    return static_cast<DecayMode>(hyper.decay_mode) == DecayMode::kL2;
  }

  template <class C, typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Decay(const C&, const T*, T*, RowFactors<T>*) {}

  static TF_EMBED_INLINE AllRowsUpdate PassAfter(const Rule& rule, const Hyper& hyper) {
    const int64_t next = rule.step + 1;
    AllRowsUpdate pass;
    pass.averages = AllRowsUpdate::Divides(hyper.average_every, next);
    pass.swaps = AllRowsUpdate::Divides(hyper.swap_every, next);
    pass.keeps = hyper.keeps_average != 0.0;
    pass.share =
        static_cast<double>(next) <= hyper.average_start ? 1.0 : 1.0 - hyper.average_coefficient;
    return pass;
  }
};

// Row-wise Adagrad with kDecoupledGlobal: weights also decay for the steps that left their row out.
// Slots: s, and the previous step.
struct RowwiseAdagradGlobalRule : RowRule {
  static constexpr size_t kRowSlots = 2;

  // start_step: the first step that makes up for skipped steps. lower_bound: of the factor by which
  // these decay the weights.
  TF_EMBED_HYPER(epsilon, decay, decay_mode, max_norm, start_step, lower_bound);

  template <typename T>
  struct Constants : RowwiseAdagradConstants<T> {
    Constants(const Rule& rule, const Hyper& hyper)
        : RowwiseAdagradConstants<T>(rule, hyper),
          t(static_cast<T>(rule.step)),
          start_step(static_cast<T>(hyper.start_step)),
          lower_bound(static_cast<T>(hyper.lower_bound)) {}
    T t;
    T start_step;
    T lower_bound;
  };

  using Steps = std::tuple<RowwiseAdagradStep<RowwiseAdagradGlobalRule, false>>;

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Decay(const Constants<T>& c, const T*, T* s,
                                                         RowFactors<T>* row) {
    if (c.decay_mode != DecayMode::kDecoupledGlobal) return;
    row->keep = MissedDecay(c, &s[1]) * (1 - c.h * c.decay);
  }

 private:
  // Returns the factor by which the steps that left a row out decay its weights: (1 - h l)^(their
  // number), with the present h, and at least the bound. Sets `previous` to the present step.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T MissedDecay(const Constants<T>& c, T* previous) {
    if (c.t < c.start_step) return 1;
    const T missed = *previous == 0 ? 0 : c.t - *previous - 1;
    *previous = c.t;
    if (missed <= 0) return 1;
    const T factor = static_cast<T>(Power(c.keep, static_cast<double>(missed)));
    return factor < c.lower_bound ? c.lower_bound : factor;
  }
};

// Row-wise Adagrad with kCounter and kCowClip, which count the steps of a row. Slots: s, the
// previous step, and the count.
struct RowwiseAdagradCounterRule : RowRule {
  static constexpr size_t kRowSlots = 3;

  // counter_decay_mode: CounterDecayMode. counter_rate_mode: CounterRateMode. lower_bound: see
  // ClipByCounter.
  TF_EMBED_HYPER(epsilon, decay, decay_mode, max_norm, counter_decay_mode, counter_half_life,
                 adjustment_step, adjustment_bound, counter_rate_mode, tail_threshold, max_counter,
                 norm_coefficient, lower_bound);

  template <typename T>
  struct Constants : RowwiseAdagradConstants<T> {
    Constants(const Rule& rule, const Hyper& hyper)
        : RowwiseAdagradConstants<T>(rule, hyper),
          t(static_cast<T>(rule.step)),
          half_life(static_cast<T>(hyper.counter_half_life)),
          first(static_cast<T>(hyper.adjustment_step)),
          bound(static_cast<T>(hyper.adjustment_bound)),
          tail_threshold(static_cast<T>(hyper.tail_threshold)),
          max_counter(static_cast<T>(hyper.max_counter)),
          norm_coefficient(static_cast<T>(hyper.norm_coefficient)),
          lower_bound(static_cast<T>(hyper.lower_bound)),
          counter_decay_mode(static_cast<CounterDecayMode>(hyper.counter_decay_mode)),
          counter_rate_mode(static_cast<CounterRateMode>(hyper.counter_rate_mode)) {
      if (this->decay_mode == DecayMode::kCounter || this->decay_mode == DecayMode::kCowClip) {
        this->decays_gradient = counter_decay_mode == CounterDecayMode::kL2;
      }
    }
    T t;
    T half_life;
    T first;
    T bound;
    T tail_threshold;
    T max_counter;
    T norm_coefficient;
    T lower_bound;
    CounterDecayMode counter_decay_mode;
    CounterRateMode counter_rate_mode;
  };

  using Steps = std::tuple<RowwiseAdagradStep<RowwiseAdagradCounterRule, true>>;

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Decay(const Constants<T>& c, const T* sums, T* s,
                                                         RowFactors<T>* row) {
    if (c.decay_mode == DecayMode::kCounter) AdjustByCounter(c, s, row);
    if (c.decay_mode == DecayMode::kCowClip) ClipByCounter(c, sums, s, row);
  }

 private:
  // Counts a step of a row, and returns how many steps ago the previous step was, or 1. Counts
  // halve with the half-life. Without a half-life (below 0) they do not; at 0 only the present step
  // counts.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T Count(const Constants<T>& c, T* previous,
                                                      T* count) {
    const T gap = *previous == 0 ? 1 : c.t - *previous;
    *previous = c.t;
    if (c.half_life > 0) {
      *count = 1 + Power(T(2), -gap / c.half_life) * *count;
    } else {
      *count = c.half_life == 0 ? 1 : *count + 1;
    }
    return gap;
  }

  // n counts the row's steps; l is multiplied by half-life / n. The rate of rows whose n is above a
  // threshold may be adjusted.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void AdjustByCounter(const Constants<T>& c, T* s,
                                                                   RowFactors<T>* row) {
    const T gap = Count(c, &s[1], &s[2]);
    const T n = s[2];
    if (c.first > 0 && c.t <= c.first) return;
    // Without a half-life, FBGEMM's frequency is below 0, and weights would grow.
    const T frequency = c.half_life > 0 ? c.half_life / n : 1;
    const T rate = row->rate;
    if (n > c.tail_threshold) {
      switch (c.counter_rate_mode) {
        case CounterRateMode::kEqual:
          break;
        case CounterRateMode::kTailIncrease:
          row->rate = rate * Clip(Power(c.max_counter / (n + 1), c.bound), T(1), T(10));
          break;
        case CounterRateMode::kTailDecrease:
          row->rate = rate * Clip(Power((n + 1) / c.max_counter, c.bound), T(0.1), T(1));
          break;
        case CounterRateMode::kCounterSgd:
          row->rate = c.h / (Sqrt(c.bound * n) + c.epsilon);
          break;
      }
    }
    switch (c.counter_decay_mode) {
      case CounterDecayMode::kNone:
        break;
      case CounterDecayMode::kL2:
        row->keep = 1 - frequency * c.decay * rate;
        break;
      case CounterDecayMode::kDecoupled:
        row->keep = 1 - frequency * c.decay * c.h;
        break;
      case CounterDecayMode::kAdagradW: {
        if (c.half_life == -1) row->rate = rate * Sqrt(n);
        if (c.half_life == -2) {
          row->rate = (c.h * n < c.bound ? c.h * n : c.bound) / (Sqrt(s[0]) + c.epsilon);
        }
        const T since_first = c.t - c.first;
        const T missed = (gap < since_first ? gap : since_first) - 1;
        row->keep = 1 - c.decay * c.h;
        const T lazy = missed > 0 ? static_cast<T>(Power(c.keep, static_cast<double>(missed))) : 1;
        row->rate *= lazy;
        row->keep *= lazy;
        break;
      }
    }
  }

  // CowClip (Zheng et al., 2022), by row: the gradient is clipped to n max(coefficient ||w||,
  // bound).
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void ClipByCounter(const Constants<T>& c,
                                                                 const T* sums, T* s,
                                                                 RowFactors<T>* row) {
    Count(c, &s[1], &s[2]);
    const T of_weights = c.norm_coefficient * Sqrt(sums[1]);
    const T most = s[2] * (of_weights < c.lower_bound ? c.lower_bound : of_weights);
    const T norm = Sqrt(sums[0]);
    if (norm > most) row->rate *= most / norm;
    switch (c.counter_decay_mode) {
      case CounterDecayMode::kL2:
        row->keep = 1 - c.decay * row->rate;
        break;
      case CounterDecayMode::kDecoupled:
        row->keep = 1 - c.decay * c.h;
        break;
      default:
        break;
    }
  }
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T Clip(T x, T least, T most) {
    return x < least ? least : x > most ? most : x;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_ROWWISE_ADAGRAD_RULES_H_
