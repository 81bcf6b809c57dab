// SPDX-License-Identifier: Apache-2.0
// The oracle: a std::map from keys to rows, in a single thread. Verbs go through a batch key by
// key, in its order. Sums and rules are computed in the compute type and in the formulas' order of
// operations, so results can be compared bit by bit.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_REFERENCE_STORE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_REFERENCE_STORE_H_

#include <cmath>
#include <map>
#include <type_traits>
#include <vector>

#include "tests/cc/support/reference_row_rules.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {

// A step on a row, from the definitions (Keras 3; FBGEMM in reference_row_rules.h).
template <typename C>
void ReferenceStep(const Rule& rule, const std::vector<C>& g, std::vector<C>* weights,
                   std::vector<C>* slots) {
  const size_t dim = g.size();
  const auto named = [&](const char* name) { return HyperOf(rule, name); };
  const C h = static_cast<C>(rule.learning_rate);
  const C epsilon = static_cast<C>(named("epsilon"));
  const C momentum = static_cast<C>(named("momentum"));
  const C rest_1 = static_cast<C>(1.0 - named("beta_1"));
  const C rest_2 = static_cast<C>(1.0 - named("beta_2"));
  const double beta_1 = Nearest<float>(named("beta_1"));
  const double beta_2 = Nearest<float>(named("beta_2"));
  const C rho = static_cast<C>(named("rho"));
  const C rest_rho = static_cast<C>(1.0 - named("rho"));
  const bool nesterov = named("nesterov") != 0.0;
  const double to_power = named("learning_rate_power");
  const C l1 = static_cast<C>(named("l1"));
  const C shrinkage = static_cast<C>(2.0 * named("l2_shrinkage"));
  const C l2 = static_cast<C>(2.0 * (named("l2") + named("beta") / (2.0 * rule.learning_rate)));
  const C decay = static_cast<C>(named("decay"));
  const C alpha = static_cast<C>(rule.learning_rate * std::sqrt(1.0 - std::pow(beta_2, rule.step)) /
                                 (1.0 - std::pow(beta_1, rule.step)));
  if (ReferenceRowStep(rule, g, weights, slots)) return;
  if (rule.slots.kind == RuleKind::kSmartDecayAdam) ReferenceMissedSteps(rule, weights, slots);
  for (size_t i = 0; i < dim; ++i) {
    C& w = (*weights)[i];
    if (rule.weight_decay != 0.0) w -= static_cast<C>(rule.weight_decay * rule.learning_rate) * w;
    switch (rule.slots.kind) {
      case RuleKind::kNone:
      case RuleKind::kExternal:
      default:
        break;
      case RuleKind::kSgd:
        w -= h * g[i];
        break;
      case RuleKind::kMomentum: {
        C& m = (*slots)[i];
        m = momentum * m - h * g[i];
        w += nesterov ? momentum * m - h * g[i] : m;
        break;
      }
      case RuleKind::kAdagrad: {
        C& s = (*slots)[i];
        s += g[i] * g[i];
        w -= h * g[i] / std::sqrt(s + epsilon);
        break;
      }
      case RuleKind::kExactAdagrad: {
        C& s = (*slots)[i];
        s += g[i] * g[i];
        w -= h * g[i] / (std::sqrt(s) + epsilon);
        break;
      }
      case RuleKind::kAdam:
      case RuleKind::kSmartDecayAdam:
      case RuleKind::kAdamAmsgrad: {
        C& m = (*slots)[i];
        C& v = (*slots)[dim + i];
        m += (g[i] - m) * rest_1;
        v += (g[i] * g[i] - v) * rest_2;
        C largest_v = v;
        if (rule.slots.kind == RuleKind::kAdamAmsgrad) {
          largest_v = (*slots)[2 * dim + i] = std::max((*slots)[2 * dim + i], v);
        }
        w -= alpha * m / (std::sqrt(largest_v) + epsilon);
        break;
      }
      case RuleKind::kRmsprop:
      case RuleKind::kRmspropMomentum:
      case RuleKind::kRmspropCentered:
      case RuleKind::kRmspropCenteredMomentum: {
        const bool centered = rule.slots.kind == RuleKind::kRmspropCentered ||
                              rule.slots.kind == RuleKind::kRmspropCenteredMomentum;
        const bool with_momentum = rule.slots.kind == RuleKind::kRmspropMomentum ||
                                   rule.slots.kind == RuleKind::kRmspropCenteredMomentum;
        C& velocity = (*slots)[i];
        velocity = rho * velocity + rest_rho * (g[i] * g[i]);
        C denominator = velocity + epsilon;
        if (centered) {
          C& average = slots->at(slots->size() - dim + i);  // the last group
          average = rho * average + rest_rho * g[i];
          denominator = velocity - average * average + epsilon;
        }
        C increment = h * g[i] / std::sqrt(denominator);
        if (with_momentum) {
          C& m = slots->at(dim + i);
          m = momentum * m + increment;
          increment = m;
        }
        w -= increment;
        break;
      }
      case RuleKind::kFtrl: {
        const auto power = [&](C x) {
          return to_power == -0.5 ? std::sqrt(x) : std::pow(x, static_cast<C>(-to_power));
        };
        C& n = slots->at(i);
        C& z = slots->at(dim + i);
        const C q = g[i] + decay * w;
        const C new_n = n + q * q;
        z += q + shrinkage * w - (power(new_n) - power(n)) / h * w;
        w = (std::min(std::max(z, -l1), l1) - z) / (power(new_n) / h + l2);
        n = new_n;
        break;
      }
    }
  }
}

template <typename T>
class ReferenceStore {
 public:
  using Compute = typename Number<T>::Compute;
  using Slot = std::conditional_t<std::is_same_v<T, double>, double, float>;
  struct Row {
    std::vector<T> weights;
    std::vector<Slot> slots;
  };

  ReferenceStore(size_t dim, const RowInitializer& initializer)
      : dim(dim), initializer(initializer) {}

  // `slots` may be null.
  void Find(const Batch& batch, const DefaultRows& defaults, T* weights, bool* exists,
            Slot* slots) const {
    const size_t count = rule.slots_per_row();
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t position = batch.Position(i);
      const auto found = rows.find(batch.keys[i]);
      exists[position] = found != rows.end();
      const std::vector<T> row =
          exists[position] ? found->second.weights : Default(batch.keys[i], position, defaults);
      std::copy(row.begin(), row.end(), weights + position * dim);
      if (slots == nullptr) continue;
      const std::vector<Slot> row_slots = exists[position] ? found->second.slots : InitialSlots();
      std::copy(row_slots.begin(), row_slots.end(), slots + position * count);
    }
  }

  void FindOrInsert(const Batch& batch, const DefaultRows& defaults, T* weights, bool* exists) {
    const std::map<int64_t, Row> before = rows;
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t position = batch.Position(i);
      exists[position] = before.count(batch.keys[i]) > 0;
      const Row& row = Emplace(batch.keys[i], Default(batch.keys[i], position, defaults));
      std::copy(row.weights.begin(), row.weights.end(), weights + position * dim);
    }
  }

  void InsertOrAssign(const Batch& batch, const T* weights, const Slot* slots) {
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t position = batch.Position(i);
      Row& row = Emplace(batch.keys[i], {});
      row.weights.assign(weights + position * dim, weights + (position + 1) * dim);
      const size_t count = row.slots.size();
      if (slots != nullptr) {
        row.slots.assign(slots + position * count, slots + (position + 1) * count);
        Round(&row.slots);
      }
    }
  }

  void Accum(const Batch& batch, const T* old_rows, const T* new_rows, const bool* exists) {
    const auto add = [](T a, T b, bool minus) {
      if constexpr (std::is_integral_v<T>) {
        const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
        return static_cast<T>(minus ? x - y : x + y);
      } else {
        const auto y = Number<T>::Load(b);
        return Number<T>::Store(Number<T>::Load(a) + (minus ? -y : y));
      }
    };
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t position = batch.Position(i);
      const T* const from = old_rows + position * dim;
      const T* const to = new_rows + position * dim;
      const auto found = rows.find(batch.keys[i]);
      if (found == rows.end() && !exists[position]) {
        Emplace(batch.keys[i], std::vector<T>(to, to + dim));
      } else if (found != rows.end() && exists[position]) {
        for (size_t j = 0; j < dim; ++j) {
          T& weight = found->second.weights[j];
          weight = add(weight, add(to[j], from[j], true), false);
        }
      }
    }
  }

  // G: T, or float if that is wider.
  template <typename G>
  void Apply(const Batch& batch, const G* gradients, const Rule& applied) {
    if constexpr (std::is_same_v<Compute, Slot>) {
      SetRule(applied.slots);
      std::map<int64_t, std::vector<Compute>> sums;
      for (size_t i = 0; i < batch.size(); ++i) {
        const G* const gradient = gradients + batch.Position(i) * dim;
        const bool first = sums.count(batch.keys[i]) == 0;
        std::vector<Compute>& sum = sums[batch.keys[i]];
        if (first) sum.resize(dim);
        for (size_t j = 0; j < dim; ++j) {
          const Compute g = Number<G>::Load(gradient[j]);
          sum[j] = first ? g : sum[j] + g;
        }
      }
      for (const auto& [key, sum] : sums) {
        Row& row = Emplace(key, Default(key, 0, DefaultRows()));
        std::vector<Compute> wide(dim);
        for (size_t j = 0; j < dim; ++j) wide[j] = Number<T>::Load(row.weights[j]);
        ReferenceStep(applied, sum, &wide, &row.slots);
        Round(&row.slots);
        for (size_t j = 0; j < dim; ++j) row.weights[j] = Number<T>::Store(wide[j]);
      }
    }
  }

  void Erase(const Batch& batch) {
    for (int64_t key : batch.keys) rows.erase(key);
  }

  void SetRule(const RuleSlots& slots) {
    const bool other = !SameRule(slots, rule);
    rule = slots;
    for (auto& [key, row] : rows) {
      if (other) row.slots = InitialSlots();
      Round(&row.slots);
    }
  }

  // Rounds the slots of a row to the types of their groups.
  void Round(std::vector<Slot>* slots) const {
    auto slot = slots->begin();
    for (uint32_t i = 0; i < rule.num_groups; ++i) {
      for (uint32_t j = 0; j < rule.groups[i].width; ++j, ++slot) {
        const float narrow = static_cast<float>(*slot);
        if (rule.groups[i].type == SlotType::kHalf) *slot = Half::FromFloat(narrow).ToFloat();
        if (rule.groups[i].type == SlotType::kBFloat16) {
          *slot = BFloat16::FromFloat(narrow).ToFloat();
        }
      }
    }
  }

  std::vector<T> Default(int64_t key, size_t position, const DefaultRows& defaults) const {
    std::vector<T> row(dim);
    if (defaults.kind == DefaultRows::Kind::kInitializer) {
      InitializeWeights(initializer, key, dim, row.data());
    } else {
      std::memcpy(row.data(), defaults.Row(position, dim * sizeof(T)), dim * sizeof(T));
    }
    return row;
  }

  const size_t dim;
  RowInitializer initializer;
  RuleSlots rule;
  std::map<int64_t, Row> rows;

 private:
  std::vector<Slot> InitialSlots() const {
    std::vector<Slot> slots;
    for (uint32_t i = 0; i < rule.num_groups; ++i) {
      slots.insert(slots.end(), rule.groups[i].width,
                   static_cast<Slot>(rule.groups[i].initial_value));
    }
    Round(&slots);
    return slots;
  }
  Row& Emplace(int64_t key, const std::vector<T>& weights) {
    return rows.try_emplace(key, Row{weights, InitialSlots()}).first->second;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_REFERENCE_STORE_H_
