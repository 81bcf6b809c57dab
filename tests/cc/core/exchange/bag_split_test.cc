// SPDX-License-Identifier: Apache-2.0
#include "cc/core/exchange/bag_split.h"

#include <map>
#include <random>
#include <vector>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kWorkers = 3;

// Two features of one table and a feature of another table, with bags of 0 to 6 keys.
struct Batch {
  std::vector<int64_t> keys;
  std::vector<int64_t> offsets = {0};
  std::vector<BagRun> runs = {{0, 0, 40}, {1, 40, 40}, {0, 80, 40}};
  std::vector<size_t> dims = {3, 5};

  explicit Batch(int64_t range, size_t longest = 6) {
    std::mt19937_64 random(5);
    for (size_t bag = 0; bag < 120; ++bag) {
      for (size_t i = random() % (longest + 1); i > 0; --i) {
        keys.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(range)));
      }
      offsets.push_back(static_cast<int64_t>(keys.size()));
    }
  }

  BagBatch view() const { return {keys.data(), offsets.data(), offsets.size() - 1, runs, dims}; }
  std::vector<AskCost> costs() const {
    std::vector<AskCost> of_tables;
    for (const size_t dim : dims) of_tables.push_back(AskCost::OfBags(dim, sizeof(float)));
    return of_tables;
  }
};

float WeightOf(size_t table, int64_t key, size_t column) {
  return static_cast<float>((static_cast<size_t>(key) * 7 + column * 3 + table) % 11);
}

// The owners' replies: the sum of the rows of each bag. Counts the keys by table and owner.
std::vector<float> Replies(const BagSplit& split, const Batch& batch, bool by_keys) {
  std::vector<float> values;
  size_t at_key = 0, at_bag = 0;
  std::map<std::pair<size_t, int64_t>, int> seen;
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    const size_t first_key = at_key, first_bag = at_bag, first_value = values.size();
    for (size_t table = 0; table < batch.dims.size(); ++table) {
      const int32_t num_bags = split.bags()[worker * batch.dims.size() + table];
      for (int32_t bag = 0; bag < num_bags; ++bag, ++at_bag) {
        std::vector<float> row(batch.dims[table], 0.0f);
        for (int32_t i = 0; i < split.lengths()[at_bag]; ++i, ++at_key) {
          const int64_t key = split.keys()[at_key];
          EXPECT_EQ(worker, OwnerOf(key, kWorkers, OwnerRule::kHash, false));
          if (by_keys) {
            EXPECT_EQ(1, ++seen[std::make_pair(table, key)]);
          }
          for (size_t j = 0; j < row.size(); ++j) row[j] += WeightOf(table, key, j);
        }
        values.insert(values.end(), row.begin(), row.end());
      }
    }
    EXPECT_EQ(at_key - first_key, static_cast<size_t>(split.keys_to()[worker]));
    EXPECT_EQ(at_bag - first_bag, static_cast<size_t>(split.bags_to()[worker]));
    EXPECT_EQ(values.size() - first_value, static_cast<size_t>(split.values_from()[worker]));
  }
  EXPECT_EQ(at_key, split.keys().size());
  EXPECT_EQ(at_bag, split.lengths().size());
  return values;
}

// The bags of all features, run by run.
std::vector<PooledRun> PooledRuns(const Batch& batch, size_t* size) {
  std::vector<PooledRun> runs;
  *size = 0;
  for (const BagRun& run : batch.runs) {
    const size_t dim = batch.dims[run.table];
    runs.push_back({run, *size, dim, dim});
    *size += run.num_bags * dim;
  }
  return runs;
}

BagJoin JoinOf(const BagSplit& split, const Batch& batch, const float* weights, bool mean,
               size_t num_values, size_t* size) {
  return {split.sources().data(),
          split.splits().data(),
          num_values,
          weights,
          mean ? batch.offsets.data() : nullptr,
          PooledRuns(batch, size)};
}

Status Split(const Batch& batch, AskBy ask_by, size_t rank, BagSplit* split) {
  const BagOwners owners{kWorkers, rank, nullptr, OwnerRule::kHash, false};
  return split->Build(ExecContext::Serial(), batch.view(), owners, ask_by, batch.costs());
}

TEST(BagSplit, PoolsWhatOneTableWould) {
  for (const AskBy ask_by : {AskBy::kBags, AskBy::kKeys, AskBy::kLess}) {
    for (const bool mean : {false, true}) {
      const Batch batch(50);
      BagSplit split;
      ASSERT_TRUE(Split(batch, ask_by, 1, &split).ok());
      const std::vector<float> values = Replies(split, batch, ask_by == AskBy::kKeys);
      size_t size;
      const BagJoin join = JoinOf(split, batch, nullptr, mean, values.size(), &size);
      std::vector<float> pooled(size, -1.0f);
      JoinBags(ExecContext::Serial(), join, values.data(), pooled.data());
      for (const PooledRun& run : join.runs) {
        for (size_t i = 0; i < run.bags.num_bags; ++i) {
          const size_t bag = run.bags.first_bag + i;
          const int64_t begin = batch.offsets[bag], end = batch.offsets[bag + 1];
          for (size_t j = 0; j < run.dim; ++j) {
            float sum = 0.0f;
            for (int64_t at = begin; at < end; ++at) {
              sum += WeightOf(run.bags.table, batch.keys[static_cast<size_t>(at)], j);
            }
            if (mean && begin < end) sum /= static_cast<float>(end - begin);
            EXPECT_FLOAT_EQ(sum, pooled[run.begin + i * run.stride + j]) << bag << " " << j;
          }
        }
      }
    }
  }
}

TEST(BagSplit, AsksInTheWayThatSendsLess) {
  const auto bytes = [](const BagSplit& split, size_t rank, const Batch& batch) {
    int64_t sum = 0;
    for (size_t worker = 0; worker < kWorkers; ++worker) {
      if (worker == rank) continue;
      sum += split.keys_to()[worker] * 8 + split.bags_to()[worker] * 4 +
             2 * 4 * split.values_from()[worker];
    }
    EXPECT_EQ(2u, batch.dims.size());
    return sum;
  };
  for (const auto& [range, longest] : std::vector<std::pair<int64_t, size_t>>{
           {5, 6}, {30, 6}, {200, 6}, {100000, 3}, {100000, 40}}) {
    Batch batch(range, longest);
    for (const size_t table : {0, 1}) {
      // With a single table, the total is the table's bytes.
      Batch one = batch;
      for (BagRun& run : one.runs) run.table = table;
      BagSplit less, by_bags, by_keys;
      ASSERT_TRUE(Split(one, AskBy::kLess, 2, &less).ok());
      ASSERT_TRUE(Split(one, AskBy::kBags, 2, &by_bags).ok());
      ASSERT_TRUE(Split(one, AskBy::kKeys, 2, &by_keys).ok());
      EXPECT_EQ(std::min(bytes(by_bags, 2, one), bytes(by_keys, 2, one)), bytes(less, 2, one));
    }
  }
}

// Join is linear, so <gradient, Join(values)> = <Gradient(gradient), values>. The same is true of
// weights.
TEST(BagSplit, GradientsAreTheAdjoints) {
  for (const bool mean : {false, true}) {
    const Batch batch(50);
    BagSplit split;
    ASSERT_TRUE(Split(batch, AskBy::kKeys, 0, &split).ok());
    std::mt19937 random(3);
    const auto numbers = [&random](size_t count) {
      std::vector<float> some(count);
      for (float& number : some) number = static_cast<float>(random() % 100) / 50.0f - 1.0f;
      return some;
    };
    const std::vector<float> weights = numbers(batch.keys.size());
    size_t num_values = 0;
    for (const int64_t count : split.values_from()) num_values += static_cast<size_t>(count);
    const std::vector<float> values = numbers(num_values);
    size_t size;
    const BagJoin join = JoinOf(split, batch, weights.data(), mean, num_values, &size);
    const std::vector<float> gradient = numbers(size);
    std::vector<float> pooled(size), of_values(num_values), of_weights(weights.size());
    JoinBags(ExecContext::Serial(), join, values.data(), pooled.data());
    GradientOfValues(ExecContext::Serial(), join, gradient.data(), of_values.data());
    GradientOfWeights(ExecContext::Serial(), join, gradient.data(), values.data(),
                      of_weights.data());
    const auto product = [](const std::vector<float>& a, const std::vector<float>& b) {
      double sum = 0;
      for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
      return sum;
    };
    const double expected = product(gradient, pooled);
    EXPECT_GT(std::abs(expected), 0.01);
    EXPECT_NEAR(expected, product(of_values, values), 1e-4);
    EXPECT_NEAR(expected, product(of_weights, weights), 1e-4);
  }
}

TEST(BagSplit, TellsWhereEachKeyInABagComesFrom) {
  Batch batch(50);
  batch.runs = {{0, 0, 120}};  // so the table's keys are the batch's keys
  batch.dims = {3};
  BagSplit split;
  ASSERT_TRUE(Split(batch, AskBy::kKeys, 1, &split).ok());
  EXPECT_EQ(std::vector<AskBy>{AskBy::kKeys}, split.asked_by());
  EXPECT_TRUE(split.positions().empty());
  ASSERT_TRUE(Split(batch, AskBy::kBags, 1, &split).ok());
  EXPECT_EQ(std::vector<AskBy>{AskBy::kBags}, split.asked_by());
  ASSERT_EQ(split.keys().size(), split.positions().size());
  std::vector<bool> seen(batch.keys.size());
  for (size_t i = 0; i < split.keys().size(); ++i) {
    const size_t position = static_cast<size_t>(split.positions()[i]);
    ASSERT_LT(position, batch.keys.size());
    EXPECT_EQ(batch.keys[position], split.keys()[i]);
    EXPECT_FALSE(seen[position]);
    seen[position] = true;
  }
}

TEST(BagSplit, RefusesAnOwnerThatIsNone) {
  const Batch batch(50);
  const std::vector<int32_t> chosen(batch.keys.size(), 3);
  const BagOwners owners{kWorkers, 0, chosen.data(), OwnerRule::kHash, false};
  BagSplit split;
  EXPECT_FALSE(
      split.Build(ExecContext::Serial(), batch.view(), owners, AskBy::kLess, batch.costs()).ok());
}

}  // namespace
}  // namespace tf_embed
