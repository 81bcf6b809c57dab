// SPDX-License-Identifier: Apache-2.0
// Steps of rules on rows in device memory. The lanes of a tile work on the columns of a row. Sums
// have the same order as in table_loops_inl.h, so rows have the same bits as on the host, except
// with rules that take powers.
#ifndef TF_EMBED_CC_STORES_DEVICE_RULE_KERNELS_H_
#define TF_EMBED_CC_STORES_DEVICE_RULE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/rows/stochastic_rounding.h"
#include "cc/core/rules/rule_list.h"
#include "cc/stores/device/row_kernels.h"

namespace tf_embed {

// Computes `sums`, the sums of the squares of `kTerms` terms of each column, for all lanes, in the
// order that kSquareSums defines. term(j, x) gives the terms of column j.
template <size_t kTerms, typename T, class Tile, typename Term>
TF_EMBED_DEVICE void SumSquares(const Tile& tile, size_t dim, const Term& term, T* sums) {
  static_assert(kSquareSums % Tile::kLanes == 0, "a lane has whole sums");
  constexpr size_t kOwn = kSquareSums / Tile::kLanes;
  T own[kTerms][kOwn] = {};
  for (size_t begin = 0; begin < dim; begin += kSquareSums) {
    for (size_t k = 0; k < kOwn; ++k) {
      const size_t j = begin + k * Tile::kLanes + tile.lane();
      if (j >= dim) continue;
      T x[kTerms];
      term(j, x);
      for (size_t i = 0; i < kTerms; ++i) own[i][k] += x[i] * x[i];
    }
  }
  for (size_t i = 0; i < kTerms; ++i) {  // AddHalves
    // The sixteen sums are halved in a fixed order, within a lane while it has several, then by
    // shuffles. So the result has the same bits for every number of lanes.
    for (size_t half = kSquareSums / 2; half > 0; half /= 2) {
      if (half >= Tile::kLanes) {
        for (size_t k = 0; k < half / Tile::kLanes; ++k) {
          own[i][k] += own[i][half / Tile::kLanes + k];
        }
      } else {
        own[i][0] += tile.Down(own[i][0], half);
      }
    }
    sums[i] = tile.From(own[i][0], 0);
  }
}

// Sets an average that has not begun to the weights.
template <typename T, class Tile>
TF_EMBED_DEVICE void BeginAverage(const Tile& tile, size_t dim, const T* weights, T* average) {
  // NaN means "not begun". All lanes read column 0 before the Sync, because its lane overwrites it.
  const bool begun = average[0] == average[0];
  tile.Sync();
  if (!begun) ForEachLane(tile, dim, [&](size_t j) { average[j] = weights[j]; });
}

// A step of a rule on a row; rule_unit.h has the order. No other lane uses a lane's columns of
// `gradient` and `weights`. `kTogether` columns are loaded before the first is written. Column by
// column, each load would wait for the write before it, because the compiler can't know that the
// addresses differ.
template <class R, size_t kTogether = 1, typename T, class Tile>
TF_EMBED_DEVICE void StepRow(const Tile& tile, const RuleConstants<T>& constants, size_t dim,
                             const T* gradient, T* weights, T* slots) {
  const auto& c = constants.template Of<R>();
  T sums[2];
  T row_slots[R::kRowSlots + 1];
  T* const shared_row_slots = slots + (R::kGroups + R::kIdleGroups) * dim;
  RowFactors<T> row;
  if constexpr (R::kIdleGroups > 0) BeginAverage(tile, dim, weights, slots);
  if constexpr (R::kLooks > 0) {
    SumSquares<R::kLooks, T>(
        tile, dim, [&](size_t j, T* x) { R::Look(c, gradient[j], weights[j], x); }, sums);
  }
  for (size_t i = 0; i != R::kRowSlots; ++i) row_slots[i] = shared_row_slots[i];
  // Every lane works on its own copy of the row's slots, so all must have read them before lane 0
  // writes.
  if constexpr (R::kRowSlots > 0) tile.Sync();
  R::Begin(c, dim, sums, row_slots, &row);
  if (tile.lane() == 0) {
    for (size_t i = 0; i != R::kRowSlots; ++i) shared_row_slots[i] = row_slots[i];
  }
  const auto load = [&](size_t j, T* s) {
    for (size_t group = 0; group != R::kGroups; ++group) s[group] = slots[group * dim + j];
  };
  const auto store = [&](size_t j, const T* s) {
    for (size_t group = 0; group != R::kGroups; ++group) slots[group * dim + j] = s[group];
  };
  // Such a rule (LAMB) scales its step by a ratio of norms. A first pass advances the slots and
  // sums the squares of steps and weights; Settle makes a factor of the sums for the second pass.
  if constexpr (R::kTurns) {
    SumSquares<2, T>(
        tile, dim,
        [&](size_t j, T* x) {
          T s[R::kGroups + 1];
          load(j, s);
          x[1] = weights[j];
          x[0] = R::Turn(c, row, gradient[j], x[1], s);
          store(j, s);
        },
        sums);
    R::Settle(c, sums, &row);
  }
  for (size_t begin = tile.lane(); begin < dim; begin += kTogether * Tile::kLanes) {
    T g[kTogether];
    T w[kTogether];
    T s[kTogether][R::kGroups + 1];
    TF_EMBED_UNROLL
    for (size_t k = 0; k != kTogether; ++k) {
      const size_t j = begin + k * Tile::kLanes;
      if (j >= dim) continue;
      g[k] = gradient[j];
      w[k] = weights[j];
      load(j, s[k]);
    }
    TF_EMBED_UNROLL
    for (size_t k = 0; k != kTogether; ++k) {
      const size_t j = begin + k * Tile::kLanes;
      if (j >= dim) continue;
      if (constants.decay_before != T(0)) w[k] -= constants.decay_before * w[k];
      StepLane<R>(c, row, g[k], w[k], s[k]);
      weights[j] = w[k];
      // The turn has stored the slots.
      if constexpr (!R::kTurns) store(j, s[k]);
    }
  }
  // No Sync: each lane reads only columns that it has written itself.
  if constexpr (R::kBoundsNorm) {
    if (c.max_norm > T(0)) {
      SumSquares<1, T>(
          tile, dim, [&](size_t j, T* x) { *x = weights[j]; }, sums);
      const T norm = Sqrt(sums[0]);
      if (norm > c.max_norm) {
        const T factor = c.max_norm / norm;
        ForEachLane(tile, dim, [&](size_t j) { weights[j] = factor * weights[j]; });
      }
    }
  }
}

// Runs the step of a unit that the hyper-parameters choose, if its number is at least kNumber.
template <class Unit, size_t kNumber = 0, typename T, class Tile>
TF_EMBED_DEVICE void StepByUnit(const Tile& tile, const RuleConstants<T>& c, size_t dim, const T* g,
                                T* w, T* s) {
  if constexpr (kNumber + 1 < kNumSteps<Unit>) {
    if (c.chosen_step != kNumber) return StepByUnit<Unit, kNumber + 1>(tile, c, dim, g, w, s);
  }
  StepRow<StepAt<Unit, kNumber>>(tile, c, dim, g, w, s);
}

// A step of any rule. There is one function, not inlined, for all rules and types of weights: the
// branch is the same for all tiles of a launch, and compilers take minutes for many copies. A
// launch needs the registers of the largest rule; with OneRule, only the registers of that rule.
template <typename T, class Tile>
TF_EMBED_DEVICE __attribute__((noinline)) void StepByRule(const Tile& tile,
                                                          const RuleConstants<T>& c, size_t dim,
                                                          const T* g, T* w, T* s) {
  switch (c.kind) {
    case RuleKind::kNone:
    case RuleKind::kExternal:
      return StepRow<NoRule>(tile, c, dim, g, w, s);
#define TF_EMBED_RULE(enumerator, number, name, ...) \
  case RuleKind::enumerator:                         \
    return StepByUnit<__VA_ARGS__>(tile, c, dim, g, w, s);
      TF_EMBED_RULES(TF_EMBED_RULE)
#undef TF_EMBED_RULE
  }
}

// The steps of ApplyVerb: for any rule, or for a single rule with kTogether columns at a time.
struct AnyRule {
  template <typename T, class Tile>
  static TF_EMBED_DEVICE void Step(const Tile& tile, const RuleConstants<T>& c, size_t dim,
                                   const T* g, T* w, T* s) {
    StepByRule(tile, c, dim, g, w, s);
  }
};
template <class R, size_t kTogether>
struct OneRule {
  template <typename T, class Tile>
  static TF_EMBED_DEVICE void Step(const Tile& tile, const RuleConstants<T>& c, size_t dim,
                                   const T* g, T* w, T* s) {
    StepRow<R, kTogether>(tile, c, dim, g, w, s);
  }
};

// Calls use(...) with OneRule of the chosen step of a unit if it has separate kernels, which exist
// for float weights; otherwise with AnyRule.
template <class Unit, size_t kNumber = 0, typename Use>
auto UseStep(size_t chosen, const Use& use) {
  using R = StepAt<Unit, kNumber>;
  if constexpr (kNumber + 1 < kNumSteps<Unit>) {
    if (chosen != kNumber) return UseStep<Unit, kNumber + 1>(chosen, use);
  }
  if constexpr (R::kHasKernels) {
    return use(OneRule<R, 4>());
  } else {
    return use(AnyRule());
  }
}
template <typename T, typename Use>
auto DispatchRule(const Rule& rule, const Use& use) {
  // Only for float: each further type would need as many kernels again, which take minutes to
  // compile.
  if constexpr (std::is_same_v<T, float>) {
    return DispatchUnit(rule.slots.kind, [&](auto tag) {
      using Unit = typename decltype(tag)::Type;
      return UseStep<Unit>(Unit::ChooseStep(rule.Get<typename Unit::Hyper>()), use);
    });
  } else {
    return use(AnyRule());
  }
}

// Converts weights from the compute type back to type T.
template <typename T>
struct WeightRounding {
  using Compute = typename Number<T>::Compute;

  RoundingNoise noise;
  bool by_noise;

  // `of_row`: noise.OfRow of the key.
  TF_EMBED_DEVICE T Round(uint64_t of_row, Compute weight, size_t column) const {
    if constexpr (!std::is_same_v<T, Compute>) {
      if (by_noise) return RoundingNoise::RoundColumn<T>(of_row, weight, column);
    }
    return Number<T>::Store(weight);
  }
};

// Gradients with values G, `dim` per position.
template <typename G>
struct GradientsView {
  using Compute = typename Number<G>::Compute;

  const G* values;
  size_t dim;
  const size_t* begins;    // Gradients
  const Compute* factors;  // Gradients

  TF_EMBED_DEVICE size_t Begin(size_t position) const {
    return begins == nullptr ? position * dim : begins[position];
  }
  TF_EMBED_DEVICE const G* Row(size_t position) const { return values + Begin(position); }

  // Sums are computed in blocks of columns, with this many per lane.
  static constexpr size_t kOwn = 16 / sizeof(Compute);
  template <class Tile>
  TF_EMBED_HOST_DEVICE size_t Blocks() const {
    return (dim + kOwn * Tile::kLanes - 1) / (kOwn * Tile::kLanes);
  }

  // Calls store(j, sum) for this lane's columns of a block, with the sum of a key's gradients in
  // batch order. As many gradients as there are lanes are loaded before they are added. Meanwhile
  // each lane finds the start of a following gradient. Otherwise a key in half of the batch would
  // wait for each load.
  template <class Tile, typename Store>
  TF_EMBED_DEVICE void Sum(const Tile& tile, const BatchView& batch, const DeviceGroup& group,
                           size_t block, const Store& store) const {
    const size_t column = block * kOwn * Tile::kLanes + tile.lane();
    Compute sums[kOwn] = {};
    Compute loaded[Tile::kLanes][kOwn] = {};
    size_t begin = 0;
    Compute factor{1};
    const auto look = [&](uint32_t first) {
      if (first >= group.count || tile.lane() >= group.count - first) return;
      const size_t position = batch.Position(group.members[first + tile.lane()]);
      begin = Begin(position);
      if (factors != nullptr) factor = factors[position];
    };
    look(0);
    for (uint32_t first = 0; first < group.count; first += Tile::kLanes) {
      const uint32_t count = group.count - first;
      TF_EMBED_UNROLL
      for (uint32_t k = 0; k != Tile::kLanes; ++k) {
        if (k >= count) break;
        const G* const from = values + tile.From(begin, k) + column;
        TF_EMBED_UNROLL
        for (size_t i = 0; i != kOwn; ++i) {
          if (column + i * Tile::kLanes >= dim) continue;
          loaded[k][i] = Number<G>::Load(from[i * Tile::kLanes]);
        }
      }
      const Compute own_factor = factor;
      look(first + static_cast<uint32_t>(Tile::kLanes));
      TF_EMBED_UNROLL
      for (uint32_t k = 0; k != Tile::kLanes; ++k) {
        if (k >= count) break;
        const Compute by = factors == nullptr ? Compute{1} : tile.From(own_factor, k);
        TF_EMBED_UNROLL
        for (size_t i = 0; i != kOwn; ++i) {
          const Compute gradient = factors == nullptr ? loaded[k][i] : loaded[k][i] * by;
          // The first gradient is not added to 0: 0 + -0 would be +0, and the bits would differ
          // from the host's.
          sums[i] = first + k == 0 ? gradient : sums[i] + gradient;
        }
      }
    }
    TF_EMBED_UNROLL
    for (size_t i = 0; i != kOwn; ++i) {
      const size_t j = column + i * Tile::kLanes;
      if (j < dim) store(j, sums[i]);
    }
  }
};

// The sums that ApplyVerb reads.
template <typename G>
struct GroupSums {
  using Compute = typename Number<G>::Compute;

  BatchView batch;
  GradientsView<G> gradients;
  Compute* sums;  // [keys of a launch, dim]

  // Otherwise the gradient of a key that occurs once is read in place.
  TF_EMBED_HOST_DEVICE bool SumsOnlyRepeated() const {
    return std::is_same_v<G, Compute> && gradients.factors == nullptr;
  }
  TF_EMBED_DEVICE bool WantsSum(const DeviceGroup&) const { return true; }
  TF_EMBED_DEVICE void PutSum(const DeviceGroup& group, size_t column, Compute sum) const {
    sums[group.slot * gradients.dim + column] = sum;
  }
  TF_EMBED_DEVICE const Compute* Get(const DeviceGroup& group) const {
    if constexpr (std::is_same_v<G, Compute>) {
      if (group.count == 1 && SumsOnlyRepeated()) return gradients.Row(batch.First(group));
    }
    return sums + group.slot * gradients.dim;
  }
};

// Runs the rule on the row of a key, with the sum of its gradients in batch order. A new row begins
// with the initial weights of its key. T: the weights; G: the gradients; R: AnyRule or OneRule.
template <typename T, typename G, class R>
struct ApplyVerb {
  using Compute = typename Number<T>::Compute;
  static constexpr bool kWritesPresent = true;
  static constexpr bool kSums = true;
  static constexpr bool kGives = false;
  static constexpr bool kNarrow = !std::is_same_v<T, Compute>;

  GroupSums<G> sums;
  DefaultsView defaults;
  RuleConstants<Compute> constants;
  WeightRounding<T> rounding;
  Compute* wide;  // [keys of a launch, dim], to compute narrow weights in

  template <class Tile>
  TF_EMBED_DEVICE void Present(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                               char* row) const {
    const size_t dim = store.layout.dim;
    Compute* const slots = reinterpret_cast<Compute*>(row + store.layout.slot_offset);
    T* const weights = reinterpret_cast<T*>(row);
    const Compute* const gradient = sums.Get(group);
    if constexpr (kNarrow) {
      // Narrow weights are widened once and rounded once per step. In between, the rule runs in the
      // compute type.
      Compute* const work = wide + group.slot * dim;
      ForEachLane(tile, dim, [&](size_t j) { work[j] = Number<T>::Load(weights[j]); });
      R::Step(tile, constants, dim, gradient, work, slots);
      // Noise comes from the key and the step, not from a generator, so a result does not depend on
      // the order of tiles.
      const uint64_t noise = rounding.noise.OfRow(group.key);
      ForEachLane(tile, dim, [&](size_t j) { weights[j] = rounding.Round(noise, work[j], j); });
    } else {
      R::Step(tile, constants, dim, gradient, weights, slots);
    }
  }
  template <class Tile>
  TF_EMBED_DEVICE void New(const Tile& tile, const StoreView& store, const DeviceGroup& group,
                           char* row) const {
    defaults.WriteInitial(tile, group.key, row);
    WriteInitialSlots(tile, store, row);
    tile.Sync();  // the copy gives lanes other columns
    Present(tile, store, group, row);
  }
  template <class Tile>
  TF_EMBED_DEVICE void Absent(const Tile&, const StoreView&, const DeviceGroup&) const {}
};

// The columns that a block of tiles sums at a time.
inline constexpr size_t kColumnsOfBlock = 32;

// For each of `blocks` blocks of columns of each group: computes the sum of its gradients. See
// LaunchBlocks. Sums has
//     batch, gradients
//     SumsOnlyRepeated()          whether only keys with several positions are summed
//     WantsSum(group)             whether the sum is needed
//     PutSum(group, column, sum)
template <class Sums>
struct SumKernel {
  using MayWait = void;
  SumKernel(const GroupsView& groups, size_t first, size_t count, size_t blocks, const Sums& sums)
      : groups(groups),
        first(first),
        count(count),
        blocks(blocks),
        only_repeated(sums.SumsOnlyRepeated()),
        sums(sums) {}

  GroupsView groups;
  size_t first;  // the groups of this launch, as in WriteKernel
  size_t count;
  size_t blocks;
  bool only_repeated;
  Sums sums;

  size_t MostTiles() const { return (only_repeated ? groups.size / 2 : count) * blocks; }
  TF_EMBED_DEVICE size_t NumTiles() const {
    return (only_repeated ? groups.NumRepeated() : count) * blocks;
  }
  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t i) const {
    if (i >= NumTiles()) return;
    const size_t number = only_repeated ? groups.repeated[i / blocks] : first + i / blocks;
    if (!Has(number)) return;
    const DeviceGroup group = groups.Get(first, number - first);
    if (Tile::kBlocks && group.count > kFrequentCount) return;
    if (!sums.WantsSum(group)) return;
    sums.gradients.Sum(tile, sums.batch, group, i % blocks,
                       [&](size_t j, auto sum) { sums.PutSum(group, j, sum); });
  }

  TF_EMBED_DEVICE size_t NumForBlocks() const { return groups.counters->frequent * Slices(); }
  template <class Block>
  TF_EMBED_DEVICE void OnBlock(size_t i) const {
    const size_t number = groups.frequent[i / Slices()];
    if (!Has(number)) return;
    const DeviceGroup group = groups.Get(first, number - first);
    if (sums.WantsSum(group)) Block::Sum(sums, group, i % Slices());
  }

 private:
  // A repeated key may belong to another launch.
  TF_EMBED_DEVICE bool Has(size_t number) const {
    return number - first < count && groups.Has(number);
  }
  TF_EMBED_DEVICE size_t Slices() const {
    return (sums.gradients.dim + kColumnsOfBlock - 1) / kColumnsOfBlock;
  }
};

// For each place of the index: the rule's change between steps; see AllRowsUpdate.
template <typename T>
struct PassKernel {
  using Compute = typename Number<T>::Compute;

  StoreView store;
  RuleConstants<Compute> constants;
  WeightRounding<T> rounding;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (!store.index.template Holds<Tile>(place)) return;
    const DeviceBucket::Entry& entry = store.index.EntryAt(place);
    char* const row = store.Row(entry.row);
    if (tile.lane() == 0) store.StatisticsIn<Tile>(row).NoteChange(store.period);
    const size_t dim = store.layout.dim;
    T* const weights = reinterpret_cast<T*>(row);
    const uint64_t noise = rounding.noise.OfRow(entry.key);
    const AllRowsUpdate& pass = constants.pass;
    const Compute share = static_cast<Compute>(pass.share);
    // Such a row has its average in the columns of its second half. Lane l reads column j of the
    // first half and writes column dim / 2 + j, and no other lane does.
    if (pass.of_halves) {
      ForEachLane(tile, dim / 2, [&](size_t j) {
        Compute w = Number<T>::Load(weights[dim / 2 + j]);
        w += share * (Number<T>::Load(weights[j]) - w);
        weights[dim / 2 + j] = rounding.Round(noise, w, dim / 2 + j);
      });
      return;
    }
    Compute* const averages = reinterpret_cast<Compute*>(row + store.layout.slot_offset);
    const bool begun = averages[0] == averages[0];
    tile.Sync();
    ForEachLane(tile, dim, [&](size_t j) {
      const Compute w = Number<T>::Load(weights[j]);
      Compute z = begun ? averages[j] : w;
      if (pass.averages) z += share * (w - z);
      if (pass.swaps) weights[j] = rounding.Round(noise, z, j);
      averages[j] = pass.averages && !pass.keeps ? Compute{} : z;
    });
  }
};

// For each place of the index: raises `largest`, the bits of a double that is at least 0. The order
// of the bits is the order of the numbers.
template <typename Slot>
struct LargestSlotKernel {
  StoreView store;
  size_t slot;
  uint64_t* largest;

  template <class Tile>
  TF_EMBED_DEVICE void operator()(const Tile& tile, size_t place) const {
    if (tile.lane() != 0 || !store.index.template Holds<Tile>(place)) return;
    const char* const row = store.Row(store.index.EntryAt(place).row);
    const double here = reinterpret_cast<const Slot*>(row + store.layout.slot_offset)[slot];
    // Also skips NaN and -0, whose bits would be above the bits of all numbers.
    if (!(here > 0.0)) return;
    uint64_t bits;
    memcpy(&bits, &here, sizeof(bits));
    Tile::Max(largest, bits);
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_RULE_KERNELS_H_
