// The optimizer rules that look at a whole row before they change its weights, for host and device:
// those of FBGEMM's table-batched embeddings, on sums of equal keys' gradients. Epsilon is outside
// of the root in all of them. optimizer_rule.h has the words; l is the rule's own decay.
//
// A step goes over a row at most four times:
//   1. Look at each lane, where the rule wants sums of squares (kLooks of them).
//   2. Begin, once: the row's slots, and from the sums and slots the factors.
//   3. Turn each lane, where the rule needs the norm of its direction; and Settle, once.
//   4. Step at each lane; where the rule bounds norms, once more over rows that got too long.
//
// Slots of a row, one for all weights, lie behind those of each weight.
#ifndef TF_EMBED_CC_CORE_RULES_ROW_RULE_H_
#define TF_EMBED_CC_CORE_RULES_ROW_RULE_H_

#include <cstddef>

#include "cc/core/rules/optimizer_rule.h"

namespace tf_embed {

// Squares are added up in sixteen sums, of the lanes that are alike modulo 16, and these by halves:
// the same bits for any width of packs.
inline constexpr size_t kSquareSums = 16;
template <typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T AddHalves(T* sums) {
  for (size_t half = kSquareSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  }
  return sums[0];
}

// What a rule knows of a row when it changes the weights.
template <typename T>
struct RowFactors {
  T keep = 1;  // what weights are multiplied with
  T rate = 0;  // what the gradient or the direction is multiplied with
  T unbias_1 = 1;
  T unbias_2 = 1;
  T root = 1;  // of the row's second moment, and epsilon
};

template <typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T Clip(T x, T least, T most) {
  return x < least ? least : x > most ? most : x;
}

// A rule that looks at nothing; those of optimizer_rule.h run as such.
struct LaneRule {
  static constexpr size_t kIdleGroups = 0;  // groups that steps only pass over
  static constexpr size_t kRowSlots = 0;
  static constexpr size_t kLooks = 0;
  static constexpr bool kTurns = false;
  static constexpr bool kBoundsNorm = false;
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const RuleConstants<T>&, size_t, const T*,
                                                         T*, RowFactors<T>*) {}
};

// s += mean(q^2); w = keep w - rate g, where q = g, rate = h / (sqrt(s) + epsilon) and keep = 1; or
//   kL2:         q = g + l w, keep = 1 - rate l
//   kDecoupled:  keep = 1 - h l
//   kDecoupledGlobal, kCounter, kCowClip: see below.
// Slots: s, then the step before and the number of steps of the row where the decay needs them. An
// average of the weights lies before them where `kHoldsAverage`; see TablePass.
template <size_t kSlots, bool kLooksAtWeights, bool kHoldsAverage = false>
struct RowwiseAdagradRule : LaneRule {
  static constexpr size_t kGroups = 0;
  static constexpr size_t kIdleGroups = kHoldsAverage ? 1 : 0;
  static constexpr size_t kRowSlots = kSlots;
  static constexpr size_t kLooks = kLooksAtWeights ? 2 : 1;
  static constexpr bool kBoundsNorm = true;

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Look(const RuleConstants<T>& c, V g, V w, V* x) {
    x[0] = g;
    if constexpr (kLooksAtWeights) {
      if (c.decays_gradient) x[0] += c.decay * w;
      x[1] = w;
    }
  }

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const RuleConstants<T>& c, size_t dim,
                                                         const T* sums, T* s, RowFactors<T>* row) {
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
        if constexpr (kSlots == 2) row->keep = MissedDecay(c, &s[1]) * (1 - c.h * c.decay);
        break;
      case DecayMode::kCounter:
        if constexpr (kSlots == 3) AdjustByCounter(c, s, row);
        break;
      case DecayMode::kCowClip:
        if constexpr (kSlots == 3) ClipByCounter(c, sums, s, row);
        break;
    }
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>&,
                                                        const RowFactors<T>& row, V g, V& w, V*) {
    w = row.keep * w - row.rate * g;
  }

 private:
  // What the steps that left a row out would have made of its weights: (1 - h l)^(their number),
  // by the present h, and no less than the bound.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T MissedDecay(const RuleConstants<T>& c,
                                                            T* previous) {
    const T t = static_cast<T>(c.rule.step);
    if (t < static_cast<T>(c.rule.start_step)) return 1;
    const T missed = *previous == 0 ? 0 : t - *previous - 1;
    *previous = t;
    if (missed <= 0) return 1;
    const T factor = Power(1 - c.h * c.decay, missed);
    const T bound = static_cast<T>(c.rule.lower_bound);
    return factor < bound ? bound : factor;
  }

  // Counts a step of a row, and returns how many steps ago the one before was, or 1. Counts halve
  // with the half-life; without one (below 0) they do not, at 0 there is no count but the present.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T Count(const RuleConstants<T>& c, T* previous,
                                                      T* count) {
    const T t = static_cast<T>(c.rule.step);
    const T half_life = static_cast<T>(c.rule.counter_half_life);
    const T gap = *previous == 0 ? 1 : t - *previous;
    *previous = t;
    if (half_life > 0) {
      *count = 1 + Power(T(2), -gap / half_life) * *count;
    } else {
      *count = half_life == 0 ? 1 : *count + 1;
    }
    return gap;
  }

  // n counts the row's steps; l is multiplied with half-life / n. The rate of rows whose n is above
  // a threshold may be adjusted.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void AdjustByCounter(const RuleConstants<T>& c, T* s,
                                                                   RowFactors<T>* row) {
    const Rule& rule = c.rule;
    const T gap = Count(c, &s[1], &s[2]);
    const T n = s[2];
    const T t = static_cast<T>(rule.step);
    const T first = static_cast<T>(rule.adjustment_step);
    if (first > 0 && t <= first) return;
    const T bound = static_cast<T>(rule.adjustment_bound);
    const T most = static_cast<T>(rule.max_counter);
    const T half_life = static_cast<T>(rule.counter_half_life);
    // Without a half-life, FBGEMM's is below 0, and weights would grow.
    const T frequency = half_life > 0 ? half_life / n : 1;
    const T rate = row->rate;
    if (n > static_cast<T>(rule.tail_threshold)) {
      switch (static_cast<CounterRateMode>(rule.counter_rate_mode)) {
        case CounterRateMode::kEqual:
          break;
        case CounterRateMode::kTailIncrease:
          row->rate = rate * Clip(Power(most / (n + 1), bound), T(1), T(10));
          break;
        case CounterRateMode::kTailDecrease:
          row->rate = rate * Clip(Power((n + 1) / most, bound), T(0.1), T(1));
          break;
        case CounterRateMode::kCounterSgd:
          row->rate = c.h / (Sqrt(bound * n) + c.epsilon);
          break;
      }
    }
    switch (static_cast<CounterDecayMode>(rule.counter_decay_mode)) {
      case CounterDecayMode::kNone:
        break;
      case CounterDecayMode::kL2:
        row->keep = 1 - frequency * c.decay * rate;
        break;
      case CounterDecayMode::kDecoupled:
        row->keep = 1 - frequency * c.decay * c.h;
        break;
      case CounterDecayMode::kAdagradW: {
        if (half_life == -1) row->rate = rate * Sqrt(n);
        if (half_life == -2) {
          row->rate = (c.h * n < bound ? c.h * n : bound) / (Sqrt(s[0]) + c.epsilon);
        }
        const T since_first = t - first;
        const T missed = (gap < since_first ? gap : since_first) - 1;
        row->keep = 1 - c.decay * c.h;
        const T lazy = missed > 0 ? Power(row->keep, missed) : 1;
        row->rate *= lazy;
        row->keep *= lazy;
        break;
      }
    }
  }

  // CowClip (Zheng et al., 2022), by row: the gradient is clipped to n max(coefficient ||w||,
  // bound).
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void ClipByCounter(const RuleConstants<T>& c,
                                                                 const T* sums, T* s,
                                                                 RowFactors<T>* row) {
    Count(c, &s[1], &s[2]);
    const T of_weights = static_cast<T>(c.rule.norm_coefficient) * Sqrt(sums[1]);
    const T bound = static_cast<T>(c.rule.lower_bound);
    const T most = s[2] * (of_weights < bound ? bound : of_weights);
    const T norm = Sqrt(sums[0]);
    if (norm > most) row->rate *= most / norm;
    switch (static_cast<CounterDecayMode>(c.rule.counter_decay_mode)) {
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
};

// m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
// r = m / (1 - beta_1^k) / (sqrt(v / (1 - beta_2^k)) + epsilon) + l w; w -= h r
// k is t, or counts the row's own steps (kCounts). kRowwiseMoment: one v a row, of mean(g^2).
// kTrusts: w -= h (||w|| / ||r||) r (You et al., Large Batch Optimization for Deep Learning, 2020);
// where one of the norms is 0, their ratio is taken as 1, or a row of zeros would stay so.
template <bool kRowwiseMoment, bool kCounts, bool kTrusts>
struct RowAdamRule : LaneRule {
  static constexpr size_t kGroups = kRowwiseMoment ? 1 : 2;
  static constexpr size_t kRowSlots = kRowwiseMoment || kCounts ? 1 : 0;
  static constexpr size_t kLooks = kRowwiseMoment ? 1 : 0;
  static constexpr bool kTurns = kTrusts;
  static_assert(!(kRowwiseMoment && kCounts), "one slot");

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Look(const RuleConstants<T>&, V g, V, V* x) {
    x[0] = g;
  }

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const RuleConstants<T>& c, size_t dim,
                                                         const T* sums, T* s, RowFactors<T>* row) {
    row->rate = c.h;
    row->unbias_1 = c.unbias_1;
    row->unbias_2 = c.unbias_2;
    if constexpr (kCounts) {
      s[0] += 1;
      const double k = static_cast<double>(s[0]);
      row->unbias_1 = static_cast<T>(1.0 / (1.0 - Power(c.rule.beta_1, k)));
      row->unbias_2 = static_cast<T>(1.0 / (1.0 - Power(c.rule.beta_2, k)));
    }
    if constexpr (kRowwiseMoment) {
      s[0] = c.beta_2 * s[0] + c.one_minus_beta_2 * (sums[0] / static_cast<T>(dim));
      row->root = Sqrt(s[0] * row->unbias_2) + c.epsilon;
    }
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE V Turn(const RuleConstants<T>& c,
                                                     const RowFactors<T>& row, V g, V w, V* s) {
    s[0] = c.beta_1 * s[0] + c.one_minus_beta_1 * g;
    if constexpr (!kRowwiseMoment) s[1] = c.beta_2 * s[1] + c.one_minus_beta_2 * (g * g);
    return Direction(c, row, w, s);
  }

  // From the squares of the directions and of the weights.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Settle(const RuleConstants<T>& c, const T* sums,
                                                          RowFactors<T>* row) {
    if (sums[0] > 0 && sums[1] > 0) row->rate = c.h * (Sqrt(sums[1]) / Sqrt(sums[0]));
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c,
                                                        const RowFactors<T>& row, V g, V& w, V* s) {
    w -= row.rate * (kTrusts ? Direction(c, row, w, s) : Turn(c, row, g, w, s));
  }

 private:
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE V Direction(const RuleConstants<T>& c,
                                                          const RowFactors<T>& row, V w,
                                                          const V* s) {
    const V m = s[0] * row.unbias_1;
    if constexpr (kRowwiseMoment) {
      return m / row.root + c.decay * w;
    } else {
      return m / (Sqrt(s[1] * row.unbias_2) + c.epsilon) + c.decay * w;
    }
  }
};

// a = h eta ||w|| / (||g|| + l ||w||); m = momentum m + a (g + l w); w -= m
// (You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, 2017). Where ||w|| or
// the divisor is 0, a = h.
struct LarsRule : LaneRule {
  static constexpr size_t kGroups = 1;
  static constexpr size_t kLooks = 2;

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Look(const RuleConstants<T>&, V g, V w, V* x) {
    x[0] = g;
    x[1] = w;
  }

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const RuleConstants<T>& c, size_t,
                                                         const T* sums, T*, RowFactors<T>* row) {
    const T of_weights = Sqrt(sums[1]);
    const T divisor = Sqrt(sums[0]) + c.decay * of_weights;
    const bool counts = of_weights > 0 && divisor > 0;
    row->rate = counts ? c.h * static_cast<T>(c.rule.eta) * of_weights / divisor : c.h;
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c,
                                                        const RowFactors<T>& row, V g, V& w, V* s) {
    s[0] = c.momentum * s[0] + row.rate * (g + c.decay * w);
    w -= s[0];
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_ROW_RULE_H_
