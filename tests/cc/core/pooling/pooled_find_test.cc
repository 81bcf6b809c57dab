// SPDX-License-Identifier: Apache-2.0
#include "cc/core/pooling/pooled_find.h"

#include <cmath>
#include <cstring>

#include "cc/core/rows/quantized_row.h"
#include "cc/core/table/shard_split.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/quantized_rows.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr int64_t kPadding = 3;

// The shards of a table, with some keys present.
class Shards {
 public:
  Shards(const StoreKind& kind, DataType type, size_t dim, size_t count,
         Allocator* allocator = HostAllocator()) {
    for (size_t i = 0; i < count; ++i) {
      StoreOptions options;
      options.value_type = type;
      options.dim = dim;
      options.initializer = UniformInitializer();
      options.allocator = allocator;
      stores_.push_back(kind.create(options));
      pointers_.push_back(stores_.back().get());
    }
  }

  // Inserts rows of keys that differ from their initial rows.
  template <typename T>
  void Fill(const std::vector<int64_t>& keys, Random* random) {
    Assign(keys, RandomValues<T>(keys.size() * pointers_[0]->options().dim, random));
  }
  template <typename T>
  void Assign(const std::vector<int64_t>& keys, const std::vector<T>& rows) {
    ShardSplit split(HostAllocator());
    ASSERT_TRUE(split.Build(keys.data(), keys.size(), nullptr, stores_.size(), false).ok());
    for (size_t i = 0; i < stores_.size(); ++i) {
      ASSERT_TRUE(
          stores_[i]->InsertOrAssign(ExecContext::Serial(), split.shard(i), rows.data(), {}).ok());
    }
  }

  ShardedKeys Keys(const std::vector<int64_t>& keys, const int32_t* owners = nullptr) const {
    return {keys.data(), owners, false, pointers_.data(), pointers_.size()};
  }

  // The row of each key, by Find of the shards.
  template <typename T>
  std::vector<T> Rows(const std::vector<int64_t>& keys, const int32_t* owners,
                      const DefaultRows& defaults) const {
    std::vector<T> rows(keys.size() * pointers_[0]->options().dim);
    ShardSplit split(HostAllocator());
    EXPECT_TRUE(split.Build(keys.data(), keys.size(), owners, stores_.size(), false).ok());
    for (size_t i = 0; i < stores_.size(); ++i) {
      EXPECT_TRUE(
          stores_[i]
              ->Find(ExecContext::Serial(), split.shard(i), defaults, rows.data(), nullptr, {})
              .ok());
    }
    return rows;
  }

 private:
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<const Store*> pointers_;
};

// The formula of bags.h, row by row.
template <typename T, typename Compute = typename Number<T>::Compute>
std::vector<Compute> Oracle(const std::vector<T>& rows, const std::vector<int64_t>& keys,
                            const Bags& bags, const Pooling& pooling, size_t dim) {
  const Compute* const weights = static_cast<const Compute*>(pooling.weights);
  std::vector<Compute> pooled(bags.size() * dim);
  for (size_t bag = 0; bag < bags.size(); ++bag) {
    Compute sum_of_weights = 0, sum_of_squares = 0;
    std::vector<Compute> sum(dim);
    for (size_t place = bags.begin(bag); place < bags.begin(bag + 1); ++place) {
      const size_t position = bags.Position(place);
      if (pooling.padding != nullptr && keys[position] == *pooling.padding) continue;
      const Compute weight = weights == nullptr ? 1 : weights[position];
      for (size_t j = 0; j < dim; ++j) sum[j] += weight * Number<T>::Load(rows[position * dim + j]);
      sum_of_weights += weight;
      sum_of_squares += weight * weight;
    }
    const Compute divisor = pooling.combiner == Combiner::kSum    ? 1
                            : pooling.combiner == Combiner::kMean ? sum_of_weights
                                                                  : std::sqrt(sum_of_squares);
    for (size_t j = 0; j < dim; ++j) pooled[bag * dim + j] = divisor == 0 ? 0 : sum[j] / divisor;
  }
  return pooled;
}

// `PooledFind::found`, by the rows of the keys.
template <typename T, typename Compute = typename Number<T>::Compute>
std::vector<Compute> FoundOracle(const std::vector<T>& rows, const std::vector<int64_t>& keys,
                                 const int64_t* padding, size_t dim) {
  std::vector<Compute> found(rows.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (padding == nullptr || keys[i / dim] != *padding) found[i] = Number<T>::Load(rows[i]);
  }
  return found;
}

// Calls `check` with bags of every form over `num_keys` keys, some empty and some longer than a
// block.
void EachForm(size_t num_keys, Random* random, const std::function<void(const Bags&)>& check) {
  for (size_t length : {size_t{1}, size_t{20}, std::max<size_t>(num_keys, 1)}) {
    if (num_keys % length != 0) continue;
    Bags lines(HostAllocator());
    lines.OfLines(num_keys / length, length);
    check(lines);
  }
  std::vector<int64_t> splits = RandomKeys(37, 0, static_cast<int64_t>(num_keys), random);
  splits.insert(splits.end(), {0, 0, 0, static_cast<int64_t>(num_keys)});
  splits.insert(splits.end(), 2, static_cast<int64_t>(num_keys));
  std::sort(splits.begin(), splits.end());
  Bags runs(HostAllocator());
  ASSERT_TRUE(runs.OfSplits(splits.data(), splits.size(), num_keys).ok());
  check(runs);
  const int64_t shape[] = {7, 5, 10};
  std::vector<int64_t> indices;
  std::vector<int64_t> lines = RandomKeys(num_keys, 0, 34, random);
  for (int64_t line : lines) indices.insert(indices.end(), {line / 5, line % 5, line % 10});
  Bags scattered(HostAllocator());
  ASSERT_TRUE(scattered.OfIndices(indices.data(), num_keys, shape, 3).ok());
  check(scattered);
}

PooledFind FindOf(const ShardedKeys& keys, const Bags& bags, const Pooling& pooling,
                  const DefaultRows& defaults, void* pooled) {
  return {keys, &bags, pooling, defaults, pooled, keys.shards[0]->options().dim};
}

// FindPooled of a single batch.
Status Pool(const ExecContext& context, const ShardedKeys& keys, const Bags& bags,
            const Pooling& pooling, const DefaultRows& defaults, void* pooled) {
  const PooledFind find = FindOf(keys, bags, pooling, defaults, pooled);
  return FindPooled(context, &find, 1);
}

class FindPooledOf : public testing::TestWithParam<StoreKind> {
 protected:
  template <typename T>
  void CheckAll(size_t dim, size_t num_shards, size_t num_keys) {
    using Compute = typename Number<T>::Compute;
    Random random(dim + num_keys);
    Shards shards(GetParam(), TypeOf<T>(), dim, num_shards);
    shards.Fill<T>(KeysFrom(-20, 30), &random);
    const std::vector<int64_t> keys = RandomKeys(num_keys, -30, 30, &random);
    const std::vector<Compute> weights = RandomValues<Compute>(num_keys, &random);
    const std::vector<T> default_rows = RandomValues<T>(num_keys * dim, &random);
    const std::vector<DefaultRows> defaults = {{},
                                               {DefaultRows::Kind::kOneForAll, default_rows.data()},
                                               {DefaultRows::Kind::kOneEach, default_rows.data()}};
    size_t turn = 0;
    EachForm(num_keys, &random, [&](const Bags& bags) {
      for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
        for (bool weighted : {false, true}) {
          for (bool padded : {false, true}) {
            const Pooling pooling{combiner, weighted ? weights.data() : nullptr,
                                  padded ? &kPadding : nullptr};
            const DefaultRows& absent = defaults[turn++ % defaults.size()];
            const std::vector<T> rows = shards.Rows<T>(keys, nullptr, absent);
            const std::vector<Compute> wanted = Oracle(rows, keys, bags, pooling, dim);
            const std::vector<Compute> wanted_rows = FoundOracle(rows, keys, pooling.padding, dim);
            bool gives_rows = turn % 2 == 0;
            for (const ExecContext& context : {ExecContext::Serial(), Threads(3)}) {
              std::vector<Compute> pooled(bags.size() * dim, Compute{-7});
              std::vector<Compute> found(keys.size() * dim, Compute{-7});
              PooledFind find = FindOf(shards.Keys(keys), bags, pooling, absent, pooled.data());
              if (gives_rows) find.found = found.data();
              ASSERT_TRUE(FindPooled(context, &find, 1).ok());
              ExpectSameBits(wanted, pooled, "pooled");
              if (gives_rows) ExpectSameBits(wanted_rows, found, "found");
              gives_rows = !gives_rows;
            }
          }
        }
      }
    });
  }
};

TEST_P(FindPooledOf, IsTheFormulaForEveryTypeAndDim) {
  for (size_t dim : {1, 3, 16, 64, 65}) {
    SCOPED_TRACE("dim " + std::to_string(dim));
    CheckAll<float>(dim, 1, 400);
    CheckAll<Half>(dim, 1, 400);
    CheckAll<BFloat16>(dim, 2, 400);
    CheckAll<double>(dim, 3, 400);
  }
}

TEST_P(FindPooledOf, IsTheFormulaForBatchesOfEverySize) {
  for (size_t num_keys : {0, 1, 2, 20, 1020, 5000}) {
    SCOPED_TRACE(std::to_string(num_keys) + " keys");
    CheckAll<float>(1, 1, num_keys);
    CheckAll<float>(16, 2, num_keys);
  }
}

TEST_P(FindPooledOf, FollowsOwners) {
  Random random(1);
  Shards shards(GetParam(), DataType::kFloat, 2, 3);
  const std::vector<int64_t> keys = RandomKeys(60, -9, 9, &random);
  std::vector<int32_t> owners;
  for (int64_t key : keys) owners.push_back(static_cast<int32_t>(std::abs(key) % 2 + 1));
  shards.Fill<float>(KeysFrom(-9, 19), &random);
  Bags bags(HostAllocator());
  bags.OfLines(12, 5);
  for (bool padded : {false, true}) {
    const Pooling pooling{Combiner::kMean, nullptr, padded ? &kPadding : nullptr};
    std::vector<float> pooled(12 * 2);
    ASSERT_TRUE(Pool(ExecContext::Serial(), shards.Keys(keys, owners.data()), bags, pooling, {},
                     pooled.data())
                    .ok());
    const std::vector<float> rows = shards.Rows<float>(keys, owners.data(), {});
    ExpectSameBits(Oracle(rows, keys, bags, pooling, 2), pooled, "pooled");
  }
  owners[59] = 3;
  std::vector<float> pooled(12 * 2);
  const Status status =
      Pool(Threads(2), shards.Keys(keys, owners.data()), bags, {}, {}, pooled.data());
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("[0, 3). Received: 3"));
}

// Like the features of a table-batched lookup: several tables, side by side in one output.
TEST_P(FindPooledOf, ManyBatchesAtOnce) {
  Random random(5);
  constexpr size_t kNumBags = 30;
  const size_t dims[] = {3, 16, 1, 64};
  const size_t stride = 3 + 16 + 1 + 64 + 2;
  std::vector<Shards> tables;
  tables.reserve(4);
  for (size_t i = 0; i < 4; ++i) {
    tables.emplace_back(GetParam(), i == 2 ? DataType::kHalf : DataType::kFloat, dims[i],
                        i % 2 + 1);
    if (i == 2) {
      tables[i].Fill<Half>(KeysFrom(-20, 30), &random);
    } else {
      tables[i].Fill<float>(KeysFrom(-20, 30), &random);
    }
  }
  std::vector<std::vector<int64_t>> keys;
  std::vector<std::unique_ptr<Bags>> bags;
  for (size_t i = 0; i < 4; ++i) {
    const size_t length = i == 3 ? 0 : 1 + 40 * i;  // the last batch has only empty bags
    keys.push_back(RandomKeys(kNumBags * length, -30, 30, &random));
    bags.push_back(std::make_unique<Bags>(HostAllocator()));
    bags[i]->OfLines(kNumBags, length);
  }
  const Pooling mean{Combiner::kMean, nullptr, nullptr};
  for (size_t threads : {1, 2, 7}) {
    std::vector<float> pooled(kNumBags * stride, -7.0f);
    std::vector<PooledFind> finds;
    size_t column = 0;
    for (size_t i = 0; i < 4; ++i) {
      finds.push_back(FindOf(tables[i].Keys(keys[i]), *bags[i], mean, {}, pooled.data() + column));
      finds[i].stride = stride;
      column += dims[i];
    }
    ASSERT_TRUE(FindPooled(Threads(threads), finds.data(), finds.size()).ok());
    column = 0;
    for (size_t i = 0; i < 4; ++i) {
      std::vector<float> wanted;
      if (i == 2) {
        wanted = Oracle(tables[i].Rows<Half>(keys[i], nullptr, {}), keys[i], *bags[i], mean, 1);
      } else {
        wanted =
            Oracle(tables[i].Rows<float>(keys[i], nullptr, {}), keys[i], *bags[i], mean, dims[i]);
      }
      std::vector<float> found;
      for (size_t bag = 0; bag < kNumBags; ++bag) {
        const float* const row = pooled.data() + bag * stride + column;
        found.insert(found.end(), row, row + dims[i]);
      }
      SCOPED_TRACE("batch " + std::to_string(i));
      ExpectSameBits(wanted, found, "pooled");
      column += dims[i];
    }
    for (size_t bag = 0; bag < kNumBags; ++bag) {
      EXPECT_EQ(-7.0f, pooled[bag * stride + column]) << "what lies beside stays";
    }
  }
  EXPECT_TRUE(FindPooled(Threads(2), nullptr, 0).ok());
}

TEST_P(FindPooledOf, BagsOfOneKeyAreTheirRows) {
  constexpr size_t kDim = 4, kNumBags = 3000;
  Random random(9);
  Shards shards(GetParam(), DataType::kFloat, kDim, 1);
  shards.Fill<float>(KeysFrom(0, 500), &random);
  const std::vector<int64_t> keys = RandomKeys(kNumBags, -100, 600, &random);
  const std::vector<float> rows = shards.Rows<float>(keys, nullptr, {});
  Bags bags(HostAllocator());
  bags.OfLines(kNumBags, 1);
  for (size_t stride : {kDim, 3 * kDim, 3 * kDim + 1}) {
    std::vector<float> pooled(kNumBags * stride, -7.0f);
    PooledFind find = FindOf(shards.Keys(keys), bags, {}, {}, pooled.data());
    find.stride = stride;
    ASSERT_TRUE(FindPooled(Threads(3), &find, 1).ok());
    for (size_t bag = 0; bag < kNumBags; ++bag) {
      const float* const row = pooled.data() + bag * stride;
      ASSERT_EQ(std::vector<float>(row, row + kDim),
                std::vector<float>(rows.data() + bag * kDim, rows.data() + (bag + 1) * kDim));
      for (size_t j = kDim; j < stride; ++j) ASSERT_EQ(-7.0f, row[j]);
    }
  }
}

TEST_P(FindPooledOf, ASumIsNeverNegativeZero) {
  constexpr size_t kDim = 5, kNumBags = 3000;
  Shards shards(GetParam(), DataType::kFloat, kDim, 1);
  shards.Assign<float>({1}, std::vector<float>(kDim, -0.0f));
  const std::vector<int64_t> keys(kNumBags + 1, 1);
  Bags alike(HostAllocator()), mixed(HostAllocator());
  alike.OfLines(kNumBags, 1);
  std::vector<int64_t> splits(kNumBags + 1);  // the last bag has two keys
  for (size_t bag = 0; bag <= kNumBags; ++bag) splits[bag] = static_cast<int64_t>(bag);
  ++splits.back();
  ASSERT_TRUE(mixed.OfSplits(splits.data(), splits.size(), keys.size()).ok());
  for (const Bags* bags : {&alike, &mixed}) {
    std::vector<float> pooled(kNumBags * kDim, -7.0f);
    PooledFind find = FindOf(shards.Keys(keys), *bags, {}, {}, pooled.data());
    ASSERT_TRUE(FindPooled(Threads(3), &find, 1).ok());
    for (const float number : pooled) {
      ASSERT_EQ(0.0f, number);
      ASSERT_FALSE(std::signbit(number));
    }
  }
}

// The weights of quantized rows, by the definition.
std::vector<float> Dequantized(const std::vector<int8_t>& rows, size_t dim) {
  std::vector<float> weights;
  for (size_t begin = 0; begin < rows.size(); begin += dim + kQuantizedTail) {
    float scale, bias;
    std::memcpy(&scale, &rows[begin + dim], sizeof(scale));
    std::memcpy(&bias, &rows[begin + dim + sizeof(scale)], sizeof(bias));
    for (size_t j = 0; j < dim; ++j) {
      weights.push_back(static_cast<float>(static_cast<uint8_t>(rows[begin + j])) * scale + bias);
    }
  }
  return weights;
}

TEST_P(FindPooledOf, PoolsQuantizedRows) {
  Random random(9);
  for (const size_t dim : {1, 5, 64}) {
    const size_t width = dim + kQuantizedTail;
    Shards shards(GetParam(), DataType::kInt8, width, 2);
    const std::vector<int64_t> present = KeysFrom(-20, 40);
    shards.Assign(present, RandomQuantizedRows(present.size(), dim, &random));
    const std::vector<int64_t> keys = RandomKeys(3000, -30, 30, &random);
    const std::vector<float> weights = RandomValues<float>(keys.size(), &random);
    const std::vector<int8_t> zeros(width);
    const std::vector<int8_t> each = RandomQuantizedRows(keys.size(), dim, &random);
    const DefaultRows absent[] = {{DefaultRows::Kind::kOneForAll, zeros.data()},
                                  {DefaultRows::Kind::kOneEach, each.data()}};
    Bags bags(HostAllocator());
    std::vector<int64_t> splits = RandomKeys(300, 0, 3000, &random);
    splits.insert(splits.end(), {0, 0, 3000, 3000});
    std::sort(splits.begin(), splits.end());
    ASSERT_TRUE(bags.OfSplits(splits.data(), splits.size(), keys.size()).ok());
    for (const DefaultRows& defaults : absent) {
      const std::vector<float> rows =
          Dequantized(shards.Rows<int8_t>(keys, nullptr, defaults), dim);
      for (const float* factors : {weights.data(), static_cast<const float*>(nullptr)}) {
        for (const int64_t* padding : {&kPadding, static_cast<const int64_t*>(nullptr)}) {
          const Pooling pooling{Combiner::kMean, factors, padding};
          std::vector<float> pooled(bags.size() * dim, -7.0f);
          std::vector<float> found(keys.size() * dim, -7.0f);
          PooledFind find = FindOf(shards.Keys(keys), bags, pooling, defaults, pooled.data());
          find.stride = dim;
          find.found = found.data();
          find.quantized = true;
          ASSERT_TRUE(FindPooled(Threads(3), &find, 1).ok());
          ExpectSameBits(Oracle(rows, keys, bags, pooling, dim), pooled, "pooled");
          ExpectSameBits(FoundOracle(rows, keys, padding, dim), found, "found");
        }
      }
    }
  }
}

TEST_P(FindPooledOf, RefusesOtherRowsAsQuantized) {
  Bags bags(HostAllocator());
  bags.OfLines(0, 1);
  const auto pooled = [&](DataType type, size_t width, bool quantized) {
    Shards shards(GetParam(), type, width, 1);
    PooledFind find = FindOf(shards.Keys({}), bags, {}, {}, nullptr);
    find.quantized = quantized;
    return FindPooled(ExecContext::Serial(), &find, 1);
  };
  const auto expect_refused = [](const Status& status, const std::string& words) {
    EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
    EXPECT_NE(std::string::npos, status.message().find(words)) << status.message();
  };
  const char kNotQuantized[] = "with a scale and a bias behind at least one weight, to be pooled";
  expect_refused(pooled(DataType::kInt8, kQuantizedTail, true), kNotQuantized);
  EXPECT_TRUE(pooled(DataType::kInt8, kQuantizedTail + 1, true).ok());
  expect_refused(pooled(DataType::kFloat, 16, true), kNotQuantized);
  expect_refused(pooled(DataType::kInt8, 16, false), "has integer weights, which are not pooled");
}

TEST_P(FindPooledOf, InsertsNothing) {
  StoreOptions options;
  const std::unique_ptr<Store> store = GetParam().create(options);
  const Store* const pointer = store.get();
  const std::vector<int64_t> keys = {1, 2, 3, 4};
  Bags bags(HostAllocator());
  bags.OfLines(2, 2);
  float pooled[2];
  ASSERT_TRUE(
      Pool(ExecContext::Serial(), {keys.data(), nullptr, false, &pointer, 1}, bags, {}, {}, pooled)
          .ok());
  EXPECT_EQ(0u, store->size());
}

TEST_P(FindPooledOf, RefusesStoresOfIntegers) {
  Shards shards(GetParam(), DataType::kInt32, 1, 1);
  Bags bags(HostAllocator());
  EXPECT_EQ(StatusCode::kInvalidArgument,
            Pool(ExecContext::Serial(), shards.Keys({}), bags, {}, {}, nullptr).code());
}

TEST_P(FindPooledOf, EachAllocationMayFail) {
  Random random(4);
  FailingAllocator allocator;
  Shards shards(GetParam(), DataType::kHalf, 3, 2, &allocator);
  shards.Fill<Half>(KeysFrom(0, 20), &random);
  const std::vector<int64_t> keys = RandomKeys(3000, -5, 25, &random);
  const std::vector<float> weights = RandomValues<float>(3000, &random);
  const std::vector<Half> default_rows = RandomValues<Half>(3000 * 3, &random);
  const DefaultRows defaults{DefaultRows::Kind::kOneEach, default_rows.data()};
  const std::vector<int32_t> owners(3000, 1);
  const Pooling pooling{Combiner::kMean, weights.data(), &kPadding};
  Bags bags(HostAllocator());
  bags.OfLines(150, 20);
  int64_t failures = 0;
  for (bool done = false; !done; failures += done ? 0 : 1) {
    std::vector<float> pooled(150 * 3);
    allocator.FailAfter(failures, true);
    const Status status =
        Pool(Threads(2), shards.Keys(keys, owners.data()), bags, pooling, defaults, pooled.data());
    allocator.NeverFail();
    done = status.ok();
    EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
    ASSERT_LT(failures, 1000);
  }
  EXPECT_GT(failures, 5);
}

TEST_P(FindPooledOf, SeesWholeRowsBesideWriters) {
  constexpr size_t kDim = 9;
  Shards shards(GetParam(), DataType::kFloat, kDim, 1);
  const std::vector<int64_t> keys = KeysFrom(0, 64);
  const ShardedKeys sharded = shards.Keys(keys);
  Store* const store = const_cast<Store*>(sharded.shards[0]);
  std::vector<float> rows(keys.size() * kDim, 0.0f);
  const KeyBatch batch{keys.data(), keys.size(), nullptr};
  ASSERT_TRUE(store->InsertOrAssign(ExecContext::Serial(), batch, rows.data(), {}).ok());
  Bags bags(HostAllocator());
  bags.OfLines(keys.size(), 1);
  std::atomic<bool> stop{false};
  InThreads(3, [&](size_t thread) {
    if (thread == 0) {
      for (int value = 1; value <= 300; ++value) {
        std::fill(rows.begin(), rows.end(), static_cast<float>(value));
        EXPECT_TRUE(store->InsertOrAssign(ExecContext::Serial(), batch, rows.data(), {}).ok());
      }
      stop = true;
      return;
    }
    std::vector<float> pooled(keys.size() * kDim);
    while (!stop) {
      EXPECT_TRUE(Pool(ExecContext::Serial(), sharded, bags, {}, {}, pooled.data()).ok());
      for (size_t i = 0; i < pooled.size(); ++i) {
        ASSERT_EQ(pooled[i / kDim * kDim], pooled[i]) << "a torn row";
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stores, FindPooledOf, testing::ValuesIn(AllStores()), NameOfStore);

}  // namespace
}  // namespace tf_embed
