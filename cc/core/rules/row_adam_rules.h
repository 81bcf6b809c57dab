// SPDX-License-Identifier: Apache-2.0
// FBGEMM's Adam, LAMB and LARS, on sums of equal keys' gradients. Epsilon is outside of the root.
// rule_unit.h explains the terms.
#ifndef TF_EMBED_CC_CORE_RULES_ROW_ADAM_RULES_H_
#define TF_EMBED_CC_CORE_RULES_ROW_ADAM_RULES_H_

#include <cmath>
#include <cstddef>

#include "cc/core/rules/rule_unit.h"

namespace tf_embed {

// m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
// r = m / (1 - beta_1^k) / (sqrt(v / (1 - beta_2^k)) + epsilon) + l w; w -= h r
// k is t, or counts the row's steps (kCounts). kRowwiseMoment: one v a row, of mean(g^2).
// kTrusts: w -= h (||w|| / ||r||) r (You et al., Large Batch Optimization for Deep Learning, 2020);
// if one of the norms is 0, their ratio is taken as 1, because otherwise zero rows would stay zero.
template <bool kRowwiseMoment, bool kCounts, bool kTrusts>
struct RowAdamRule : RowRule {
  static constexpr size_t kGroups = kRowwiseMoment ? 1 : 2;
  static constexpr size_t kRowSlots = kRowwiseMoment || kCounts ? 1 : 0;
  static constexpr size_t kLooks = kRowwiseMoment ? 1 : 0;
  static constexpr bool kTurns = kTrusts;
  static_assert(!(kRowwiseMoment && kCounts), "one slot");

  TF_EMBED_HYPER(epsilon, decay, beta_1, beta_2);

  template <typename T>
  struct Constants {
    Constants(const Rule& rule, const Hyper& hyper)
        : h(static_cast<T>(rule.learning_rate)),
          epsilon(static_cast<T>(hyper.epsilon)),
          decay(static_cast<T>(hyper.decay)),
          beta_1(static_cast<T>(hyper.beta_1)),
          beta_2(static_cast<T>(hyper.beta_2)),
          one_minus_beta_1(static_cast<T>(1.0 - hyper.beta_1)),
          one_minus_beta_2(static_cast<T>(1.0 - hyper.beta_2)),
          hyper(hyper) {
      const double t = static_cast<double>(rule.step);
      unbias_1 = static_cast<T>(1.0 / (1.0 - std::pow(hyper.beta_1, t)));
      unbias_2 = static_cast<T>(1.0 / (1.0 - std::pow(hyper.beta_2, t)));
    }
    T h;
    T epsilon;
    T decay;
    T beta_1;
    T beta_2;
    T one_minus_beta_1;
    T one_minus_beta_2;
    T unbias_1;  // 1 / (1 - beta_1^t)
    T unbias_2;
    Hyper hyper;  // for powers, which are taken in doubles
  };

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Look(const Constants<T>&, V g, V, V* x) {
    x[0] = g;
  }

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const Constants<T>& c, size_t dim,
                                                         const T* sums, T* s, RowFactors<T>* row) {
    row->rate = c.h;
    row->unbias_1 = c.unbias_1;
    row->unbias_2 = c.unbias_2;
    if constexpr (kCounts) {
      s[0] += 1;
      const double k = static_cast<double>(s[0]);
      row->unbias_1 = static_cast<T>(1.0 / (1.0 - Power(c.hyper.beta_1, k)));
      row->unbias_2 = static_cast<T>(1.0 / (1.0 - Power(c.hyper.beta_2, k)));
    }
    if constexpr (kRowwiseMoment) {
      s[0] = c.beta_2 * s[0] + c.one_minus_beta_2 * (sums[0] / static_cast<T>(dim));
      row->root = Sqrt(s[0] * row->unbias_2) + c.epsilon;
    }
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE V Turn(const Constants<T>& c,
                                                     const RowFactors<T>& row, V g, V w, V* s) {
    s[0] = c.beta_1 * s[0] + c.one_minus_beta_1 * g;
    if constexpr (!kRowwiseMoment) s[1] = c.beta_2 * s[1] + c.one_minus_beta_2 * (g * g);
    return Direction(c, row, w, s);
  }

  // From the squares of the directions and of the weights.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Settle(const Constants<T>& c, const T* sums,
                                                          RowFactors<T>* row) {
    if (sums[0] > 0 && sums[1] > 0) row->rate = c.h * (Sqrt(sums[1]) / Sqrt(sums[0]));
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c,
                                                        const RowFactors<T>& row, V g, V& w, V* s) {
    w -= row.rate * (kTrusts ? Direction(c, row, w, s) : Turn(c, row, g, w, s));
  }

 private:
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE V Direction(const Constants<T>& c,
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
// (You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, 2017). If ||w|| or the
// divisor is 0, a = h.
struct LarsRule : RowRule {
  static constexpr size_t kGroups = 1;
  static constexpr size_t kLooks = 2;

  TF_EMBED_HYPER(momentum, decay, eta);

  template <typename T>
  struct Constants {
    Constants(const Rule& rule, const Hyper& hyper)
        : h(static_cast<T>(rule.learning_rate)),
          momentum(static_cast<T>(hyper.momentum)),
          decay(static_cast<T>(hyper.decay)),
          eta(static_cast<T>(hyper.eta)) {}
    T h;
    T momentum;
    T decay;
    T eta;
  };

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Look(const Constants<T>&, V g, V w, V* x) {
    x[0] = g;
    x[1] = w;
  }

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const Constants<T>& c, size_t,
                                                         const T* sums, T*, RowFactors<T>* row) {
    const T of_weights = Sqrt(sums[1]);
    const T divisor = Sqrt(sums[0]) + c.decay * of_weights;
    const bool counts = of_weights > 0 && divisor > 0;
    row->rate = counts ? c.h * c.eta * of_weights / divisor : c.h;
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c,
                                                        const RowFactors<T>& row, V g, V& w, V* s) {
    s[0] = c.momentum * s[0] + row.rate * (g + c.decay * w);
    w -= s[0];
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_ROW_ADAM_RULES_H_
