// SPDX-License-Identifier: Apache-2.0
// Pooled finds and steps by bags on a device, compared with the same stores on the host.
#include <limits>
#include <set>

#include "cc/core/rows/quantized_row.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/on_device.h"
#include "tests/cc/support/quantized_rows.h"

namespace tf_embed {
namespace {

constexpr int64_t kPadding = 3;

StoreOptions OptionsFor(DataType type, size_t dim, uint64_t table_id = 11) {
  StoreOptions options;
  options.value_type = type;
  options.dim = dim;
  options.initializer = UniformInitializer(7, table_id);
  return options;
}

// A DeviceStore.
std::unique_ptr<Store> NewStore(const DeviceKind& kind, const StoreOptions& options) {
  std::unique_ptr<Store> store;
  EXPECT_TRUE(kind.new_store(options, DeviceOptions(), &store).ok());
  return store;
}

// A store on the device and a store on the host, with the same rows.
class Pair {
 public:
  Pair(const DeviceKind& kind, const StoreOptions& options)
      : memory_(kind.memory),
        on_device_(NewStore(kind, options)),
        on_host_(HostStore::Create(options)) {}

  template <typename T>
  void Assign(const std::vector<int64_t>& keys, const std::vector<T>& rows) {
    const KeyBatch batch{keys.data(), keys.size(), nullptr};
    EXPECT_TRUE(on_host_->InsertOrAssign(ExecContext::Serial(), batch, rows.data(), {}).ok());
    const OnDevice<int64_t> device_keys(memory_, keys);
    const OnDevice<T> device_rows(memory_, rows);
    const KeyBatch device_batch{device_keys.data(), keys.size(), nullptr};
    EXPECT_TRUE(
        on_device_->InsertOrAssign(ExecContext::Serial(), device_batch, device_rows.data(), {})
            .ok());
  }
  template <typename T>
  void Fill(const std::vector<int64_t>& keys, Random* random) {
    Assign(keys, RandomValues<T>(keys.size() * on_host_->options().dim, random));
  }

  DeviceStore* on_device() const { return static_cast<DeviceStore*>(on_device_.get()); }
  Store* on_host() const { return on_host_.get(); }

 private:
  DeviceMemory* memory_;
  std::unique_ptr<Store> on_device_;
  std::unique_ptr<Store> on_host_;
};

// A batch of a pooled find, with its result on the host and on the device.
template <typename T, typename Compute = typename WideRow<T>::Compute>
class BothFinds {
 public:
  BothFinds(const DeviceKind& kind, const Pair& pair, const std::vector<int64_t>& keys,
            const Bags& bags, const Pooling& pooling, size_t stride,
            const std::vector<T>* defaults = nullptr, bool gives_rows = false)
      : store_{pair.on_host(), pair.on_device()},
        wanted_((bags.size() + 1) * stride, Compute{-7}),
        wanted_rows_(keys.size() * (pair.on_host()->options().dim - WideRow<T>::kTail),
                     Compute{-7}),
        keys_(kind.memory, keys),
        weights_(kind.memory, WeightsOf(pooling, keys.size())),
        defaults_(kind.memory, defaults == nullptr ? std::vector<T>() : *defaults),
        pooled_(kind.memory, wanted_),
        rows_(kind.memory, wanted_rows_) {
    host.keys = {keys.data(), nullptr, false, &store_[0], 1};
    host.bags = &bags;
    host.pooling = pooling;
    host.stride = stride;
    host.quantized = std::is_same_v<T, int8_t>;
    if (defaults != nullptr) {
      const bool one = defaults->size() == pair.on_host()->options().dim;
      host.defaults.kind = one ? DefaultRows::Kind::kOneForAll : DefaultRows::Kind::kOneEach;
      host.defaults.rows = defaults->data();
    }
    device = host;
    device.keys.keys = keys_.data();
    device.keys.shards = &store_[1];
    if (pooling.weights != nullptr) device.pooling.weights = weights_.data();
    device.defaults.rows = defaults_.data();
    host.pooled = wanted_.data();
    device.pooled = pooled_.data();
    if (!gives_rows) return;
    host.found = wanted_rows_.data();
    device.found = rows_.data();
  }

  void ExpectSame() const {
    ExpectSameBits(wanted_, pooled_.Values(), "pooled");
    ExpectSameBits(wanted_rows_, rows_.Values(), "found");
  }

  PooledFind host;
  PooledFind device;

 private:
  static std::vector<Compute> WeightsOf(const Pooling& pooling, size_t size) {
    const auto* const weights = static_cast<const Compute*>(pooling.weights);
    return weights == nullptr ? std::vector<Compute>()
                              : std::vector<Compute>(weights, weights + size);
  }

  const Store* store_[2];
  std::vector<Compute> wanted_;
  std::vector<Compute> wanted_rows_;
  OnDevice<int64_t> keys_;
  OnDevice<Compute> weights_;
  OnDevice<T> defaults_;
  OnDevice<Compute> pooled_;
  OnDevice<Compute> rows_;
};

// Calls its function with bags of every form over the keys, some empty and some with all keys.
void EachForm(size_t num_keys, Allocator* allocator, Random* random,
              const std::function<void(const Bags&)>& check) {
  for (size_t length : {size_t{1}, size_t{4}, num_keys}) {
    Bags lines(allocator);
    lines.OfLines(num_keys / length, length);
    check(lines);
  }
  const int64_t last = static_cast<int64_t>(num_keys);
  std::vector<int64_t> splits = RandomKeys(20, 0, last, random);
  splits.insert(splits.end(), {0, 0, 0, last, last});
  std::sort(splits.begin(), splits.end());
  Bags runs(allocator);
  ASSERT_TRUE(runs.OfSplits(splits.data(), splits.size(), num_keys).ok());
  check(runs);
  const int64_t shape[] = {15, 10};
  std::vector<int64_t> indices;
  for (int64_t line : RandomKeys(num_keys, 0, 14, random)) {
    indices.insert(indices.end(), {line, line % 10});
  }
  Bags scattered(allocator);
  ASSERT_TRUE(scattered.OfIndices(indices.data(), num_keys, shape, 2).ok());
  check(scattered);
}

class PooledOnDevice : public testing::TestWithParam<DeviceKind> {
 protected:
  template <typename T>
  void CheckAll(size_t dim) {
    SCOPED_TRACE("dim " + std::to_string(dim));
    using Compute = typename Number<T>::Compute;
    constexpr size_t kNumKeys = 60;
    Random random(dim);
    Pair pair(GetParam(), OptionsFor(TypeOf<T>(), dim));
    pair.Fill<T>(KeysFrom(-20, 30), &random);
    const std::vector<int64_t> keys = RandomKeys(kNumKeys, -30, 30, &random);
    const std::vector<Compute> weights = RandomValues<Compute>(kNumKeys, &random);
    const std::vector<T> one = RandomValues<T>(dim, &random);
    const std::vector<T> each = RandomValues<T>(kNumKeys * dim, &random);
    const std::vector<T>* const defaults[] = {nullptr, &one, &each};
    size_t turn = 0;
    EachForm(kNumKeys, HostAllocator(), &random, [&](const Bags& bags) {
      for (Combiner combiner :
           {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn, Combiner::kMeanOfCount}) {
        for (bool weighted : {false, true}) {
          for (bool padded : {false, true}) {
            const Pooling pooling{combiner, weighted ? weights.data() : nullptr,
                                  padded ? &kPadding : nullptr};
            const BothFinds<T> finds(GetParam(), pair, keys, bags, pooling, dim + turn % 2,
                                     defaults[turn % 3], weighted);
            ++turn;
            ASSERT_TRUE(FindPooled(ExecContext::Serial(), &finds.host, 1).ok());
            ASSERT_TRUE(pair.on_device()->FindPooled(ExecContext::Serial(), &finds.device, 1).ok());
            finds.ExpectSame();
          }
        }
      }
    });
  }

  // Compares two steps by the gradients of bags on the device with steps by the gradients of keys
  // on the host.
  void CheckSteps(Combiner combiner, bool weighted, size_t num_batches, DataType type,
                  const Rule& rule) {
    constexpr size_t kDim = 5, kNumBags = 12, kStride = kDim + 1;
    Random random(num_batches);
    Pair pair(GetParam(), OptionsFor(type, kDim));
    for (int step = 0; step < 2; ++step) {
      const std::vector<float> values =
          RandomValues<float>(num_batches * kNumBags * kStride, &random);
      const OnDevice<float> device_values(GetParam().memory, values);
      std::vector<int64_t> keys;
      std::vector<size_t> begins;
      std::vector<float> factors;
      std::vector<std::unique_ptr<OnDevice<int64_t>>> arrays;
      std::vector<std::unique_ptr<OnDevice<float>>> weights;
      std::vector<BagGradients> batches(num_batches);
      for (size_t i = 0; i < num_batches; ++i) {
        const size_t first = keys.size();
        std::vector<int64_t> splits = {static_cast<int64_t>(7 * i)};
        for (size_t bag = 0; bag < kNumBags; ++bag) {
          const size_t length = random() % 6;
          splits.push_back(splits.back() + static_cast<int64_t>(length));
          for (size_t k = 0; k < length; ++k) {
            keys.push_back(RandomKeys(1, -9, 9, &random)[0]);
            begins.push_back((i * kNumBags + bag) * kStride);
            const float scale =
                combiner == Combiner::kSum ? 1.0f : 1.0f / static_cast<float>(length);
            factors.push_back(scale * (weighted ? RandomValues<float>(1, &random)[0] : 1.0f));
          }
        }
        const size_t size = keys.size() - first;
        arrays.push_back(std::make_unique<OnDevice<int64_t>>(
            GetParam().memory, std::vector<int64_t>(keys.begin() + first, keys.end())));
        arrays.push_back(std::make_unique<OnDevice<int64_t>>(GetParam().memory, splits));
        batches[i] = {arrays[2 * i]->data(),  size,   arrays[2 * i + 1]->data(), kNumBags, nullptr,
                      i * kNumBags * kStride, kStride};
        if (!weighted) continue;
        // Sums need no division, so the weights are the factors.
        weights.push_back(std::make_unique<OnDevice<float>>(
            GetParam().memory, std::vector<float>(factors.begin() + first, factors.end())));
        batches[i].weights = weights[i]->data();
      }
      const bool has_factors = weighted || combiner != Combiner::kSum;
      const Gradients gradients{values.data(), DataType::kFloat, begins.data(),
                                has_factors ? factors.data() : nullptr};
      const KeyBatch batch{keys.data(), keys.size(), nullptr};
      ASSERT_TRUE(pair.on_host()->Apply(serial, batch, gradients, rule).ok());
      ASSERT_TRUE(
          pair.on_device()
              ->ApplyBags(serial, device_values.data(), batches.data(), num_batches, combiner, rule)
              .ok());
    }
    const std::vector<int64_t> all = KeysFrom(-10, 21);
    const OnDevice<int64_t> device_all(GetParam().memory, all);
    std::vector<char> wanted(all.size() * kDim * SizeOf(type));
    const OnDevice<char> found(GetParam().memory, wanted);
    const KeyBatch here{all.data(), all.size(), nullptr};
    const KeyBatch there{device_all.data(), all.size(), nullptr};
    ASSERT_TRUE(pair.on_host()->Find(serial, here, {}, wanted.data(), nullptr, {}).ok());
    ASSERT_TRUE(pair.on_device()->Find(serial, there, {}, found.data(), nullptr, {}).ok());
    ExpectSameBits(wanted, found.Values(), "rows");
    EXPECT_EQ(pair.on_host()->size(), pair.on_device()->size());
  }

  const ExecContext serial = ExecContext::Serial();
};

TEST_P(PooledOnDevice, FindsWhatTheHostFinds) {
  for (size_t dim : {1, 3, 16, 130}) {
    CheckAll<float>(dim);
    CheckAll<Half>(dim);
    CheckAll<BFloat16>(dim);
    CheckAll<double>(dim);
  }
}

TEST_P(PooledOnDevice, FindsInManyStoresAtOnce) {
  constexpr size_t kNumBags = 30;
  Random random(5);
  const size_t dims[] = {3, 16, 1, 64, 5};
  std::vector<std::unique_ptr<Pair>> pairs;
  for (size_t i = 0; i < 4; ++i) {
    const DataType type = i == 2 ? DataType::kHalf : DataType::kFloat;
    pairs.push_back(std::make_unique<Pair>(GetParam(), OptionsFor(type, dims[i], i)));
  }
  pairs[0]->Fill<float>(KeysFrom(-20, 30), &random);
  pairs[2]->Fill<Half>(KeysFrom(-20, 30), &random);
  pairs[3]->Fill<float>(KeysFrom(-20, 3000), &random);  // several slabs
  // The last store has quantized rows, and zeros as its default.
  const size_t width = dims[4] + kQuantizedTail;
  pairs.push_back(std::make_unique<Pair>(GetParam(), OptionsFor(DataType::kInt8, width, 4)));
  pairs[4]->Assign(KeysFrom(-20, 30), RandomQuantizedRows(30, dims[4], &random));
  const std::vector<int8_t> zeros(width);

  std::vector<std::vector<int64_t>> keys;
  std::vector<std::unique_ptr<Bags>> bags;
  for (size_t i = 0; i < 6; ++i) {
    const size_t length = i == 1 ? 0 : 1 + 3 * i;  // the second has only empty bags
    keys.push_back(RandomKeys(kNumBags * length, -30, 30, &random));
    bags.push_back(std::make_unique<Bags>(HostAllocator()));
    bags[i]->OfLines(i == 2 ? 0 : kNumBags, length);  // the third has no bags
    if (i == 2) keys[i].clear();
  }
  const Pooling mean{Combiner::kMeanOfCount, nullptr, nullptr};
  const auto find = [&](auto tag, size_t i, size_t store, const auto* defaults) {
    return BothFinds<typename decltype(tag)::Type>(GetParam(), *pairs[store], keys[i], *bags[i],
                                                   mean, dims[store] + i, defaults, i > 2);
  };
  const std::vector<float>* const none = nullptr;
  const auto a = find(TypeTag<float>(), 0, 0, none), b = find(TypeTag<float>(), 1, 1, none);
  const auto c = find(TypeTag<Half>(), 2, 2, static_cast<const std::vector<Half>*>(nullptr));
  const auto d = find(TypeTag<float>(), 3, 3, none);
  const auto e = find(TypeTag<int8_t>(), 4, 4, &zeros);
  const auto f = find(TypeTag<float>(), 5, 0, none);  // the first store again
  const PooledFind on_host[] = {a.host, b.host, c.host, d.host, e.host, f.host};
  const PooledFind on_device[] = {a.device, b.device, c.device, d.device, e.device, f.device};
  ASSERT_TRUE(FindPooled(serial, on_host, 6).ok());
  ASSERT_TRUE(pairs[0]->on_device()->FindPooled(serial, on_device, 6).ok());
  a.ExpectSame();
  b.ExpectSame();
  c.ExpectSame();
  d.ExpectSame();
  e.ExpectSame();
  f.ExpectSame();
  for (const auto& pair : pairs) EXPECT_EQ(pair->on_host()->size(), pair->on_device()->size());
  EXPECT_TRUE(pairs[0]->on_device()->FindPooled(serial, nullptr, 0).ok());
}

TEST_P(PooledOnDevice, IsAUseOfRowsInTrainingAndCountsHitsAndMisses) {
  StoreOptions options = OptionsFor(DataType::kFloat, 2);
  options.policy.statistics = StatisticSet().With(Statistic::kCount).With(Statistic::kLastStep);
  options.policy.ttl_milliseconds = 100;
  Pair pair(GetParam(), options);
  pair.Assign(std::vector<int64_t>{1, 2, 3}, std::vector<float>{1, 1, 2, 2, 3, 3});
  const std::vector<int64_t> keys = {1, 2, kPadding, 9, 2, 8};
  Bags bags(HostAllocator());
  bags.OfLines(2, 3);
  ExecContext context = ExecContext::Serial();
  context.now.step = 5;
  context.now.milliseconds = 50;
  const OnDevice<int64_t> row(GetParam().memory, {2});
  const auto uses = [&] {
    OnDevice<uint64_t> words(GetParam().memory, std::vector<uint64_t>(8));
    const size_t count = pair.on_device()->options().policy.statistics.IndexOf(Statistic::kCount);
    EXPECT_TRUE(pair.on_device()
                    ->eviction()
                    ->FindStatistics(serial, {row.data(), 1, nullptr}, words.data(), nullptr)
                    .ok());
    return words.Values()[count];
  };
  const Pooling padded{Combiner::kSum, nullptr, &kPadding};
  for (bool training : {false, true}) {
    context.training = training;
    const BothFinds<float> finds(GetParam(), pair, keys, bags, padded, 2);
    ASSERT_TRUE(FindPooled(context, &finds.host, 1).ok());
    ASSERT_TRUE(pair.on_device()->FindPooled(context, &finds.device, 1).ok());
    finds.ExpectSame();
    EXPECT_EQ(training ? 2u : 1u, uses()) << "once a step";
  }
  StoreStats stats = pair.on_device()->Stats();
  EXPECT_EQ(6u, stats.hits);
  EXPECT_EQ(4u, stats.misses);
  // Expired rows are absent in training.
  context.now.milliseconds = 1000;
  const BothFinds<float> finds(GetParam(), pair, keys, bags, padded, 2);
  ASSERT_TRUE(FindPooled(context, &finds.host, 1).ok());
  ASSERT_TRUE(pair.on_device()->FindPooled(context, &finds.device, 1).ok());
  finds.ExpectSame();
  EXPECT_EQ(2u, uses());
}

TEST_P(PooledOnDevice, FindsInSeveralShardsAndByOwners) {
  constexpr size_t kDim = 5, kNumKeys = 60;
  Random random(9);
  const std::vector<float> each = RandomValues<float>(kNumKeys * kDim, &random);
  const Pooling pooling{Combiner::kMean, nullptr, &kPadding};
  for (const size_t num_shards : {1, 2, 3}) {
    // Each store has rows of all keys, and they differ between stores.
    std::vector<std::unique_ptr<Pair>> pairs;
    std::vector<const Store*> on_host, on_device;
    for (size_t i = 0; i < num_shards; ++i) {
      pairs.push_back(std::make_unique<Pair>(GetParam(), OptionsFor(DataType::kFloat, kDim)));
      pairs[i]->Fill<float>(KeysFrom(-20, 30), &random);
      on_host.push_back(pairs[i]->on_host());
      on_device.push_back(pairs[i]->on_device());
    }
    const std::vector<int64_t> keys = RandomKeys(kNumKeys, -30, 30, &random);
    std::vector<int32_t> owners(kNumKeys);
    for (int32_t& owner : owners) owner = static_cast<int32_t>(random() % num_shards);
    EachForm(kNumKeys, HostAllocator(), &random, [&](const Bags& bags) {
      const int32_t* const choices[] = {nullptr, owners.data()};
      for (const int32_t* const given : choices) {
        for (const bool is_unsigned : {false, true}) {
          BothFinds<float> finds(GetParam(), *pairs[0], keys, bags, pooling, kDim,
                                 is_unsigned ? &each : nullptr);
          finds.host.keys = {keys.data(), given, is_unsigned, on_host.data(), num_shards};
          finds.device.keys = {finds.device.keys.keys, given, is_unsigned, on_device.data(),
                               num_shards};
          ASSERT_TRUE(FindPooled(serial, &finds.host, 1).ok());
          ASSERT_TRUE(pairs[0]->on_device()->FindPooled(serial, &finds.device, 1).ok());
          finds.ExpectSame();
        }
      }
    });
    StoreStats host_stats, device_stats;
    for (const auto& pair : pairs) {
      host_stats.Add(pair->on_host()->Stats());
      device_stats.Add(pair->on_device()->Stats());
    }
    EXPECT_EQ(host_stats.hits, device_stats.hits);
    EXPECT_EQ(host_stats.misses, device_stats.misses);
    owners.back() = static_cast<int32_t>(num_shards);
    Bags bags(HostAllocator());
    bags.OfLines(1, kNumKeys);
    BothFinds<float> finds(GetParam(), *pairs[0], keys, bags, pooling, kDim);
    finds.device.keys.owners = owners.data();
    finds.device.keys.shards = on_device.data();
    finds.device.keys.num_shards = num_shards;
    const Status wrong = pairs[0]->on_device()->FindPooled(serial, &finds.device, 1);
    EXPECT_EQ(StatusCode::kInvalidArgument, wrong.code());
    EXPECT_NE(std::string::npos, wrong.message().find(std::to_string(keys.back())));
  }
}

TEST_P(PooledOnDevice, RefusesWhatItCantPool) {
  Pair pair(GetParam(), OptionsFor(DataType::kFloat, 2));
  Pair integers(GetParam(), OptionsFor(DataType::kInt32, 2));
  Bags bags(HostAllocator());
  bags.OfLines(0, 1);
  const auto code = [&](const PooledFind& find) {
    return pair.on_device()->FindPooled(serial, &find, 1).code();
  };
  const BothFinds<float> finds(GetParam(), pair, {}, bags, {}, 2);
  EXPECT_EQ(StatusCode::kOk, code(finds.device));
  PooledFind find = BothFinds<float>(GetParam(), integers, {}, bags, {}, 2).device;
  const Store* const store = integers.on_device();
  find.keys.shards = &store;
  EXPECT_EQ(StatusCode::kInvalidArgument, code(find));
  const Rule rule = MakeRule(RuleKind::kSgd, 2);
  for (Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
    EXPECT_EQ(StatusCode::kInvalidArgument,
              pair.on_device()->ApplyBags(serial, nullptr, nullptr, 0, combiner, rule).code());
  }
  EXPECT_TRUE(pair.on_device()->ApplyBags(serial, nullptr, nullptr, 0, Combiner::kSum, rule).ok());
}

// There is no deadlock, whichever order callers name stores in.
TEST_P(PooledOnDevice, FindsInManyStoresBesideWriters) {
  if (GetParam().name != std::string("Host") && GetParam().name != std::string("Gpu"))
    GTEST_SKIP() << "one thread only";
  constexpr size_t kStores = 3, kFinders = 3;
  Random random(1);
  std::vector<std::unique_ptr<Pair>> pairs;
  for (size_t i = 0; i < kStores; ++i) {
    pairs.push_back(std::make_unique<Pair>(GetParam(), OptionsFor(DataType::kFloat, 2)));
  }
  const std::vector<int64_t> keys = RandomKeys(40, 0, 300, &random);
  Bags bags(HostAllocator());
  bags.OfLines(10, 4);
  std::atomic<size_t> finders{kFinders};
  InThreads(kFinders + kStores, [&](size_t thread) {
    if (thread < kStores) {
      const OnDevice<int64_t> all(GetParam().memory, KeysFrom(0, 200));
      const OnDevice<float> rows(GetParam().memory, std::vector<float>(400, 1.0f));
      while (finders > 0) {
        Store* const store = pairs[thread]->on_device();
        EXPECT_TRUE(
            store->InsertOrAssign(serial, {all.data(), 200, nullptr}, rows.data(), {}).ok());
        EXPECT_TRUE(store->Erase(serial, {all.data(), 200, nullptr}).ok());
      }
      return;
    }
    for (size_t turn = 0; turn < 200; ++turn) {
      std::vector<std::unique_ptr<BothFinds<float>>> finds;
      std::vector<PooledFind> device;
      for (size_t i = 0; i < 2 * kStores; ++i) {
        finds.push_back(std::make_unique<BothFinds<float>>(
            GetParam(), *pairs[(thread + turn + i) % kStores], keys, bags, Pooling(), 2));
        device.push_back(finds[i]->device);
      }
      EXPECT_TRUE(pairs[turn % kStores]
                      ->on_device()
                      ->FindPooled(serial, device.data(), device.size())
                      .ok());
    }
    --finders;
  });
}

// Equal keys are in many bags of several batches. A batch begins within its splits.
TEST_P(PooledOnDevice, StepsByBagsAsByTheGradientsOfTheirKeys) {
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMeanOfCount}) {
    for (const bool weighted : {false, true}) {
      for (const size_t num_batches : {size_t{1}, size_t{3}}) {
        for (const DataType type : {DataType::kFloat, DataType::kBFloat16}) {
          if (weighted && combiner != Combiner::kSum) continue;  // below
          CheckSteps(combiner, weighted, num_batches, type, MakeRule(RuleKind::kAdam, 5));
          CheckSteps(combiner, weighted, num_batches, type, MakeRule(RuleKind::kRowwiseAdagrad, 5));
        }
      }
    }
  }
}

TEST_P(PooledOnDevice, AWeightIsDividedByTheNumberOfKeysInItsBag) {
  Pair pair(GetParam(), OptionsFor(DataType::kFloat, 1));
  pair.Assign(std::vector<int64_t>{1, 2, 3}, std::vector<float>{0, 0, 0});
  const OnDevice<int64_t> keys(GetParam().memory, {1, 2, 3, 1});
  const OnDevice<int64_t> splits(GetParam().memory, {0, 1, 1, 4});
  const OnDevice<float> weights(GetParam().memory, {2, 3, 4, 5});
  const OnDevice<float> gradients(GetParam().memory, {10, 100, 1000});
  BagGradients batch{keys.data(), 4, splits.data(), 3, weights.data(), 0, 1};
  Rule rule = MakeRule(RuleKind::kSgd, 1);
  rule.learning_rate = -1.0;
  rule.weight_decay = 0.0;
  ASSERT_TRUE(pair.on_device()
                  ->ApplyBags(serial, gradients.data(), &batch, 1, Combiner::kMeanOfCount, rule)
                  .ok());
  const OnDevice<float> rows(GetParam().memory, {0, 0, 0});
  ASSERT_TRUE(
      pair.on_device()->Find(serial, {keys.data(), 3, nullptr}, {}, rows.data(), nullptr, {}).ok());
  const float third = 1.0f / 3.0f;
  const std::vector<float> wanted = {2 * 10.0f + third * 5 * 1000, third * 3 * 1000,
                                     third * 4 * 1000};
  const std::vector<float> found = rows.Values();
  for (size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(wanted[i], found[i]);
}

TEST_P(PooledOnDevice, EachAllocationMayFail) {
  if (GetParam().memory != EmulatedDeviceMemory()) {
    GTEST_SKIP() << "its memory has no allocator of the test's";
  }
  Random random(4);
  FailingAllocator allocator;
  StoreOptions options = OptionsFor(DataType::kHalf, 3);
  options.allocator = &allocator;
  const auto store = NewStore(GetParam(), options);
  auto* const on_device = static_cast<DeviceStore*>(store.get());
  const std::vector<int64_t> keys = RandomKeys(60, -5, 25, &random);
  const std::vector<int64_t> splits = {0, 20, 40, 60};
  const std::vector<float> weights = RandomValues<float>(60, &random);
  std::vector<float> pooled(3 * 3);
  Bags bags(HostAllocator());
  ASSERT_TRUE(bags.OfSplits(splits.data(), splits.size(), keys.size()).ok());
  const Store* const pointer = store.get();
  PooledFind find;
  find.keys = {keys.data(), nullptr, false, &pointer, 1};
  find.bags = &bags;
  find.pooled = pooled.data();
  find.stride = 3;
  const BagGradients batch{keys.data(), 60, splits.data(), 3, weights.data(), 0, 3};
  const BagGradients batches[] = {batch, batch};
  const auto check = [&](const std::function<Status()>& run) {
    int64_t failures = 0;
    for (bool done = false; !done; failures += done ? 0 : 1) {
      allocator.FailAfter(failures, true);
      const Status status = run();
      allocator.NeverFail();
      done = status.ok();
      EXPECT_TRUE(done || status.code() == StatusCode::kResourceExhausted);
      ASSERT_LT(failures, 1000);
    }
    EXPECT_GT(failures, 2);
  };
  check([&] { return on_device->FindPooled(serial, &find, 1); });
  check([&] {
    return on_device->ApplyBags(serial, pooled.data(), batches, 2, Combiner::kMeanOfCount,
                                MakeRule(RuleKind::kSgd, 3));
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, PooledOnDevice, testing::ValuesIn(ContractDevices()),
                         NameOfDevice);

}  // namespace
}  // namespace tf_embed
