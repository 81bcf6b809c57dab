// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of policies: a store with a clock, and a simulation of a bounded store's
// content.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_POLICY_SIMULATION_H_
#define TF_EMBED_TESTS_CC_SUPPORT_POLICY_SIMULATION_H_

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {

inline constexpr size_t kDim = 4;

// A store of dim 4 for SGD or momentum, a clock, and short names for verbs.
class Subject {
 public:
  Subject(const StoreKind& kind, const RowPolicy& policy, const ExecContext& context = Threads(2))
      : context(context) {
    StoreOptions options;
    options.dim = kDim;
    options.initializer = UniformInitializer();
    options.policy = policy;
    store = kind.create(options);
    this->context.now = {1, 1000};
  }

  void NextStep(uint64_t milliseconds = 10) {
    ++context.now.step;
    context.now.milliseconds += milliseconds;
  }
  Status TryApply(const Batch& batch) {
    const std::vector<float> gradients(batch.size() * kDim, 1.0f);
    return store->Apply(context, batch, gradients.data(), DataType::kFloat,
                        MakeRule(RuleKind::kMomentum, kDim));
  }
  void Apply(const Batch& batch) { ExpectOk(TryApply(batch)); }
  void Upsert(const Batch& batch) {
    const std::vector<float> rows(batch.size() * kDim, 2.0f);
    ExpectOk(store->InsertOrAssign(context, batch, rows.data(), {}));
  }
  void Find(const Batch& batch, bool training) {
    std::vector<float> rows(batch.size() * kDim);
    ExecContext look = context;
    look.training = training;
    ExpectOk(store->Find(look, batch, DefaultRows(), rows.data(), nullptr, {}));
  }
  std::vector<uint64_t> StatisticsOf(int64_t key) {
    std::vector<uint64_t> words(StatisticSet::kMax);
    bool exists;
    ExpectOk(store->eviction()->FindStatistics(context, Batch{key}, words.data(), &exists));
    if (!exists) return {};
    words.resize(store->options().policy.statistics.size());
    return words;
  }
  bool Has(int64_t key) {
    uint64_t words[StatisticSet::kMax];
    bool exists;
    ExpectOk(store->eviction()->FindStatistics(context, Batch{key}, words, &exists));
    return exists;
  }
  std::map<int64_t, std::vector<float>> Rows() const { return All(false); }
  std::map<int64_t, std::vector<float>> Slots() const { return All(true); }
  std::set<int64_t> Keys() const {
    std::vector<int64_t> keys;
    WholeRows rows(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      ExpectOk(store->maintenance()->ExportBatch(1000, &cursor, &rows));
      keys.insert(keys.end(), rows.keys.data(), rows.keys.data() + rows.size);
    }
    std::sort(keys.begin(), keys.end());  // sorted keys make the set fast
    return std::set<int64_t>(keys.begin(), keys.end());
  }
  static void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  ExecContext context;
  std::unique_ptr<Store> store;

 private:
  std::map<int64_t, std::vector<float>> All(bool slots) const {
    std::map<int64_t, std::vector<float>> all;
    WholeRows rows(HostAllocator());
    const size_t width = slots ? store->rule().slots_per_row() : kDim;
    for (ExportCursor cursor; !cursor.done;) {
      ExpectOk(store->maintenance()->ExportBatch(1000, &cursor, &rows));
      const char* const from = slots ? rows.slots.data() : rows.weights.data();
      const float* const values = reinterpret_cast<const float*>(from);
      for (size_t i = 0; i < rows.size; ++i) {
        all[rows.keys[i]].assign(values + i * width, values + (i + 1) * width);
      }
    }
    return all;
  }
};

inline constexpr EvictionOrder kAllOrders[] = {
    EvictionOrder::kLru,   EvictionOrder::kLfu,      EvictionOrder::kTtl,
    EvictionOrder::kScore, EvictionOrder::kEpochLru, EvictionOrder::kEpochLfu,
};

inline RowPolicy Bounded(size_t max_rows, EvictionOrder order) {
  RowPolicy policy;
  policy.max_rows = max_rows;
  policy.eviction = order;
  return policy;
}

// A policy that refuses new rows beyond the bound.
inline RowPolicy Refusing(size_t max_rows) {
  RowPolicy policy = Bounded(max_rows, EvictionOrder::kLru);
  policy.evicts = false;
  return policy;
}

inline RowPolicy AllStatistics() {
  RowPolicy policy;
  for (const Statistic statistic : kAllStatistics) {
    policy.statistics = policy.statistics.With(statistic);
  }
  return policy;
}

class Log : public EvictionSink {
 public:
  Status Evict(const WholeRows& rows, const RuleSlots& rule) override {
    std::lock_guard<std::mutex> lock(mutex);
    if (fails) return Status::ResourceExhausted([] { return "The log is full."; });
    const auto row = [](const void* values, size_t i, size_t width) {
      const float* const row = static_cast<const float*>(values) + i * width;
      return std::vector<float>(row, row + width);
    };
    for (size_t i = 0; i < rows.size; ++i) {
      evicted.emplace_back(rows.keys[i], row(rows.weights.data(), i, kDim));
      slots[rows.keys[i]] = row(rows.slots.data(), i, rule.slots_per_row());
      const uint64_t* const words = rows.statistics.data() + i * num_statistics;
      statistics[rows.keys[i]].assign(words, words + num_statistics);
    }
    return Status();
  }
  size_t num_statistics = 0;  // of a row
  std::mutex mutex;
  bool fails = false;
  std::vector<std::pair<int64_t, std::vector<float>>> evicted;
  std::map<int64_t, std::vector<float>> slots;
  std::map<int64_t, std::vector<uint64_t>> statistics;
};

// The expected content of a bounded store.
class Simulation {
 public:
  struct Row {
    uint64_t step, milliseconds, count;
    int64_t score;
    uint64_t epoch;
  };
  // With `eviction_set_bits`, a victim is in the eviction set of the row that replaces it.
  Simulation(size_t max_rows, EvictionOrder order, uint32_t eviction_set_bits = 0)
      : max_rows_(max_rows), order_(order), eviction_set_bits_(eviction_set_bits) {}
  // The expected content of a store of the kind.
  Simulation(const StoreKind& kind, size_t max_rows, EvictionOrder order)
      : Simulation(max_rows, order, kind.on_device ? EvictionSetBits(max_rows) : 0) {}

  // Simulates a write of a batch. Returns the number of refused keys. If there are scores, each key
  // has a score, and a new row replaces only rows of no higher score.
  size_t Write(const std::vector<int64_t>& batch, const Moment& now,
               const std::map<int64_t, int64_t>& scores = {}) {
    std::vector<int64_t> absent;
    std::set<int64_t> seen;
    for (const int64_t key : batch) {
      if (!seen.insert(key).second) continue;
      const auto found = rows.find(key);
      if (found == rows.end()) {
        absent.push_back(key);
      } else {
        Use(&found->second, now);
      }
    }
    const auto score_of = [&](int64_t key) { return scores.empty() ? 0 : scores.at(key); };
    const size_t room = max_rows_ - std::min(max_rows_, rows.size());
    std::map<uint64_t, Candidates> by_eviction_set;
    for (size_t i = 0; i < absent.size(); ++i) {
      Candidates& candidates = by_eviction_set[EvictionSetOf(absent[i])];
      candidates.keys.push_back(absent[i]);
      if (i < room) ++candidates.coming;
    }
    for (const auto& row : rows) {
      if (row.second.step == now.step) continue;
      const auto found = by_eviction_set.find(EvictionSetOf(row.first));
      if (found == by_eviction_set.end()) continue;
      Candidates& candidates = found->second;
      if (candidates.coming == candidates.keys.size()) continue;
      candidates.not_in_use.emplace_back(RankOf(row), row.first);
    }
    size_t refused = 0;
    for (auto& [number, candidates] : by_eviction_set) {
      std::vector<int64_t>& keys = candidates.keys;
      std::stable_sort(keys.begin(), keys.end(),
                       [&](int64_t a, int64_t b) { return score_of(a) > score_of(b); });
      std::sort(candidates.not_in_use.begin(), candidates.not_in_use.end());
      for (const auto& [rank, key] : candidates.not_in_use) {
        if (candidates.coming == keys.size()) break;
        if (!scores.empty() && rows.at(key).score > score_of(keys[candidates.coming])) break;
        rows.erase(key);
        ++candidates.coming;
      }
      for (size_t i = 0; i < candidates.coming; ++i) rows[keys[i]] = Fresh(now);
      refused += keys.size() - candidates.coming;
    }
    for (const auto& [key, score] : scores) {
      if (rows.count(key) > 0) rows[key].score = score;
    }
    return refused;
  }
  static Row Fresh(const Moment& now) { return {now.step, now.milliseconds, 1, 0, now.epoch}; }
  static void Use(Row* row, const Moment& now) {
    if (row->step != now.step) ++row->count;
    row->step = now.step;
    row->milliseconds = now.milliseconds;
    row->epoch = std::max(row->epoch, now.epoch);
  }
  std::set<int64_t> Keys() const {
    std::set<int64_t> keys;
    for (const auto& [key, row] : rows) keys.insert(keys.end(), key);
    return keys;
  }
  // An independent definition of the order, to compare with the store's.
  using Rank = std::array<uint64_t, 3>;
  Rank RankOf(const std::pair<const int64_t, Row>& entry) const {
    const Row& row = entry.second;
    const uint64_t hash = HashKey(entry.first) << 8 | HashKey(entry.first) >> 56;
    switch (order_) {
      case EvictionOrder::kLru:
        return {row.step, hash};
      case EvictionOrder::kLfu:
        return {row.count, row.step, hash};
      case EvictionOrder::kTtl:
        return {row.milliseconds, row.step, hash};
      case EvictionOrder::kEpochLru:
        return {row.epoch, row.step, hash};
      case EvictionOrder::kEpochLfu:
        return {row.epoch, row.count, hash};
      case EvictionOrder::kScore:
        break;
    }
    return {static_cast<uint64_t>(row.score) + (1ull << 63), hash};
  }

  std::map<int64_t, Row> rows;

 private:
  struct Candidates {
    std::vector<int64_t> keys;
    size_t coming = 0;
    std::vector<std::pair<Rank, int64_t>> not_in_use;  // rows that may leave for new rows
  };

  uint64_t EvictionSetOf(int64_t key) const {
    return eviction_set_bits_ == 0 ? 0 : HashKey(key) >> (64 - eviction_set_bits_);
  }

  size_t max_rows_;
  EvictionOrder order_;
  uint32_t eviction_set_bits_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_POLICY_SIMULATION_H_
