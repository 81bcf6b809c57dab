// SPDX-License-Identifier: Apache-2.0
// The code of table_loops.h. Included by the files that compile it for an instruction set, each
// with its own type:
//
//     struct Set { static constexpr size_t kPackBytes = ...; }
#ifndef TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_INL_H_
#define TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_INL_H_

#include "cc/core/loops/table_loops.h"
#include "cc/core/rows/row_copy.h"
#include "cc/core/rules/rule_list.h"

namespace tf_embed {

// The lanes of a bucket that hold `key`, as bits. Empty lanes may hold it as well.
template <class Set>
TF_EMBED_INLINE uint32_t LanesWith(const Bucket& bucket, int64_t key) {
#if !defined(TF_EMBED_THREAD_SANITIZER)
#if defined(__AVX512F__)
  if constexpr (Set::kPackBytes == 64) {
    const auto line = LoadShared<PackOf<int64_t, 64>::Type>(reinterpret_cast<const char*>(&bucket));
    return _mm512_mask_cmpeq_epi64_mask(0x1f, (__m512i)line, _mm512_set1_epi64(key));
  }
#endif
#if defined(__AVX2__)
  if constexpr (Set::kPackBytes == 32) {
    const auto four = LoadShared<PackOf<int64_t, 32>::Type>(reinterpret_cast<const char*>(&bucket));
    const __m256i equal = _mm256_cmpeq_epi64((__m256i)four, _mm256_set1_epi64x(key));
    const uint32_t last = bucket.keys[4].load(std::memory_order_relaxed) == key ? 16 : 0;
    return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal))) | last;
  }
#endif
#endif
  uint32_t lanes = 0;
  for (int lane = 0; lane < Bucket::kLanes; ++lane) {
    lanes |= (bucket.keys[lane].load(std::memory_order_relaxed) == key ? 1u : 0u) << lane;
  }
  return lanes;
}

// The row id of `key` in a bucket, or kNoRowId.
template <class Set>
TF_EMBED_INLINE uint32_t RowIdIn(const Bucket& bucket, int64_t key) {
  for (uint32_t lanes = LanesWith<Set>(bucket, key); lanes != 0; lanes &= lanes - 1) {
    const uint32_t row_id = bucket.row_ids[__builtin_ctz(lanes)].load(std::memory_order_relaxed);
    if (row_id != kNoRowId) return row_id;
  }
  return kNoRowId;
}

template <class Set>
struct Loops {
  // A key in the pipeline.
  struct InFlight {
    uint64_t hash;
    const Bucket* bucket;
    const char* row;  // null for an absent key
    uint32_t word;
    uint32_t row_id;
    RowMark::Byte* mark;  // if rows have marks
  };

  // kRowBytes: the size of the weights, or 0 if it is only known at run time.
  template <size_t kRowBytes>
  static void FindRows(const FindRequest& request, size_t begin, size_t end) {
    const StripedIndex& index = *request.index;
    const RowMemory& rows = *request.rows;
    const int64_t* const keys = request.batch.keys;
    const size_t row_bytes = kRowBytes > 0 ? kRowBytes : rows.layout().weight_bytes;
    const size_t slot_offset = rows.layout().slot_offset;
    const size_t slot_bytes =
        kRowBytes > 0 || request.slots == nullptr ? 0 : rows.layout().slot_bytes;
    const size_t read_bytes = slot_bytes == 0 ? row_bytes : rows.layout().stride;
    InFlight ring[kRing];

    const auto prefetch_bucket = [&](size_t i) {
      InFlight& flight = ring[i % kRing];
      flight.hash = HashKey(keys[i]);
      flight.bucket = index.HomeOf(flight.hash);
      __builtin_prefetch(flight.bucket);
    };
    const auto probe = [&](size_t i) {
      InFlight& flight = ring[i % kRing];
      flight.row = nullptr;
      if (flight.bucket == nullptr) return;
      // The word is read before the lanes and, in Unchanged, again after them. If it is the same,
      // and not locked, no writer changed the bucket in between, so the key and the row id belong
      // together. Find handles the rare cases: a locked or moved bucket, a key that may have
      // overflowed, and a change.
      flight.word = flight.bucket->word.load(std::memory_order_acquire);
      uint32_t row_id = RowIdIn<Set>(*flight.bucket, keys[i]);
      if ((flight.word & (Bucket::kLocked | Bucket::kMoved)) != 0 ||
          (row_id == kNoRowId && (flight.word & Bucket::kOverflowed) != 0) ||
          !flight.bucket->Unchanged(flight.word)) {
        const StripedIndex::Entry entry = index.Find(keys[i], flight.hash);
        flight.bucket = entry.bucket;
        flight.word = entry.word;
        row_id = entry.row_id;
      }
      if (row_id == kNoRowId) return;
      flight.row_id = row_id;
      flight.row = rows.Row(row_id);
      PrefetchRow<false>(flight.row, read_bytes);
      if (request.use != nullptr) __builtin_prefetch(rows.Statistics(row_id), 1);
      if (request.marks) {
        flight.mark = rows.Mark(row_id);
        __builtin_prefetch(flight.mark);
      }
    };
    const auto copy_row = [&](size_t i) {
      InFlight& flight = ring[i % kRing];
      const size_t position = request.batch.Position(i);
      char* const out = request.weights + position * row_bytes;
      // A writer may have changed the row since the probe, or changes it during this copy, or
      // erases it so that its memory gets another key. Each of these changes the word of the bucket
      // first. So the same word as in the probe vouches for the copy. Otherwise the copy is
      // discarded and the key is looked up again.
      while (flight.row != nullptr) {
        LoadRow<Set::kPackBytes>(flight.row, row_bytes, out);
        if (slot_bytes > 0) {
          LoadRow<Set::kPackBytes>(flight.row + slot_offset, slot_bytes,
                                   request.slots + position * slot_bytes);
        }
        if (__builtin_expect(flight.bucket->Unchanged(flight.word), 1)) break;
        const StripedIndex::Entry entry = index.Find(keys[i], flight.hash);
        flight.bucket = entry.bucket;
        flight.word = entry.word;
        flight.row_id = entry.row_id;
        flight.row = entry.found() ? rows.Row(entry.row_id) : nullptr;
        if (request.marks && entry.found()) flight.mark = rows.Mark(entry.row_id);
      }
      // Only after the check: a copy that was discarded is not a use.
      if (request.use != nullptr && flight.row != nullptr &&
          !request.use(request, keys[i], flight.row_id)) {
        flight.row = nullptr;
      }
      if (request.marks && flight.row != nullptr) RowMark::Use(flight.mark, request.tick);
      if (flight.row == nullptr) request.absent(request, keys[i], position);
      if (request.exists != nullptr) request.exists[position] = flight.row != nullptr;
    };

    // The pipeline fills, runs and empties.
    constexpr size_t kBetween = kBucketAhead - kRowAhead;
    const size_t count = end - begin;
    for (size_t i = 0; i < count && i < kBucketAhead; ++i) {
      prefetch_bucket(begin + i);
      if (i >= kBetween) probe(begin + i - kBetween);
    }
    for (size_t i = begin + kBucketAhead; i < end; ++i) {
      prefetch_bucket(i);
      probe(i - kBetween);
      copy_row(i - kBucketAhead);
    }
    for (size_t i = count; i < count + kBucketAhead; ++i) {
      if (i >= kBetween && i - kBetween < count) probe(begin + i - kBetween);
      if (i >= kBucketAhead) copy_row(begin + i - kBucketAhead);
    }
  }

  static void Find(const FindRequest& request, size_t begin, size_t end) {
    const size_t bytes = request.slots == nullptr ? request.rows->layout().weight_bytes : 0;
    switch (bytes) {
      case 32:
        return FindRows<32>(request, begin, end);
      case 64:
        return FindRows<64>(request, begin, end);
      case 128:
        return FindRows<128>(request, begin, end);
      case 256:
        return FindRows<256>(request, begin, end);
      case 512:
        return FindRows<512>(request, begin, end);
      default:
        return FindRows<0>(request, begin, end);
    }
  }

  // Puts the sums of the squares of `kTerms` terms of each lane in `sums`, in the order that
  // kSquareSums defines. term(i, x) gives the terms of the lanes from i on, as many lanes as x has.
  template <size_t kTerms, typename T, typename Term>
  static TF_EMBED_INLINE void SumSquares(size_t dim, const Term& term, T* sums) {
    using V = typename PackOf<T, Set::kPackBytes>::Type;
    constexpr size_t kLanes = Set::kPackBytes / sizeof(T);
    constexpr size_t kPacks = kSquareSums / kLanes;
    V totals[kTerms][kPacks] = {};
    size_t done = 0;
    for (; done + kSquareSums <= dim; done += kSquareSums) {
      for (size_t k = 0; k < kPacks; ++k) {
        V x[kTerms];
        term(done + k * kLanes, x);
        for (size_t j = 0; j < kTerms; ++j) totals[j][k] += x[j] * x[j];
      }
    }
    T lanes[kTerms][kSquareSums];
    std::memcpy(lanes, totals, sizeof(lanes));
    for (size_t i = 0; done + i < dim; ++i) {
      T x[kTerms];
      term(done + i, x);
      for (size_t j = 0; j < kTerms; ++j) lanes[j][i] += x[j] * x[j];
    }
    for (size_t j = 0; j < kTerms; ++j) sums[j] = AddHalves(lanes[j]);
  }

  template <class R, typename V, typename T>
  static TF_EMBED_INLINE void LoadSlots(const T* slots, size_t dim, size_t i, V* s) {
    for (size_t group = 0; group != R::kGroups; ++group) {
      s[group] = LoadPack<V>(slots + group * dim + i);
    }
  }
  template <class R, typename V, typename T>
  static TF_EMBED_INLINE void StoreSlots(const V* s, size_t dim, size_t i, T* slots) {
    for (size_t group = 0; group != R::kGroups; ++group) {
      StoreShared(s[group], slots + group * dim + i);
    }
  }

  // One step of a rule; rule_unit.h says in which order.
  template <class R, typename T>
  static void Step(const RuleConstants<T>& constants, size_t dim, const T* gradient, T* weights,
                   T* slots) {
    const auto& c = constants.template Of<R>();
    const T decay_before = constants.decay_before;
    T sums[2];
    T row_slots[R::kRowSlots + 1];
    T* const shared_row_slots = slots + (R::kGroups + R::kIdleGroups) * dim;
    RowFactors<T> row;
    if constexpr (R::kIdleGroups > 0) BeginAverage(dim, weights, slots);
    if constexpr (R::kLooks > 0) {
      SumSquares<R::kLooks>(
          dim,
          [&](size_t i, auto* x) {
            using V = std::decay_t<decltype(*x)>;
            V w{};
            if constexpr (R::kLooks > 1) w = LoadPack<V>(weights + i);
            R::Look(c, LoadPack<V>(gradient + i), w, x);
          },
          sums);
    }
    for (size_t i = 0; i != R::kRowSlots; ++i) row_slots[i] = shared_row_slots[i];
    R::Begin(c, dim, sums, row_slots, &row);
    for (size_t i = 0; i != R::kRowSlots; ++i) StoreShared(row_slots[i], shared_row_slots + i);
    if constexpr (R::kTurns) {
      SumSquares<2>(
          dim,
          [&](size_t i, auto* x) {
            using V = std::decay_t<decltype(*x)>;
            V s[R::kGroups + 1];
            LoadSlots<R>(slots, dim, i, s);
            x[1] = LoadPack<V>(weights + i);
            x[0] = R::Turn(c, row, LoadPack<V>(gradient + i), x[1], s);
            StoreSlots<R>(s, dim, i, slots);
          },
          sums);
      R::Settle(c, sums, &row);
    }
    ForEachPack<Set::kPackBytes, T>(dim, [&](size_t i, auto w) {
      using V = decltype(w);
      V s[R::kGroups + 1];
      w = LoadPack<V>(weights + i);
      LoadSlots<R>(slots, dim, i, s);
      if (decay_before != T(0)) w -= decay_before * w;
      StepLane<R>(c, row, LoadPack<V>(gradient + i), w, s);
      StoreShared(w, weights + i);
      if constexpr (!R::kTurns) StoreSlots<R>(s, dim, i, slots);
    });
    if constexpr (R::kBoundsNorm) {
      if (c.max_norm > T(0)) BoundNorm(c.max_norm, dim, weights);
    }
  }

  template <typename T>
  static TF_EMBED_INLINE void BoundNorm(T most, size_t dim, T* weights) {
    T sum;
    SumSquares<1>(
        dim, [&](size_t i, auto* x) { *x = LoadPack<std::decay_t<decltype(*x)>>(weights + i); },
        &sum);
    const T norm = Sqrt(sum);
    if (!(norm > most)) return;
    const T factor = most / norm;
    ForEachPack<Set::kPackBytes, T>(dim, [&](size_t i, auto w) {
      StoreShared(factor * LoadPack<decltype(w)>(weights + i), weights + i);
    });
  }

  // Starts an average at the weights, if it has not begun.
  template <typename T>
  static TF_EMBED_INLINE void BeginAverage(size_t dim, const T* weights, T* average) {
    if (average[0] == average[0]) return;
    ForEachPack<Set::kPackBytes, T>(dim, [&](size_t i, auto w) {
      StoreShared(LoadPack<decltype(w)>(weights + i), average + i);
    });
  }

  // The passes of AllRowsUpdate, as steps without a gradient.
  template <typename T>
  static void TakeAverage(const RuleConstants<T>& c, size_t dim, const T*, T* weights,
                          T* averages) {
    const AllRowsUpdate& pass = c.pass;
    const T share = static_cast<T>(pass.share);
    BeginAverage(dim, weights, averages);
    ForEachPack<Set::kPackBytes, T>(dim, [&](size_t i, auto w) {
      using V = decltype(w);
      w = LoadPack<V>(weights + i);
      V z = LoadPack<V>(averages + i);
      if (pass.averages) z += share * (w - z);
      if (pass.swaps) StoreShared(z, weights + i);
      if (pass.averages && !pass.keeps) z = V{};
      StoreShared(z, averages + i);
    });
  }
  template <typename T>
  static void FollowFirstHalf(const RuleConstants<T>& c, size_t dim, const T*, T* weights, T*) {
    const T share = static_cast<T>(c.pass.share);
    T* const second = weights + dim / 2;
    ForEachPack<Set::kPackBytes, T>(dim / 2, [&](size_t i, auto w) {
      using V = decltype(w);
      w = LoadPack<V>(second + i);
      w += share * (LoadPack<V>(weights + i) - w);
      StoreShared(w, second + i);
    });
  }

  template <typename T>
  static StepFunction<T> PassOf(const Rule& rule) {
    const AllRowsUpdate pass(rule);
    if (!pass.IsDue()) return nullptr;
    return pass.of_halves ? FollowFirstHalf<T> : TakeAverage<T>;
  }

  // The step with this number, of the unit's steps from kNumber on.
  template <class Unit, typename T, size_t kNumber = 0>
  static StepFunction<T> ChosenStep(size_t number) {
    if constexpr (kNumber + 1 < kNumSteps<Unit>) {
      if (number != kNumber) return ChosenStep<Unit, T, kNumber + 1>(number);
    }
    return Step<StepAt<Unit, kNumber>, T>;
  }

  template <typename T>
  static StepFunction<T> StepOf(const Rule& rule) {
    return DispatchUnit(rule.slots.kind, [&](auto tag) {
      using Unit = typename decltype(tag)::Type;
      return ChosenStep<Unit, T>(Unit::ChooseStep(rule.Get<typename Unit::Hyper>()));
    });
  }

  // Adds rows in order. The packs of the sum stay in registers meanwhile.
  template <typename V, size_t kTogether, bool kScaled, typename T>
  static TF_EMBED_INLINE void AddRows(const GradientRows<T>& rows, const uint32_t* positions,
                                      size_t count, size_t lane, V* total) {
    constexpr size_t kAhead = 4;
    constexpr size_t kLanes = sizeof(V) / sizeof(T);
    for (size_t i = 0; i < count; ++i) {
      if (i + kAhead < count) {
        const T* const ahead = rows.Row(positions[i + kAhead]) + lane;
        PrefetchRow<false>(reinterpret_cast<const char*>(ahead), kTogether * sizeof(V));
      }
      const T* const row = rows.Row(positions[i]) + lane;
      for (size_t k = 0; k < kTogether; ++k) {
        const V gradient = LoadPack<V>(row + k * kLanes);
        total[k] += kScaled ? rows.factors[positions[i]] * gradient : gradient;
      }
    }
  }

  // Calls body(lane, V(), constant kTogether) over [0, dim).
  template <typename T, typename Body>
  static TF_EMBED_INLINE void ForEachPacks(size_t dim, const Body& body) {
    using V = typename PackOf<T, Set::kPackBytes>::Type;
    constexpr size_t kTogether = 4;
    constexpr size_t kLanes = kTogether * Set::kPackBytes / sizeof(T);
    size_t lane = 0;
    for (; lane + kLanes <= dim; lane += kLanes) {
      body(lane, V{}, std::integral_constant<size_t, kTogether>());
    }
    ForEachPack<Set::kPackBytes, T>(dim - lane, [&](size_t i, auto pack) {
      body(lane + i, pack, std::integral_constant<size_t, 1>());
    });
  }

  template <bool kScaled, typename T>
  static TF_EMBED_INLINE void SumRows(const GradientRows<T>& rows, const uint32_t* positions,
                                      size_t count, T* sum) {
    ForEachPacks<T>(rows.dim, [&](size_t lane, auto pack, auto together) {
      using V = decltype(pack);
      V total[together];
      std::memcpy(total, rows.Row(positions[0]) + lane, sizeof(total));
      if constexpr (kScaled) {
        for (V& one : total) one *= rows.factors[positions[0]];
      }
      AddRows<V, together, kScaled>(rows, positions + 1, count - 1, lane, total);
      std::memcpy(sum + lane, total, sizeof(total));
    });
  }

  template <typename T>
  static void Sum(const GradientRows<T>& rows, const uint32_t* positions, size_t count, T* sum) {
    if (rows.factors == nullptr) return SumRows<false>(rows, positions, count, sum);
    SumRows<true>(rows, positions, count, sum);
  }

  template <bool kScaled, typename T>
  static TF_EMBED_INLINE void PoolRows(const T* rows, size_t count, size_t dim, const T* factors,
                                       bool begins, T* sum) {
    ForEachPacks<T>(dim, [&](size_t lane, auto pack, auto together) {
      using V = decltype(pack);
      constexpr size_t kLanes = sizeof(V) / sizeof(T);
      V total[together] = {};
      if (!begins) std::memcpy(total, sum + lane, sizeof(total));
      for (size_t i = 0; i < count; ++i) {
        const T* const row = rows + i * dim + lane;
        for (size_t k = 0; k < together; ++k) {
          const V values = LoadPack<V>(row + k * kLanes);
          total[k] += kScaled ? factors[i] * values : values;
        }
      }
      std::memcpy(sum + lane, total, sizeof(total));
    });
  }
  template <typename T>
  static void Pool(const T* rows, size_t count, size_t dim, const T* factors, bool begins, T* sum) {
    if (factors == nullptr) return PoolRows<false>(rows, count, dim, factors, begins, sum);
    PoolRows<true>(rows, count, dim, factors, begins, sum);
  }

  template <typename T>
  static void AddDifferences(const T* from, const T* to, const bool* chosen,
                             const uint32_t* positions, size_t count, size_t dim, T* weights) {
    constexpr size_t kAhead = 4;
    ForEachPacks<T>(dim, [&](size_t lane, auto pack, auto together) {
      using V = decltype(pack);
      constexpr size_t kLanes = sizeof(V) / sizeof(T);
      V total[together];
      std::memcpy(total, weights + lane, sizeof(total));
      for (size_t i = 0; i < count; ++i) {
        if (i + kAhead < count) {
          const size_t ahead = positions[i + kAhead] * dim + lane;
          PrefetchRow<false>(reinterpret_cast<const char*>(from + ahead), sizeof(total));
          PrefetchRow<false>(reinterpret_cast<const char*>(to + ahead), sizeof(total));
        }
        if (!chosen[positions[i]]) continue;
        const size_t at = positions[i] * dim + lane;
        for (size_t k = 0; k < together; ++k) {
          total[k] += LoadPack<V>(to + at + k * kLanes) - LoadPack<V>(from + at + k * kLanes);
        }
      }
      for (size_t k = 0; k < together; ++k) StoreShared(total[k], weights + lane + k * kLanes);
    });
  }

  static void Load(const char* row, size_t bytes, void* out) {
    LoadRow<Set::kPackBytes>(row, bytes, out);
  }
  static void Store(const void* from, size_t bytes, char* row) {
    StoreRow<Set::kPackBytes>(from, bytes, row);
  }

  static void Initialize(InitializerKind kind, double a, double b, uint64_t state, size_t dim,
                         float* out) {
    InitializeRandom(kind, a, b, state, dim, out);
  }

  static constexpr TableLoops kLoops = {
      Find,
      StepOf<float>,
      StepOf<double>,
      PassOf<float>,
      PassOf<double>,
      Sum<float>,
      Sum<double>,
      Pool<float>,
      Pool<double>,
      AddDifferences<float>,
      AddDifferences<double>,
      Load,
      Store,
      Initialize,
  };
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_INL_H_
