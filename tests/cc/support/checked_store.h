// SPDX-License-Identifier: Apache-2.0
// A store and its oracle side by side. Each verb runs on both, and the results must be equal to the
// last bit. If the store has trained with powers of other bits (StoreKind), results have a
// tolerance. ExpectSame compares their whole contents.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_CHECKED_STORE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_CHECKED_STORE_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "tests/cc/support/reference_store.h"

namespace tf_embed {

template <typename T>
class CheckedStore {
 public:
  using Oracle = ReferenceStore<T>;
  using Slot = typename Oracle::Slot;
  using Defaults = DefaultRows::Kind;

  CheckedStore(const StoreKind& kind, size_t dim, const ExecContext& context = Threads(2),
               uint64_t seed = 1, const RowInitializer& initializer = UniformInitializer(),
               size_t init_size = 0)
      : context(context), random(seed), oracle(dim, initializer), same_powers_(kind.same_powers) {
    StoreOptions options;
    options.value_type = TypeOf<T>();
    options.dim = dim;
    options.initializer = initializer;
    options.init_size = init_size;
    store = kind.create(options);
  }

  void Find(const Batch& batch, Defaults kind = Defaults::kInitializer) {
    SCOPED_TRACE("Find");
    Look(batch, kind, [&](const DefaultRows& defaults, T* weights, bool* exists, bool real) {
      if (!real) return oracle.Find(batch, defaults, weights, exists, nullptr);
      ExpectOk(store->Find(context, batch, defaults, weights, exists, {}));
    });
  }
  void FindSlots(const Batch& batch, Defaults kind = Defaults::kInitializer) {
    SCOPED_TRACE("FindSlots");
    std::vector<Slot> slots[2];
    Look(batch, kind, [&](const DefaultRows& defaults, T* weights, bool* exists, bool real) {
      slots[real].assign(batch.places * oracle.rule.slots_per_row(), 99);
      if (!real) return oracle.Find(batch, defaults, weights, exists, slots[0].data());
      ExpectOk(
          store->Find(context, batch, defaults, weights, exists, {&oracle.rule, slots[1].data()}));
      const auto contained = std::make_unique<bool[]>(batch.places + 1);
      ExpectOk(store->Contains(context, batch, contained.get()));
      for (size_t i = 0; i < batch.size(); ++i) {
        EXPECT_EQ(exists[batch.Position(i)], contained[batch.Position(i)]);
      }
    });
    ExpectSameValues(slots[0], slots[1], "slots");
  }
  void FindOrInsert(const Batch& batch, Defaults kind = Defaults::kInitializer) {
    SCOPED_TRACE("FindOrInsert");
    Look(batch, kind, [&](const DefaultRows& defaults, T* weights, bool* exists, bool real) {
      if (!real) return oracle.FindOrInsert(batch, defaults, weights, exists);
      ExpectOk(store->FindOrInsert(context, batch, defaults, weights, exists));
    });
  }
  void InsertOrAssign(const Batch& batch, bool with_slots = false) {
    const std::vector<T> weights = Values(batch);
    const auto slots = RandomValues<Slot>(batch.places * oracle.rule.slots_per_row(), &random);
    oracle.InsertOrAssign(batch, weights.data(), with_slots ? slots.data() : nullptr);
    const SlotsIn given{&oracle.rule, slots.data()};
    ExpectOk(store->InsertOrAssign(context, batch, weights.data(), with_slots ? given : SlotsIn()));
  }
  // The caller's claims, `exists`, are random.
  void Accum(const Batch& batch) {
    const std::vector<T> old_rows = Values(batch), new_rows = Values(batch);
    const auto exists = std::make_unique<bool[]>(batch.places + 1);
    for (size_t i = 0; i < batch.places; ++i) exists[i] = random() % 2 == 0;
    oracle.Accum(batch, old_rows.data(), new_rows.data(), exists.get());
    ExpectOk(store->Accum(context, batch, old_rows.data(), new_rows.data(), exists.get()));
  }
  void Apply(const Batch& batch, const Rule& rule) {
    const std::vector<T> gradients = Values(batch);
    Step(batch, gradients.data(), rule);
    ExpectOk(store->Apply(context, batch, gradients.data(), TypeOf<T>(), rule));
  }
  void ApplyFloats(const Batch& batch, const Rule& rule) {
    const auto gradients = RandomValues<float>(batch.places * oracle.dim, &random);
    Step(batch, gradients.data(), rule);
    ExpectOk(store->Apply(context, batch, gradients.data(), DataType::kFloat, rule));
  }
  // Gradients that begin anywhere in a few rows, and overlap. If `scaled`, each has a factor.
  void ApplyShared(const Batch& batch, const Rule& rule, bool scaled) {
    const auto values = RandomValues<Slot>(10 * oracle.dim, &random);
    const auto factors = RandomValues<Slot>(batch.places, &random);
    std::vector<size_t> begins;
    std::vector<Slot> gradients;
    for (size_t i = 0; i < batch.places; ++i) {
      begins.push_back(random() % (9 * oracle.dim + 1));
      for (size_t j = 0; j < oracle.dim; ++j) {
        gradients.push_back((scaled ? factors[i] : Slot{1}) * values[begins[i] + j]);
      }
    }
    Step(batch, gradients.data(), rule);
    ExpectOk(store->Apply(
        context, batch,
        {values.data(), TypeOf<Slot>(), begins.data(), scaled ? factors.data() : nullptr}, rule));
  }
  void Erase(const Batch& batch) {
    oracle.Erase(batch);
    ExpectOk(store->Erase(context, batch));
  }
  void Clear() {
    oracle.rows.clear();
    same_bits_ = true;
    ExpectOk(store->Clear());
  }
  void Shrink() { ExpectOk(store->maintenance()->Shrink(context)); }
  void SetRule(const RuleSlots& rule) {
    oracle.SetRule(rule);
    ExpectOk(store->maintenance()->SetRule(rule));
  }

  // Exports all rows, in batches of about `max_rows`, and compares them.
  void ExpectSame(size_t max_rows = 1000) {
    ASSERT_EQ(oracle.rows.size(), store->size());
    EXPECT_TRUE(SameRuleAndInitialValues(oracle.rule, store->rule()));
    const size_t dim = oracle.dim;
    const size_t slots_per_row = oracle.rule.slots_per_row();
    std::map<int64_t, typename Oracle::Row> exported;
    WholeRows rows(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      ASSERT_TRUE(store->maintenance()->ExportBatch(max_rows, &cursor, &rows).ok());
      ASSERT_TRUE(cursor.done || rows.size > 0);
      const T* const weights = reinterpret_cast<const T*>(rows.weights.data());
      const Slot* const slots = reinterpret_cast<const Slot*>(rows.slots.data());
      for (size_t i = 0; i < rows.size; ++i) {
        typename Oracle::Row row;
        row.weights.assign(weights + i * dim, weights + (i + 1) * dim);
        if (slots_per_row > 0)
          row.slots.assign(slots + i * slots_per_row, slots + (i + 1) * slots_per_row);
        ASSERT_TRUE(exported.emplace(rows.keys[i], std::move(row)).second)
            << "key " << rows.keys[i] << " came twice";
      }
    }
    ASSERT_EQ(oracle.rows.size(), exported.size());
    for (const auto& [key, row] : oracle.rows) {
      SCOPED_TRACE("key " + std::to_string(key));
      ASSERT_EQ(1u, exported.count(key));
      ExpectSameValues(row.weights, exported[key].weights, "weights");
      ExpectSameValues(row.slots, exported[key].slots, "slots");
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  ExecContext context;
  Random random;
  Oracle oracle;
  std::unique_ptr<Store> store;

 private:
  std::vector<T> Values(const Batch& batch) {
    return RandomValues<T>(batch.places * oracle.dim, &random);
  }
  template <typename G>
  void Step(const Batch& batch, const G* gradients, const Rule& rule) {
    oracle.Apply(batch, gradients, rule);
    if (!same_powers_ && TakesPowers(rule)) same_bits_ = false;
  }
  // Such powers are wrong by a few units in the last place, and steps increase the error.
  template <typename V>
  void ExpectSameValues(const std::vector<V>& expected, const std::vector<V>& actual,
                        const char* what) const {
    if (same_bits_) return ExpectSameBits(expected, actual, what);
    constexpr double kTolerance = sizeof(V) == sizeof(Half) ? 2e-2 : 1e-4;
    ASSERT_EQ(expected.size(), actual.size()) << what;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double x = static_cast<double>(Number<V>::Load(expected[i]));
      const double y = static_cast<double>(Number<V>::Load(actual[i]));
      if (std::isnan(x) && std::isnan(y)) continue;
      ASSERT_NEAR(x, y, kTolerance * std::max(1.0, std::abs(x))) << what << "[" << i << "]";
    }
  }
  static void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  // Runs a lookup on both, and compares the whole arrays, including gaps between positions.
  template <typename Verb>
  void Look(const Batch& batch, Defaults kind, const Verb& verb) {
    const std::vector<T> default_rows = Values(kind == Defaults::kOneForAll ? Batch{0} : batch);
    const DefaultRows defaults{kind, default_rows.data()};
    std::vector<T> weights[2];
    std::vector<char> exists[2];
    for (int real : {0, 1}) {
      weights[real].assign(batch.places * oracle.dim, Number<T>::FromDouble(99.0));
      exists[real].assign(batch.places, 0);
      verb(defaults, weights[real].data(), reinterpret_cast<bool*>(exists[real].data()), real != 0);
    }
    ExpectSameValues(weights[0], weights[1], "weights");
    EXPECT_EQ(exists[0], exists[1]);
    if (kind == Defaults::kInitializer && random() % 4 == 0) {  // `exists` may be null
      EXPECT_TRUE(store->Find(context, batch, defaults, weights[1].data(), nullptr, {}).ok());
    }
  }

  const bool same_powers_;
  bool same_bits_ = true;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_CHECKED_STORE_H_
