// The optimizer rules, one inline function each, for host and device. A rule sees one row: its
// weights (w), its slots and the gradient of the step, summed over all positions of the key. All
// are of one compute type; rows of float16 and bfloat16 are computed in float.
//
// h is the learning rate, t the number of the step (from 1). Weight decay is decoupled, as in
// Keras: w -= w * weight_decay * h comes before the rule. Only rows of the step are touched.
#ifndef TF_EMBED_CC_CORE_OPTIMIZER_RULE_H_
#define TF_EMBED_CC_CORE_OPTIMIZER_RULE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

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

// w -= h g
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplySgd(const RuleConstants<T>& c, size_t dim, const T* g, T* w) {
  for (size_t i = 0; i < dim; ++i) w[i] -= c.h * g[i];
}

// m = momentum m - h g; w += m, or w += momentum m - h g with Nesterov.
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplyMomentum(const RuleConstants<T>& c, bool nesterov, size_t dim,
                                               const T* g, T* w, T* m) {
  if (nesterov) {
    for (size_t i = 0; i < dim; ++i) {
      m[i] = c.momentum * m[i] - c.h * g[i];
      w[i] += c.momentum * m[i] - c.h * g[i];
    }
  } else {
    for (size_t i = 0; i < dim; ++i) {
      m[i] = c.momentum * m[i] - c.h * g[i];
      w[i] += m[i];
    }
  }
}

// s += g^2; w -= h g / sqrt(s + epsilon)          (Duchi, Hazan and Singer, 2011; as Keras)
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplyAdagrad(const RuleConstants<T>& c, size_t dim, const T* g,
                                              T* w, T* s) {
  for (size_t i = 0; i < dim; ++i) {
    s[i] += g[i] * g[i];
    w[i] -= c.h * g[i] / std::sqrt(s[i] + c.epsilon);
  }
}

// s += mean(g^2); w -= h g / (sqrt(s) + epsilon)  (one s a row; FBGEMM's EXACT_ROWWISE_ADAGRAD)
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplyRowwiseAdagrad(const RuleConstants<T>& c, size_t dim,
                                                     const T* g, T* w, T* s) {
  T sum = 0;
  for (size_t i = 0; i < dim; ++i) sum += g[i] * g[i];
  *s += sum / static_cast<T>(dim);
  const T scale = c.h / (std::sqrt(*s) + c.epsilon);
  for (size_t i = 0; i < dim; ++i) w[i] -= scale * g[i];
}

// m += (g - m)(1 - beta_1); v += (g^2 - v)(1 - beta_2); w -= alpha m / (sqrt(v) + epsilon)
// (Kingma and Ba, 2015, section 2; as Keras)
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplyAdam(const RuleConstants<T>& c, size_t dim, const T* g, T* w,
                                           T* m, T* v) {
  for (size_t i = 0; i < dim; ++i) {
    m[i] += (g[i] - m[i]) * c.one_minus_beta_1;
    v[i] += (g[i] * g[i] - v[i]) * c.one_minus_beta_2;
    w[i] -= c.alpha * m[i] / (std::sqrt(v[i]) + c.epsilon);
  }
}

// As Adam, with the largest v so far in place of v     (Reddi, Kale and Kumar, 2018)
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplyAdamAmsgrad(const RuleConstants<T>& c, size_t dim, const T* g,
                                                  T* w, T* m, T* v, T* v_max) {
  for (size_t i = 0; i < dim; ++i) {
    m[i] += (g[i] - m[i]) * c.one_minus_beta_1;
    v[i] += (g[i] * g[i] - v[i]) * c.one_minus_beta_2;
    v_max[i] = v_max[i] > v[i] ? v_max[i] : v[i];
    w[i] -= c.alpha * m[i] / (std::sqrt(v_max[i]) + c.epsilon);
  }
}

// v = rho v + (1 - rho) g^2; w -= h g / sqrt(v + epsilon)
// Centered: a = rho a + (1 - rho) g, and v - a^2 in place of v under the root. With momentum:
// m = momentum m + h g / sqrt(...); w -= m.      (Hinton, 2012, lecture 6; as Keras)
template <bool kMomentum, bool kCentered, typename T>
TF_EMBED_HOST_DEVICE inline void ApplyRmsprop(const RuleConstants<T>& c, size_t dim, const T* g,
                                              T* w, T* v, T* m, T* a) {
  for (size_t i = 0; i < dim; ++i) {
    v[i] = c.rho * v[i] + c.one_minus_rho * (g[i] * g[i]);
    T variance = v[i];
    if constexpr (kCentered) {
      a[i] = c.rho * a[i] + c.one_minus_rho * g[i];
      variance -= a[i] * a[i];
    }
    const T increment = c.h * g[i] / std::sqrt(variance + c.epsilon);
    if constexpr (kMomentum) {
      m[i] = c.momentum * m[i] + increment;
      w[i] -= m[i];
    } else {
      w[i] -= increment;
    }
  }
}

// n' = n + g^2; z += g + 2 l2_shrinkage w - (n'^p - n^p) / h w, where p = -learning_rate_power;
// w = (clip(z, -l1, l1) - z) / (n'^p / h + 2 l2 + beta / h)
// (McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013; as Keras).
template <bool kSquareRoot, typename T>
TF_EMBED_HOST_DEVICE inline void ApplyFtrl(const RuleConstants<T>& c, size_t dim, const T* g, T* w,
                                           T* n, T* z) {
  const auto power = [&c](T x) { return kSquareRoot ? std::sqrt(x) : std::pow(x, c.power); };
  for (size_t i = 0; i < dim; ++i) {
    const T new_n = n[i] + g[i] * g[i];
    const T new_power = power(new_n);
    z[i] += g[i] + c.twice_l2_shrinkage * w[i] - (new_power - power(n[i])) / c.h * w[i];
    const T clipped = z[i] > c.l1 ? c.l1 : z[i] < -c.l1 ? -c.l1 : z[i];
    w[i] = (clipped - z[i]) / (new_power / c.h + c.twice_l2);
    n[i] = new_n;
  }
}

// One step of a fused rule on one row. `slots` are rule.slots.slots_per_row() values.
template <typename T>
TF_EMBED_HOST_DEVICE inline void ApplyRule(const Rule& rule, const RuleConstants<T>& c, size_t dim,
                                           const T* g, T* w, T* slots) {
  if (c.decay != T(0)) {
    for (size_t i = 0; i < dim; ++i) w[i] -= c.decay * w[i];
  }
  switch (rule.slots.kind) {
    case RuleKind::kNone:
    case RuleKind::kExternal:
      return;
    case RuleKind::kSgd:
      return ApplySgd(c, dim, g, w);
    case RuleKind::kMomentum:
      return ApplyMomentum(c, rule.nesterov, dim, g, w, slots);
    case RuleKind::kAdagrad:
      return ApplyAdagrad(c, dim, g, w, slots);
    case RuleKind::kRowwiseAdagrad:
      return ApplyRowwiseAdagrad(c, dim, g, w, slots);
    case RuleKind::kAdam:
      return ApplyAdam(c, dim, g, w, slots, slots + dim);
    case RuleKind::kAdamAmsgrad:
      return ApplyAdamAmsgrad(c, dim, g, w, slots, slots + dim, slots + 2 * dim);
    case RuleKind::kRmsprop:
      return ApplyRmsprop<false, false, T>(c, dim, g, w, slots, nullptr, nullptr);
    case RuleKind::kRmspropMomentum:
      return ApplyRmsprop<true, false, T>(c, dim, g, w, slots, slots + dim, nullptr);
    case RuleKind::kRmspropCentered:
      return ApplyRmsprop<false, true, T>(c, dim, g, w, slots, nullptr, slots + dim);
    case RuleKind::kRmspropCenteredMomentum:
      return ApplyRmsprop<true, true, T>(c, dim, g, w, slots, slots + dim, slots + 2 * dim);
    case RuleKind::kFtrl:
      return rule.learning_rate_power == -0.5 ? ApplyFtrl<true>(c, dim, g, w, slots, slots + dim)
                                              : ApplyFtrl<false>(c, dim, g, w, slots, slots + dim);
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_OPTIMIZER_RULE_H_
