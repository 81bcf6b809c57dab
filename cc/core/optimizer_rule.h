// The optimizer rules, for host and device. A rule is what happens to one weight (w), its slots (s)
// and its gradient (g), which is summed over all positions of the key; V is a number of the compute
// type T, or a pack of them, so one text serves every instruction set. Rows of float16 and bfloat16
// are computed in float. table_loops_inl.h runs rules on rows.
//
// h is the learning rate, t the number of the step (from 1). Weight decay is decoupled, as in
// Keras: w -= w * weight_decay * h comes before the rule. Only rows of the step are touched.
#ifndef TF_EMBED_CC_CORE_OPTIMIZER_RULE_H_
#define TF_EMBED_CC_CORE_OPTIMIZER_RULE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cc/core/pack.h"
#include "cc/core/platform.h"
#include "cc/core/rule_slots.h"

namespace tf_embed {

// A rule and its hyper-parameters for one step. Those that a rule does not name are ignored.
struct Rule {
  RuleSlots slots;
  double learning_rate = 0.0;
  double weight_decay = 0.0;
  double momentum = 0.0;
  bool nesterov = false;
  double epsilon = 0.0;
  double beta_1 = 0.0;
  double beta_2 = 0.0;
  double rho = 0.0;
  double learning_rate_power = 0.0;
  double l1 = 0.0;
  double l2 = 0.0;
  double l2_shrinkage = 0.0;
  double beta = 0.0;
  int64_t step = 1;
};

// The hyper-parameters as a row needs them, computed once a step.
template <typename T>
struct RuleConstants {
  explicit RuleConstants(const Rule& rule)
      : decay(static_cast<T>(rule.weight_decay * rule.learning_rate)),
        h(static_cast<T>(rule.learning_rate)),
        momentum(static_cast<T>(rule.momentum)),
        epsilon(static_cast<T>(rule.epsilon)),
        one_minus_beta_1(static_cast<T>(1.0 - rule.beta_1)),
        one_minus_beta_2(static_cast<T>(1.0 - rule.beta_2)),
        rho(static_cast<T>(rule.rho)),
        one_minus_rho(static_cast<T>(1.0 - rule.rho)),
        power(static_cast<T>(-rule.learning_rate_power)),
        l1(static_cast<T>(rule.l1)),
        twice_l2_shrinkage(static_cast<T>(2.0 * rule.l2_shrinkage)) {
    const double t = static_cast<double>(rule.step);
    if (rule.slots.kind == RuleKind::kAdam || rule.slots.kind == RuleKind::kAdamAmsgrad) {
      // Keras rounds the betas to float here, whatever the variable's type, and only here. At 0.999
      // that changes alpha by 6e-6 of itself, which twenty steps would show.
      const double beta_1 = static_cast<float>(rule.beta_1);
      const double beta_2 = static_cast<float>(rule.beta_2);
      alpha = static_cast<T>(rule.learning_rate * std::sqrt(1.0 - std::pow(beta_2, t)) /
                             (1.0 - std::pow(beta_1, t)));
    }
    if (rule.slots.kind == RuleKind::kFtrl) {
      twice_l2 = static_cast<T>(2.0 * (rule.l2 + rule.beta / (2.0 * rule.learning_rate)));
    }
  }

  T decay;
  T h;
  T momentum;
  T epsilon;
  T one_minus_beta_1;
  T one_minus_beta_2;
  T rho;
  T one_minus_rho;
  T power;  // Ftrl: -learning_rate_power
  T l1;
  T twice_l2_shrinkage;
  T twice_l2 = 0;  // Ftrl: 2 l2 + beta / h
  T alpha = 0;     // Adam: h sqrt(1 - beta_2^t) / (1 - beta_1^t)
};

// Nothing but the decay that comes before each rule.
struct DecayRule {
  static constexpr size_t kGroups = 0;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>&, V, V&, V*) {}
};

// w -= h g
struct SgdRule {
  static constexpr size_t kGroups = 0;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w, V*) {
    w -= c.h * g;
  }
};

// m = momentum m - h g; w += m, or w += momentum m - h g with Nesterov.
template <bool kNesterov>
struct MomentumRule {
  static constexpr size_t kGroups = 1;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w,
                                                        V* s) {
    V& m = s[0];
    m = c.momentum * m - c.h * g;
    w += kNesterov ? c.momentum * m - c.h * g : m;
  }
};

// s += g^2; w -= h g / sqrt(s + epsilon)          (Duchi, Hazan and Singer, 2011; as Keras)
struct AdagradRule {
  static constexpr size_t kGroups = 1;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w,
                                                        V* s) {
    s[0] += g * g;
    w -= c.h * g / Sqrt(s[0] + c.epsilon);
  }
};

// m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); w -= alpha m / (sqrt(v) + epsilon)
// (Kingma and Ba, 2015, section 2; as Keras). Amsgrad: the largest v so far in place of v (Reddi,
// Kale and Kumar, 2018).
template <bool kAmsgrad>
struct AdamRule {
  static constexpr size_t kGroups = kAmsgrad ? 3 : 2;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w,
                                                        V* s) {
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
struct RmspropRule {
  static constexpr size_t kGroups = 1 + kMomentum + kCentered;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w,
                                                        V* s) {
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

// n' = n + g^2; z += g + 2 l2_shrinkage w - (n'^p - n^p) / h w, where p = -learning_rate_power;
// w = (clip(z, -l1, l1) - z) / (n'^p / h + 2 l2 + beta / h)
// (McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013; as Keras).
template <bool kSquareRoot>
struct FtrlRule {
  static constexpr size_t kGroups = 2;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w,
                                                        V* s) {
    V& n = s[0];
    V& z = s[1];
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

// s += mean(g^2); w -= h g / (sqrt(s) + epsilon)  (one s a row; FBGEMM's EXACT_ROWWISE_ADAGRAD)
// The rule that looks at a whole row first. Squares are added up in sixteen sums, of the lanes that
// are alike modulo 16, and these by halves: the same bits for any width of packs.
inline constexpr size_t kSquareSums = 16;
template <typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T AddHalves(T* sums) {
  for (size_t half = kSquareSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  }
  return sums[0];
}
// The new s of a row, and what its gradient is multiplied with.
template <typename T>
TF_EMBED_HOST_DEVICE TF_EMBED_INLINE T RowwiseAdagradScale(const RuleConstants<T>& c, size_t dim,
                                                           T sum_of_squares, T* s) {
  *s += sum_of_squares / static_cast<T>(dim);
  return c.h / (Sqrt(*s) + c.epsilon);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_OPTIMIZER_RULE_H_
