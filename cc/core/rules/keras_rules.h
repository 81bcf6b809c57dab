// SPDX-License-Identifier: Apache-2.0
// The rules of Keras's optimizers, and FBGEMM's exact Adagrad. rule_unit.h explains the terms.
#ifndef TF_EMBED_CC_CORE_RULES_KERAS_RULES_H_
#define TF_EMBED_CC_CORE_RULES_KERAS_RULES_H_

#include <cmath>
#include <cstddef>
#include <tuple>

#include "cc/core/rules/rule_unit.h"

namespace tf_embed {

// The number of type T that is nearest to x. Volatile, because GCC 12 forgets to round if it
// vectorizes two such conversions from double to float and back.
template <typename T>
double Nearest(double x) {
  const volatile T nearest = static_cast<T>(x);
  return nearest;
}

// w -= h g
struct SgdRule : LaneRule {
  static constexpr bool kHasKernels = true;

  template <typename T>
  struct Constants {
    Constants(const Rule& rule, const Hyper&) : h(static_cast<T>(rule.learning_rate)) {}
    T h;
  };

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c, V g, V& w, V*) {
    w -= c.h * g;
  }
};

// m = momentum m - h g; w += m, or w += momentum m - h g with Nesterov.
struct MomentumRule : LaneRule {
  static constexpr size_t kGroups = 1;

  TF_EMBED_HYPER(momentum, nesterov);  // nesterov: 0 or 1

  template <typename T>
  struct Constants {
    Constants(const Rule& rule, const Hyper& hyper)
        : h(static_cast<T>(rule.learning_rate)), momentum(static_cast<T>(hyper.momentum)) {}
    T h;
    T momentum;
  };

  template <bool kNesterov>
  struct By;
  using Steps = std::tuple<By<false>, By<true>>;
  static TF_EMBED_INLINE size_t ChooseStep(const Hyper& hyper) { return hyper.nesterov != 0.0; }
};
template <bool kNesterov>
struct MomentumRule::By : MomentumRule {
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c, V g, V& w, V* s) {
    V& m = s[0];
    m = c.momentum * m - c.h * g;
    w += kNesterov ? c.momentum * m - c.h * g : m;
  }
};

// The constants of both Adagrads.
template <typename T>
struct AdagradConstants {
  template <class Hyper>
  AdagradConstants(const Rule& rule, const Hyper& hyper)
      : h(static_cast<T>(rule.learning_rate)), epsilon(static_cast<T>(hyper.epsilon)) {}
  T h;
  T epsilon;
};

// s += g^2; w -= h g / sqrt(s + epsilon)          (Duchi, Hazan and Singer, 2011; as Keras)
struct AdagradRule : LaneRule {
  static constexpr size_t kGroups = 1;
  static constexpr bool kHasKernels = true;

  TF_EMBED_HYPER(initial_accumulator_value, epsilon);
  static double InitialSlot(const Hyper& hyper) { return hyper.initial_accumulator_value; }

  template <typename T>
  using Constants = AdagradConstants<T>;

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const AdagradConstants<T>& c, V g, V& w,
                                                        V* s) {
    s[0] += g * g;
    w -= c.h * g / Sqrt(s[0] + c.epsilon);
  }
};

// s += g^2; w -= h g / (sqrt(s) + epsilon)        (as FBGEMM)
struct ExactAdagradRule : LaneRule {
  static constexpr size_t kGroups = 1;

  TF_EMBED_HYPER(epsilon);

  template <typename T>
  using Constants = AdagradConstants<T>;

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const AdagradConstants<T>& c, V g, V& w,
                                                        V* s) {
    s[0] += g * g;
    w -= c.h * g / (Sqrt(s[0]) + c.epsilon);
  }
};

// The constants of Keras's Adam.
template <typename T>
struct AdamConstants {
  template <class Hyper>
  AdamConstants(const Rule& rule, const Hyper& hyper)
      : one_minus_beta_1(static_cast<T>(1.0 - hyper.beta_1)),
        one_minus_beta_2(static_cast<T>(1.0 - hyper.beta_2)),
        epsilon(static_cast<T>(hyper.epsilon)) {
    // Keras rounds the betas to float here, whatever the variable's type, and only here. At 0.999
    // that changes alpha by a relative 6e-6, which twenty steps would show.
    const double beta_1 = Nearest<float>(hyper.beta_1);
    const double beta_2 = Nearest<float>(hyper.beta_2);
    const double t = static_cast<double>(rule.step);
    alpha = static_cast<T>(rule.learning_rate * std::sqrt(1.0 - std::pow(beta_2, t)) /
                           (1.0 - std::pow(beta_1, t)));
  }
  T one_minus_beta_1;
  T one_minus_beta_2;
  T epsilon;
  T alpha;
};

// m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); w -= alpha m / (sqrt(v) + epsilon), where
// alpha = h sqrt(1 - beta_2^t) / (1 - beta_1^t)
// (Kingma and Ba, 2015, section 2; as Keras). Amsgrad: the largest v so far in place of v (Reddi,
// Kale and Kumar, 2018).
template <bool kAmsgrad>
struct AdamRule : LaneRule {
  static constexpr size_t kGroups = kAmsgrad ? 3 : 2;
  static constexpr bool kHasKernels = !kAmsgrad;

  TF_EMBED_HYPER(beta_1, beta_2, epsilon);

  template <typename T>
  using Constants = AdamConstants<T>;

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c, V g, V& w, V* s) {
    V& m = s[0];
    V& v = s[1];
    m += (g - m) * c.one_minus_beta_1;
    v += (g * g - v) * c.one_minus_beta_2;
    V largest = v;
    if constexpr (kAmsgrad) s[2] = largest = s[2] > v ? s[2] : v;
    w -= c.alpha * m / (Sqrt(largest) + c.epsilon);
  }
};

// v = rho v + (1 - rho) g^2; w -= h g / sqrt(v + epsilon)
// Centered: a = rho a + (1 - rho) g, and v - a^2 in place of v under the root. With momentum:
// m = momentum m + h g / sqrt(...); w -= m.      (Hinton, 2012, lecture 6; as Keras)
// Slots: v, then m, then a.
template <bool kMomentum, bool kCentered>
struct RmspropRule : LaneRule {
  static constexpr size_t kGroups = 1 + kMomentum + kCentered;

  TF_EMBED_HYPER(rho, momentum, epsilon);

  template <typename T>
  struct Constants {
    Constants(const Rule& rule, const Hyper& hyper)
        : h(static_cast<T>(rule.learning_rate)),
          rho(static_cast<T>(hyper.rho)),
          one_minus_rho(static_cast<T>(1.0 - hyper.rho)),
          momentum(static_cast<T>(hyper.momentum)),
          epsilon(static_cast<T>(hyper.epsilon)) {}
    T h;
    T rho;
    T one_minus_rho;
    T momentum;
    T epsilon;
  };

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c, V g, V& w, V* s) {
    s[0] = c.rho * s[0] + c.one_minus_rho * (g * g);
    V variance = s[0];
    if constexpr (kCentered) {
      V& a = s[1 + kMomentum];
      a = c.rho * a + c.one_minus_rho * g;
      variance -= a * a;
    }
    const V increment = c.h * g / Sqrt(variance + c.epsilon);
    if constexpr (kMomentum) {
      s[1] = c.momentum * s[1] + increment;
      w -= s[1];
    } else {
      w -= increment;
    }
  }
};

// q = g + l w; n' = n + q^2; z += q + 2 l2_shrinkage w - (n'^p - n^p) / h w, where
// p = -learning_rate_power;
// w = (clip(z, -l1, l1) - z) / (n'^p / h + 2 l2 + beta / h)
// (McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013; with l = 0 as Keras).
struct FtrlRule : LaneRule {
  static constexpr size_t kGroups = 2;

  TF_EMBED_HYPER(initial_accumulator_value, learning_rate_power, l1, l2, l2_shrinkage, beta, decay);
  static double InitialSlot(const Hyper& hyper) { return hyper.initial_accumulator_value; }

  template <typename T>
  struct Constants {
    Constants(const Rule& rule, const Hyper& hyper)
        : h(static_cast<T>(rule.learning_rate)),
          power(static_cast<T>(-hyper.learning_rate_power)),
          l1(static_cast<T>(hyper.l1)),
          twice_l2(static_cast<T>(2.0 * (hyper.l2 + hyper.beta / (2.0 * rule.learning_rate)))),
          twice_l2_shrinkage(static_cast<T>(2.0 * hyper.l2_shrinkage)),
          decay(static_cast<T>(hyper.decay)) {}
    T h;
    T power;
    T l1;
    T twice_l2;  // and beta / h
    T twice_l2_shrinkage;
    T decay;  // l
  };

  template <bool kSquareRoot>
  struct By;
  using Steps = std::tuple<By<false>, By<true>>;
  static TF_EMBED_INLINE size_t ChooseStep(const Hyper& hyper) {
    return hyper.learning_rate_power == -0.5;
  }
};
template <bool kSquareRoot>
struct FtrlRule::By : FtrlRule {
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c, V g, V& w, V* s) {
    V& n = s[0];
    V& z = s[1];
    g += c.decay * w;
    const V new_n = n + g * g;
    V power, new_power;
    if constexpr (kSquareRoot) {
      power = Sqrt(n);
      new_power = Sqrt(new_n);
    } else {
      power = Power(n, c.power);
      new_power = Power(new_n, c.power);
    }
    z += g + c.twice_l2_shrinkage * w - (new_power - power) / c.h * w;
    const V most = Broadcast<V>(c.l1);
    const V least = -most;
    const V below = z < least ? least : z;
    const V clipped = z > most ? most : below;
    w = (clipped - z) / (new_power / c.h + c.twice_l2);
    n = new_n;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_KERAS_RULES_H_
