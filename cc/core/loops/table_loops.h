// SPDX-License-Identifier: Apache-2.0
// The loops in which a HostStore spends its time, compiled once for each instruction set. Their
// results do not depend on the set, to the last bit.
//
// table_loops_inl.h is the code; table_loops_plain.cc, _avx2.cc and _avx512.cc compile it. Only
// these three files have special compiler flags. An inline function that they share with others
// must be TF_EMBED_INLINE: of any other inline function the linker keeps one copy, from any of the
// files, and an old machine would run into instructions that it does not have.
#ifndef TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_H_
#define TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/core/base/instruction_set.h"
#include "cc/core/batch/gradient_rows.h"
#include "cc/core/batch/key_batch.h"
#include "cc/core/index/row_memory.h"
#include "cc/core/index/striped_index.h"
#include "cc/core/rows/initializer.h"
#include "cc/core/rules/rule_list.h"

namespace tf_embed {

// The keys of a batch go through a pipeline. A key's bucket is prefetched kBucketAhead keys before
// its row is read or changed, the row kRowAhead keys before. That many lines are in flight at any
// time.
constexpr size_t kRowAhead = 12;
constexpr size_t kBucketAhead = 2 * kRowAhead;
constexpr size_t kRing = 32;  // for the keys in between

// A find: copies the rows of a batch's keys without a lock.
struct FindRequest {
  const StripedIndex* index;
  const RowMemory* rows;
  KeyBatch batch;
  char* weights;
  bool* exists;  // may be null
  char* slots;   // may be null
  // Writes the values of an absent key to the outputs of a position.
  void (*absent)(const FindRequest& request, int64_t key, size_t position);
  // Notes that a row is used, and returns whether it counts as present; null: uses are not counted.
  // The row id may belong to another key by now, if the row leaves at this moment.
  bool (*use)(const FindRequest& request, int64_t key, uint32_t row_id);
  // Whether rows have marks; then a find is a use of them in this tick.
  bool marks = false;
  uint8_t tick = 0;
  void* caller;  // for absent and use
};

// One step of a rule on one row, in place: `weights` [dim], `slots` [rule's slots of a row].
// REQUIRES: no other thread writes `gradient` [dim]. Others may read the row meanwhile.
template <typename T>
using StepFunction = void (*)(const RuleConstants<T>& constants, size_t dim, const T* gradient,
                              T* weights, T* slots);

// Sums the rows at `positions` [count], at least one, in that order, each times its factor.
template <typename T>
using SumFunction = void (*)(const GradientRows<T>& rows, const uint32_t* positions, size_t count,
                             T* sum);

// Adds `rows` [count, dim] to `sum` [dim], or to zeros if the sum `begins`, in that order, each
// times its factor; without factors each factor is 1.
template <typename T>
using PoolFunction = void (*)(const T* rows, size_t count, size_t dim, const T* factors,
                              bool begins, T* sum);

// Adds `to` - `from` (both [.., dim]) to the weights of a row that others may read meanwhile, for
// the `positions` [count] whose `chosen` is true, in that order.
template <typename T>
using AddDifferencesFunction = void (*)(const T* from, const T* to, const bool* chosen,
                                        const uint32_t* positions, size_t count, size_t dim,
                                        T* weights);

struct TableLoops {
  void (*find)(const FindRequest& request, size_t begin, size_t end);

  StepFunction<float> (*float_step)(const Rule& rule);
  StepFunction<double> (*double_step)(const Rule& rule);
  // The rule's change of every row after this step, without a gradient; null: none.
  StepFunction<float> (*float_pass)(const Rule& rule);
  StepFunction<double> (*double_pass)(const Rule& rule);
  SumFunction<float> float_sum;
  SumFunction<double> double_sum;
  PoolFunction<float> float_pool;
  PoolFunction<double> double_pool;
  AddDifferencesFunction<float> float_add_differences;
  AddDifferencesFunction<double> double_add_differences;

  // Copies between a row that others may see and memory of the caller, as LoadRow and StoreRow.
  void (*load_row)(const char* row, size_t bytes, void* out);
  void (*store_row)(const void* from, size_t bytes, char* row);

  // InitializeRandom for float.
  void (*initialize)(InitializerKind kind, double a, double b, uint64_t state, size_t dim,
                     float* out);

  template <typename T>
  StepFunction<T> StepOf(const Rule& rule) const {
    if constexpr (std::is_same_v<T, double>) return double_step(rule);
    if constexpr (std::is_same_v<T, float>) return float_step(rule);
  }
  template <typename T>
  StepFunction<T> PassOf(const Rule& rule) const {
    if constexpr (std::is_same_v<T, double>) return double_pass(rule);
    if constexpr (std::is_same_v<T, float>) return float_pass(rule);
  }
  template <typename T>
  AddDifferencesFunction<T> AddDifferences() const {
    if constexpr (std::is_same_v<T, double>) return double_add_differences;
    if constexpr (std::is_same_v<T, float>) return float_add_differences;
  }
  template <typename T>
  PoolFunction<T> Pool() const {
    if constexpr (std::is_same_v<T, double>) return double_pool;
    if constexpr (std::is_same_v<T, float>) return float_pool;
  }
  template <typename T>
  SumFunction<T> Sum() const {
    if constexpr (std::is_same_v<T, double>) return double_sum;
    if constexpr (std::is_same_v<T, float>) return float_sum;
  }
};

const TableLoops& LoopsOf(InstructionSet set);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_H_
