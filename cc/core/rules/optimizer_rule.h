// The optimizer rules, for host and device. A rule is what happens to one weight (w), its slots (s)
// and its gradient (g), which is summed over all positions of the key; V is a number of the compute
// type T, or a pack of them, so one text serves every instruction set. Rows of float16 and bfloat16
// are computed in float. Rules that look at a whole row first are in row_rule.h, and
// table_loops_inl.h runs both on rows.
//
// h is the learning rate, t the number of the step (from 1). Only rows of the step are touched.
#ifndef TF_EMBED_CC_CORE_RULES_OPTIMIZER_RULE_H_
#define TF_EMBED_CC_CORE_RULES_OPTIMIZER_RULE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cc/core/base/pack.h"
#include "cc/core/base/platform.h"
#include "cc/core/rules/rule_slots.h"

namespace tf_embed {

// How a row-wise rule of FBGEMM's decays weights; its WeightDecayMode.
enum class DecayMode : uint8_t {
  kNone = 0,
  kL2 = 1,
  kDecoupled = 2,
  kCounter = 3,
  kCowClip = 4,
  kDecoupledGlobal = 5,
};

// How one that counts does; FBGEMM's CounterWeightDecayMode.
enum class CounterDecayMode : uint8_t { kNone = 0, kL2 = 1, kDecoupled = 2, kAdagradW = 3 };

// What one that counts does to the learning rate; FBGEMM's LearningRateMode.
enum class CounterRateMode : int8_t {
  kEqual = -1,
  kTailIncrease = 0,
  kTailDecrease = 1,
  kCounterSgd = 2,
};

// A rule and its hyper-parameters for one step. Those that a rule does not name are ignored. All
// are doubles, as they come in one vector; what counts or chooses is a whole number.
struct Rule {
  RuleSlots slots;
  double learning_rate = 0.0;
  double weight_decay = 0.0;  // Keras's: w -= w weight_decay h before the rule, whatever that is
  double initial_slot = 0.0;  // what the rule's first group of slots starts from
  double momentum = 0.0;
  double nesterov = 0.0;  // 1: yes
  double epsilon = 0.0;
  double beta_1 = 0.0;
  double beta_2 = 0.0;
  double rho = 0.0;
  double learning_rate_power = 0.0;
  double l1 = 0.0;
  double l2 = 0.0;
  double l2_shrinkage = 0.0;
  double beta = 0.0;

  // Of FBGEMM's rules.
  double decay = 0.0;       // the rule's own
  double decay_mode = 0.0;  // DecayMode, where the rule has several
  double max_norm = 0.0;    // of a row's weights after the step; 0: any
  double eta = 0.0;
  double start_step = 0.0;   // kDecoupledGlobal: the first step that makes up for those left out
  double lower_bound = 0.0;  // kDecoupledGlobal: of what they make of a weight. kCowClip: see there
  double counter_decay_mode = 0.0;  // CounterDecayMode
  double counter_half_life = 0.0;
  double adjustment_step = 0.0;
  double adjustment_bound = 0.0;
  double counter_rate_mode = -1.0;  // CounterRateMode
  double tail_threshold = 0.0;
  double max_counter = 1.0;
  double norm_coefficient = 0.0;

  // Of passes over all rows between steps; see TablePass.
  double average_every = 0.0;
  double swap_every = 0.0;
  double average_start = 0.0;
  double average_coefficient = 0.0;
  double keeps_average = 1.0;  // 0: no

  int64_t step = 1;

  // Whether float16 and bfloat16 weights are rounded by noise; see stochastic_rounding.h.
  bool stochastic_rounding = false;
};

// What some rules do to all rows between this step and the next, t + 1:
//   kEnsembleRowwiseAdagrad, where average_every divides t + 1: z += (1 - k)(w - z), where k is 0
//   up
//     to average_start and then average_coefficient; where swap_every does: w = z. Unless it keeps
//     the average, z = 0 once it was taken. A z that is NaN, as in new rows, is the row's weights.
//   kEmaRowwiseAdagrad, where average_every does and t + 1 is not before average_start: the second
//     half of a row follows the first, w_2 += average_coefficient (w_1 - w_2).
struct TablePass {
  TF_EMBED_INLINE explicit TablePass(const Rule& rule) : keeps(rule.keeps_average != 0.0) {
    const int64_t next = rule.step + 1;
    const double start = rule.average_start;
    if (rule.slots.kind == RuleKind::kEnsembleRowwiseAdagrad) {
      averages = Divides(rule.average_every, next);
      swaps = Divides(rule.swap_every, next);
      share = static_cast<double>(next) <= start ? 1.0 : 1.0 - rule.average_coefficient;
    } else if (rule.slots.kind == RuleKind::kEmaRowwiseAdagrad) {
      averages = Divides(rule.average_every, next) && static_cast<double>(next) >= start;
      share = rule.average_coefficient;
    }
  }

  TF_EMBED_INLINE bool IsDue() const { return averages || swaps; }

  bool averages = false;
  bool swaps = false;
  bool keeps;
  double share = 0.0;  // of what the average goes towards

 private:
  static TF_EMBED_INLINE bool Divides(double every, int64_t step) {
    return every >= 1.0 && step % static_cast<int64_t>(every) == 0;
  }
};

// The hyper-parameters as a row needs them, computed once a step.
template <typename T>
struct RuleConstants {
  explicit RuleConstants(const Rule& rule)
      : decay_before(static_cast<T>(rule.weight_decay * rule.learning_rate)),
        h(static_cast<T>(rule.learning_rate)),
        momentum(static_cast<T>(rule.momentum)),
        epsilon(static_cast<T>(rule.epsilon)),
        beta_1(static_cast<T>(rule.beta_1)),
        beta_2(static_cast<T>(rule.beta_2)),
        one_minus_beta_1(static_cast<T>(1.0 - rule.beta_1)),
        one_minus_beta_2(static_cast<T>(1.0 - rule.beta_2)),
        rho(static_cast<T>(rule.rho)),
        one_minus_rho(static_cast<T>(1.0 - rule.rho)),
        power(static_cast<T>(-rule.learning_rate_power)),
        l1(static_cast<T>(rule.l1)),
        twice_l2_shrinkage(static_cast<T>(2.0 * rule.l2_shrinkage)),
        decay(static_cast<T>(rule.decay)),
        max_norm(static_cast<T>(rule.max_norm)),
        decay_mode(static_cast<DecayMode>(rule.decay_mode)),
        pass(rule),
        rule(rule) {
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
    const bool counts = decay_mode == DecayMode::kCounter || decay_mode == DecayMode::kCowClip;
    decays_gradient =
        counts ? static_cast<CounterDecayMode>(rule.counter_decay_mode) == CounterDecayMode::kL2
               : decay_mode == DecayMode::kL2;
    unbias_1 = static_cast<T>(1.0 / (1.0 - std::pow(rule.beta_1, t)));
    unbias_2 = static_cast<T>(1.0 / (1.0 - std::pow(rule.beta_2, t)));
  }

  T decay_before;  // weight_decay h
  T h;
  T momentum;
  T epsilon;
  T beta_1;
  T beta_2;
  T one_minus_beta_1;
  T one_minus_beta_2;
  T rho;
  T one_minus_rho;
  T power;  // Ftrl: -learning_rate_power
  T l1;
  T twice_l2_shrinkage;
  T twice_l2 = 0;  // Ftrl: 2 l2 + beta / h
  T alpha = 0;     // Adam: h sqrt(1 - beta_2^t) / (1 - beta_1^t)
  T decay;
  T max_norm;
  DecayMode decay_mode;
  bool decays_gradient = false;  // for the row's sum of squares
  T unbias_1 = 0;                // 1 / (1 - beta_1^t)
  T unbias_2 = 0;
  TablePass pass;
  Rule rule;  // for what is needed once a row
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

// s += g^2; w -= h g / sqrt(s + epsilon)          (Duchi, Hazan and Singer, 2011; as Keras), or
// w -= h g / (sqrt(s) + epsilon)                  (as FBGEMM)
template <bool kEpsilonOutside>
struct AdagradRule {
  static constexpr size_t kGroups = 1;
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const RuleConstants<T>& c, V g, V& w,
                                                        V* s) {
    s[0] += g * g;
    w -= c.h * g / (kEpsilonOutside ? Sqrt(s[0]) + c.epsilon : Sqrt(s[0] + c.epsilon));
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

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_OPTIMIZER_RULE_H_
