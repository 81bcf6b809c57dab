// SPDX-License-Identifier: Apache-2.0
// Adam that makes up for the steps that left a row out. rule_unit.h explains the terms.
#ifndef TF_EMBED_CC_CORE_RULES_SMART_DECAY_ADAM_RULE_H_
#define TF_EMBED_CC_CORE_RULES_SMART_DECAY_ADAM_RULE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cc/core/rules/keras_rules.h"

namespace tf_embed {

// A row's step t after its step t0 first replays the steps between, whose gradient was zero:
//
//     for s from t0 + 1 to t - 1:  m *= beta_1; v *= beta_2; w -= alpha_s m / (sqrt(v) + epsilon)
//
// and then is Adam's. alpha_s has the bias correction of step s and the present h. Slots: m and v,
// then t0 in two digits of base 2^24, each a whole number that a float holds; 0: no step yet.
//
// The replay of a weight ends early. If beta_1^2 <= beta_2, its moves never grow: the ratio of two
// successive moves is at most
//
//     sqrt(f(beta_2) / beta_2) beta_1 / f(beta_1),  f(b) = (1 - b^(s+1)) / (1 - b^s),
//
// which is at most 1. So the first move that leaves w as it is ends the replay, and none was lost.
// Otherwise moves can grow until sqrt(v) is small compared to epsilon. Then the replay ends when h
// m / ((1 - beta_1) epsilon), which no later move exceeds, leaves w as it is. After an early end
// the moments still decay for all missed steps, by powers.
struct SmartDecayAdamRule : AdamRule<false> {
  static constexpr bool kOfLanes = false;
  static constexpr bool kHasKernels = false;
  static constexpr size_t kRowSlots = 2;

  static constexpr int64_t kBase = int64_t{1} << 24;
  // Bounds the time of a step. With the usual betas the replay ends long before.
  static constexpr int64_t kMostReplayed = int64_t{1} << 20;

  template <typename T>
  struct Constants : AdamConstants<T> {
    Constants(const Rule& rule, const Hyper& hyper)
        : AdamConstants<T>(rule, hyper),
          t(rule.step),
          decay_1(1.0 - Nearest<T>(1.0 - hyper.beta_1)),
          decay_2(1.0 - Nearest<T>(1.0 - hyper.beta_2)),
          beta_1(Nearest<float>(hyper.beta_1)),  // as in alpha of AdamRule
          beta_2(Nearest<float>(hyper.beta_2)),
          h(static_cast<T>(rule.learning_rate)),
          m_decay(static_cast<T>(decay_1)),
          root_decay(static_cast<T>(std::sqrt(decay_2))),
          bias_1_keep(static_cast<T>(beta_1)),
          bias_1_more(static_cast<T>(1.0 - beta_1)),
          bias_2_keep(static_cast<T>(beta_2)),
          bias_2_more(static_cast<T>(1.0 - beta_2)),
          longest(static_cast<T>(rule.learning_rate / ((1.0 - hyper.beta_1) * hyper.epsilon))),
          moves_shrink(hyper.beta_1 * hyper.beta_1 <= hyper.beta_2),
          most_replayed(hyper.beta_1 >= 0.0 && hyper.beta_1 < 1.0 ? kMostReplayed : 0) {}
    int64_t t;
    double decay_1;  // of m in a step without a gradient
    double decay_2;
    double beta_1;  // for the bias correction
    double beta_2;
    T h;
    T m_decay;
    T root_decay;   // of sqrt(v)
    T bias_1_keep;  // 1 - beta_1^(s+1) = beta_1 (1 - beta_1^s) + 1 - beta_1
    T bias_1_more;
    T bias_2_keep;
    T bias_2_more;
    T longest;  // the bound of moves, for an m of 1
    bool moves_shrink;
    int64_t most_replayed;
  };

  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Begin(const Constants<T>& c, size_t, const T*,
                                                         T* s, RowFactors<T>* row) {
    const int64_t previous = PreviousStep(s);
    s[0] = static_cast<T>(c.t / kBase);
    s[1] = static_cast<T>(c.t % kBase);
    const int64_t missed = c.t - previous - 1;
    if (previous == 0 || missed <= 0) return;
    row->replayed = missed < c.most_replayed ? missed : c.most_replayed;
    row->keep_1 = static_cast<T>(Power(c.decay_1, static_cast<double>(missed)));
    row->keep_2 = static_cast<T>(Power(c.decay_2, static_cast<double>(missed)));
    row->bias_1 = static_cast<T>(1.0 - Power(c.beta_1, static_cast<double>(previous)));
    row->bias_2 = static_cast<T>(1.0 - Power(c.beta_2, static_cast<double>(previous)));
  }

  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Step(const Constants<T>& c,
                                                        const RowFactors<T>& row, V g, V& w, V* s) {
    if (row.replayed > 0) {
      Replay(c, row, s[0], Sqrt(s[1]), w);
      s[0] *= row.keep_1;
      s[1] *= row.keep_2;
    }
    AdamRule<false>::Step(c, g, w, s);
  }

 private:
  // 0 if there was none. Users can write slots, so they can be any numbers.
  template <typename T>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE int64_t PreviousStep(const T* s) {
    constexpr T kEnd = static_cast<T>(kBase);
    if (!(s[0] >= 0 && s[0] < kEnd && s[1] >= 0 && s[1] < kEnd)) return 0;
    return static_cast<int64_t>(s[0]) * kBase + static_cast<int64_t>(s[1]);
  }

  // A weight whose replay has ended has m = 0, so its result is the same in a pack of any width.
  // NaN changes nothing and ends the replay too.
  template <typename T, typename V>
  static TF_EMBED_HOST_DEVICE TF_EMBED_INLINE void Replay(const Constants<T>& c,
                                                          const RowFactors<T>& row, V m, V root,
                                                          V& w) {
    constexpr int64_t kBetweenLooks = 16;  // for m of a pack, which cost as much as a few steps
    T bias_1 = row.bias_1;
    T bias_2 = row.bias_2;
    for (int64_t i = 1; i <= row.replayed; ++i) {
      m *= c.m_decay;
      root *= c.root_decay;
      bias_1 = bias_1 * c.bias_1_keep + c.bias_1_more;
      bias_2 = bias_2 * c.bias_2_keep + c.bias_2_more;
      const V move = c.h * Sqrt(bias_2) * m / ((root + c.epsilon) * bias_1);
      const V next = w - move;
      V farthest = next;
      if (!c.moves_shrink) farthest = w - c.longest * m;
      const auto changes = (farthest < w) | (farthest > w);
      w = changes ? next : w;
      m = changes ? m : V{};
      if (i % kBetweenLooks == 0 && IsZero(m)) return;
    }
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_RULES_SMART_DECAY_ADAM_RULE_H_
