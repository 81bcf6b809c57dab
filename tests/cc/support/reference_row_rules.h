// SPDX-License-Identifier: Apache-2.0
// FBGEMM's rules on a row, from the definitions, lane by lane.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_REFERENCE_ROW_RULES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_REFERENCE_ROW_RULES_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {

// The sum of the squares of term(0) to term(dim - 1): sixteen sums of lanes that are equal modulo
// 16, which are then added by halves.
template <typename C>
C ReferenceSquares(size_t dim, const std::function<C(size_t)>& term) {
  std::vector<C> squares(16, 0);
  for (size_t i = 0; i < dim; ++i) squares[i % 16] += term(i) * term(i);
  for (; squares.size() > 1; squares.resize(squares.size() / 2)) {
    for (size_t i = 0; i < squares.size() / 2; ++i) squares[i] += squares[squares.size() / 2 + i];
  }
  return squares[0];
}

template <typename C>
void ReferenceRowwiseAdagrad(const Rule& rule, const std::vector<C>& g, std::vector<C>* weights,
                             C* slots) {
  const size_t dim = g.size();
  std::vector<C>& w = *weights;
  const C h = static_cast<C>(rule.learning_rate);
  const C l = static_cast<C>(HyperOf(rule, "decay"));
  const C epsilon = static_cast<C>(HyperOf(rule, "epsilon"));
  const C t = static_cast<C>(rule.step);
  const C half_life = static_cast<C>(HyperOf(rule, "counter_half_life"));
  const C bound = static_cast<C>(HyperOf(rule, "adjustment_bound"));
  const int mode = static_cast<int>(HyperOf(rule, "decay_mode"));
  const int inner = static_cast<int>(HyperOf(rule, "counter_decay_mode"));
  const auto kept = [&](C steps) {
    return static_cast<C>(std::pow(1.0 - rule.learning_rate * HyperOf(rule, "decay"), steps));
  };
  const bool l2 = mode == 1 || ((mode == 3 || mode == 4) && inner == 1);
  const C of_gradient =
      ReferenceSquares<C>(dim, [&](size_t i) { return l2 ? g[i] + l * w[i] : g[i]; });
  const C of_weights = ReferenceSquares<C>(dim, [&](size_t i) { return w[i]; });
  slots[0] += of_gradient / static_cast<C>(dim);
  const C m = h / (std::sqrt(slots[0]) + epsilon);
  C rate = m, keep = 1;
  if (mode == 1) keep = 1 - m * l;
  if (mode == 2) keep = 1 - h * l;
  if (mode == 5) {
    C missed = 0;
    if (rule.step >= HyperOf(rule, "start_step")) {
      missed = slots[1] == 0 ? 0 : t - slots[1] - 1;
      slots[1] = t;
    }
    if (missed > 0) keep = std::max(kept(missed), static_cast<C>(HyperOf(rule, "lower_bound")));
    keep = keep * (1 - h * l);
  }
  if (mode == 3 || mode == 4) {
    const C gap = slots[1] == 0 ? 1 : t - slots[1];
    C& n = slots[2];
    if (half_life > 0) {
      n = 1 + std::pow(C(2), -gap / half_life) * n;
    } else {
      n = half_life == 0 ? 1 : n + 1;
    }
    slots[1] = t;
    if (mode == 4) {
      const C clip =
          n * std::max(static_cast<C>(HyperOf(rule, "norm_coefficient")) * std::sqrt(of_weights),
                       static_cast<C>(HyperOf(rule, "lower_bound")));
      if (std::sqrt(of_gradient) > clip) rate *= clip / std::sqrt(of_gradient);
      if (inner == 1) keep = 1 - l * rate;
      if (inner == 2) keep = 1 - l * h;
    } else if (HyperOf(rule, "adjustment_step") <= 0 ||
               rule.step > HyperOf(rule, "adjustment_step")) {
      const C frequency = half_life > 0 ? half_life / n : 1;
      const C most = static_cast<C>(HyperOf(rule, "max_counter"));
      if (n > static_cast<C>(HyperOf(rule, "tail_threshold"))) {
        if (HyperOf(rule, "counter_rate_mode") == 0) {
          rate = m * std::min(std::max(std::pow(most / (n + 1), bound), C(1)), C(10));
        } else if (HyperOf(rule, "counter_rate_mode") == 1) {
          rate = m * std::min(std::max(std::pow((n + 1) / most, bound), C(0.1)), C(1));
        } else if (HyperOf(rule, "counter_rate_mode") == 2) {
          rate = h / (std::sqrt(bound * n) + epsilon);
        }
      }
      if (inner == 1) keep = 1 - frequency * l * m;
      if (inner == 2) keep = 1 - frequency * l * h;
      if (inner == 3) {
        if (half_life == -1) rate = m * std::sqrt(n);
        if (half_life == -2) rate = std::min(h * n, bound) / (std::sqrt(slots[0]) + epsilon);
        const C missed = std::min(gap, t - static_cast<C>(HyperOf(rule, "adjustment_step"))) - 1;
        keep = 1 - l * h;
        const C lazy = missed > 0 ? kept(missed) : 1;
        rate *= lazy;
        keep *= lazy;
      }
    }
  }
  for (size_t i = 0; i < dim; ++i) {
    if (rule.weight_decay != 0.0) {
      w[i] -= static_cast<C>(rule.weight_decay * rule.learning_rate) * w[i];
    }
    w[i] = keep * w[i] - rate * g[i];
  }
  const C norm = std::sqrt(ReferenceSquares<C>(dim, [&](size_t i) { return w[i]; }));
  const C most = static_cast<C>(HyperOf(rule, "max_norm"));
  if (most > 0 && norm > most) {
    const C factor = most / norm;
    for (C& weight : w) weight *= factor;
  }
}

template <typename C>
void ReferenceRowAdam(const Rule& rule, const std::vector<C>& g, std::vector<C>* weights,
                      std::vector<C>* slots) {
  const size_t dim = g.size();
  const RuleKind kind = rule.slots.kind;
  const bool partial =
      kind == RuleKind::kPartialRowwiseAdam || kind == RuleKind::kPartialRowwiseLamb;
  const bool lamb = kind == RuleKind::kLamb || kind == RuleKind::kPartialRowwiseLamb;
  double k = static_cast<double>(rule.step);
  if (kind == RuleKind::kRowAdamCounter) k = slots->back() += 1;
  const C beta_1 = static_cast<C>(HyperOf(rule, "beta_1")),
          rest_1 = static_cast<C>(1.0 - HyperOf(rule, "beta_1"));
  const C beta_2 = static_cast<C>(HyperOf(rule, "beta_2")),
          rest_2 = static_cast<C>(1.0 - HyperOf(rule, "beta_2"));
  const C unbias_1 = static_cast<C>(1.0 / (1.0 - std::pow(HyperOf(rule, "beta_1"), k)));
  const C unbias_2 = static_cast<C>(1.0 / (1.0 - std::pow(HyperOf(rule, "beta_2"), k)));
  const C h = static_cast<C>(rule.learning_rate);
  const C l = static_cast<C>(HyperOf(rule, "decay"));
  const C epsilon = static_cast<C>(HyperOf(rule, "epsilon"));
  if (partial) {
    const C squares = ReferenceSquares<C>(dim, [&](size_t i) { return g[i]; });
    slots->back() = beta_2 * slots->back() + rest_2 * (squares / static_cast<C>(dim));
  }
  std::vector<C> r(dim);
  for (size_t i = 0; i < dim; ++i) {
    C& m = (*slots)[i];
    m = beta_1 * m + rest_1 * g[i];
    C& v = partial ? slots->back() : (*slots)[dim + i];
    if (!partial) v = beta_2 * v + rest_2 * (g[i] * g[i]);
    r[i] = m * unbias_1 / (std::sqrt(v * unbias_2) + epsilon) + l * (*weights)[i];
  }
  C rate = h;
  const C of_r = ReferenceSquares<C>(dim, [&](size_t i) { return r[i]; });
  const C of_w = ReferenceSquares<C>(dim, [&](size_t i) { return (*weights)[i]; });
  if (lamb && of_r > 0 && of_w > 0) rate = h * (std::sqrt(of_w) / std::sqrt(of_r));
  for (size_t i = 0; i < dim; ++i) (*weights)[i] -= rate * r[i];
}

template <typename C>
void ReferenceLars(const Rule& rule, const std::vector<C>& g, std::vector<C>* weights,
                   std::vector<C>* slots) {
  const C l = static_cast<C>(HyperOf(rule, "decay")), h = static_cast<C>(rule.learning_rate);
  const C momentum = static_cast<C>(HyperOf(rule, "momentum"));
  const C of_g = std::sqrt(ReferenceSquares<C>(g.size(), [&](size_t i) { return g[i]; }));
  const C of_w = std::sqrt(ReferenceSquares<C>(g.size(), [&](size_t i) { return (*weights)[i]; }));
  const C divisor = of_g + l * of_w;
  const C rate =
      of_w > 0 && divisor > 0 ? h * static_cast<C>(HyperOf(rule, "eta")) * of_w / divisor : h;
  for (size_t i = 0; i < g.size(); ++i) {
    C& m = (*slots)[i];
    C& w = (*weights)[i];
    m = momentum * m + rate * (g[i] + l * w);
    w -= m;
  }
}

// The steps of SmartDecayAdamRule between the row's last step and this step, which had no gradient.
template <typename C>
void ReferenceMissedSteps(const Rule& rule, std::vector<C>* weights, std::vector<C>* slots) {
  const size_t dim = weights->size();
  C* const high = slots->data() + 2 * dim;
  C* const low = high + 1;
  const C base = 16777216;
  const bool known = *high >= 0 && *high < base && *low >= 0 && *low < base;
  const int64_t last = known ? int64_t(*high) * 16777216 + int64_t(*low) : 0;
  *high = static_cast<C>(rule.step / 16777216);
  *low = static_cast<C>(rule.step % 16777216);
  if (last == 0 || last + 1 >= rule.step) return;
  const int64_t missed = rule.step - last - 1;
  const double beta_1 = HyperOf(rule, "beta_1"), beta_2 = HyperOf(rule, "beta_2");
  const double keep_1 = 1.0 - Nearest<C>(1.0 - beta_1);
  const double keep_2 = 1.0 - Nearest<C>(1.0 - beta_2);
  const double float_1 = Nearest<float>(beta_1), float_2 = Nearest<float>(beta_2);
  const C h = static_cast<C>(rule.learning_rate),
          epsilon = static_cast<C>(HyperOf(rule, "epsilon"));
  const C longest =
      static_cast<C>(rule.learning_rate / ((1.0 - beta_1) * HyperOf(rule, "epsilon")));
  for (size_t i = 0; i < dim; ++i) {
    C& w = (*weights)[i];
    C m = (*slots)[i], root = std::sqrt((*slots)[dim + i]);
    C bias_1 = static_cast<C>(1.0 - std::pow(float_1, static_cast<double>(last)));
    C bias_2 = static_cast<C>(1.0 - std::pow(float_2, static_cast<double>(last)));
    for (int64_t step = 0; step < std::min(missed, int64_t{1048576}); ++step) {
      m *= static_cast<C>(keep_1);
      root *= static_cast<C>(std::sqrt(keep_2));
      bias_1 = bias_1 * static_cast<C>(float_1) + static_cast<C>(1.0 - float_1);
      bias_2 = bias_2 * static_cast<C>(float_2) + static_cast<C>(1.0 - float_2);
      const C next = w - h * std::sqrt(bias_2) * m / ((root + epsilon) * bias_1);
      const C farthest = beta_1 * beta_1 <= beta_2 ? next : w - longest * m;
      if (!(farthest < w || farthest > w)) break;
      w = next;
    }
    (*slots)[i] *= static_cast<C>(std::pow(keep_1, static_cast<double>(missed)));
    (*slots)[dim + i] *= static_cast<C>(std::pow(keep_2, static_cast<double>(missed)));
  }
}

// Runs a step if the rule is FBGEMM's. Returns whether it is.
template <typename C>
bool ReferenceRowStep(const Rule& rule, const std::vector<C>& g, std::vector<C>* weights,
                      std::vector<C>* slots) {
  switch (rule.slots.kind) {
    case RuleKind::kRowwiseAdagrad:
    case RuleKind::kRowwiseAdagradGlobal:
    case RuleKind::kRowwiseAdagradCounter:
    case RuleKind::kEmaRowwiseAdagrad:
      ReferenceRowwiseAdagrad(rule, g, weights, slots->data());
      return true;
    case RuleKind::kEnsembleRowwiseAdagrad:
      if (std::isnan(slots->front())) std::copy(weights->begin(), weights->end(), slots->begin());
      ReferenceRowwiseAdagrad(rule, g, weights, slots->data() + g.size());
      return true;
    case RuleKind::kRowAdam:
    case RuleKind::kRowAdamCounter:
    case RuleKind::kPartialRowwiseAdam:
    case RuleKind::kLamb:
    case RuleKind::kPartialRowwiseLamb:
      ReferenceRowAdam(rule, g, weights, slots);
      return true;
    case RuleKind::kLars:
      ReferenceLars(rule, g, weights, slots);
      return true;
    default:
      return false;
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_REFERENCE_ROW_RULES_H_
