// SPDX-License-Identifier: Apache-2.0
// Verbs of many stores with a LaunchQueue beside the same verbs one after the other, and how often
// a step calls the device.
#include "cc/stores/device/launch_queue.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/emulated_device.h"
#include "cc/stores/device/host_access_store.h"
#include "tests/cc/support/contract_stores.h"
#include "tests/cc/support/on_device.h"

namespace tf_embed {
namespace {

// What a step has of a store.
struct Step {
  Step(DeviceMemory* memory, size_t size, size_t dim)
      : keys(memory, std::vector<int64_t>(size)),
        gradients(memory, std::vector<float>(size * dim)),
        rows(memory, std::vector<float>(size * dim)) {
    batch.keys = keys.data();
    batch.size = size;
  }
  Status Find(const ExecContext& context, Store* store) const {
    return store->Find(context, batch, DefaultRows(), rows.data(), nullptr, {});
  }
  Status Apply(const ExecContext& context, Store* store, const Rule& rule) const {
    return store->Apply(context, batch, gradients.data(), DataType::kFloat, rule);
  }

  OnDevice<int64_t> keys;
  OnDevice<float> gradients;
  OnDevice<float> rows;
  KeyBatch batch;
};

class LaunchQueueTest : public testing::TestWithParam<DeviceKind> {
 protected:
  static constexpr size_t kBatch = 400;

  // A store of each pair, and what it is trained by.
  struct Pair {
    std::unique_ptr<Store> together, alone;
    Rule rule;
    std::unique_ptr<Step> step;
  };

  void Add(RuleKind rule, size_t dim, const RowPolicy& policy = RowPolicy()) {
    StoreOptions options;
    options.dim = dim;
    options.initializer = UniformInitializer();
    options.policy = policy;
    Pair pair;
    pair.rule = MakeRule(rule, dim);
    for (std::unique_ptr<Store>* const store : {&pair.together, &pair.alone}) {
      ASSERT_TRUE(GetParam().new_store(options, DeviceOptions(), store).ok());
    }
    pair.step = std::make_unique<Step>(GetParam().memory, kBatch, dim);
    pairs.push_back(std::move(pair));
  }

  // Runs verb(context, pair, store) on all stores together and on each alone, and compares the rows
  // that are found.
  using Verb = std::function<Status(const ExecContext& context, const Pair& pair, Store* store)>;
  void Run(const Verb& verb, bool finds) {
    std::vector<std::vector<float>> wanted;
    for (const Pair& pair : pairs) {
      ASSERT_TRUE(verb(context, pair, pair.alone.get()).ok());
      wanted.push_back(pair.step->rows.Values());
    }
    LaunchQueue queue(pairs.size());
    ExecContext queued = context;
    queued.queue = &queue;
    for (const Pair& pair : pairs) {
      queue.NextStore(context);
      ASSERT_TRUE(verb(queued, pair, pair.together.get()).ok());
    }
    ASSERT_TRUE(queue.Finish(context).ok());
    for (size_t i = 0; finds && i < pairs.size(); ++i) {
      ExpectSameBits(wanted[i], pairs[i].step->rows.Values(), "rows of a lookup");
    }
  }

  ExecContext context = ExecContext::Serial();
  std::vector<Pair> pairs;
};

// Few keys that are frequent, and new keys in each step.
std::vector<int64_t> Keys(size_t size, int step, Random* random) {
  std::vector<int64_t> keys = RandomKeys(size, 0, 300, random);
  for (size_t i = 0; i < size; i += 2) keys[i] = 7;
  for (size_t i = 1; i < size; i += 6) keys[i] = 1000 * step + static_cast<int64_t>(i);
  return keys;
}

TEST_P(LaunchQueueTest, GivesTheRowsOfSingleVerbs) {
  RowPolicy bounded;
  bounded.max_rows = 200;
  Add(RuleKind::kSgd, 4);
  Add(RuleKind::kAdam, 8);
  Add(RuleKind::kAdam, 33);
  Add(RuleKind::kFtrl, 4);
  Add(RuleKind::kAdagrad, 8, bounded);  // waits for nothing, but needs launches of its own
  Add(RuleKind::kSgd, 4);
  ASSERT_FALSE(HasFatalFailure());
  Random random(5);
  const auto find = [](const ExecContext& each, const Pair& pair, Store* store) {
    return pair.step->Find(each, store);
  };
  const auto apply = [](const ExecContext& each, const Pair& pair, Store* store) {
    return pair.step->Apply(each, store, pair.rule);
  };
  context.training = true;
  for (int step = 1; step <= 6; ++step) {
    context.now.step = static_cast<uint64_t>(step);
    for (Pair& pair : pairs) {
      pair.rule.step = step;
      pair.step->keys.Write(Keys(kBatch, step, &random));
      pair.step->gradients.Write(
          RandomValues<float>(kBatch * pair.together->options().dim, &random));
    }
    ASSERT_NO_FATAL_FAILURE(Run(find, true));
    ASSERT_NO_FATAL_FAILURE(Run(apply, false));
    ASSERT_NO_FATAL_FAILURE(Run(find, true));
    for (const Pair& pair : pairs) ASSERT_EQ(pair.alone->size(), pair.together->size());
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LaunchQueueTest, testing::ValuesIn(ContractDevices()),
                         NameOfDevice);

// Has so many bytes at a time.
class LimitedAllocator : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    if (bytes > limit - used) return nullptr;
    used += bytes;
    most = std::max(most, used);
    return HostAllocator()->Allocate(bytes);
  }
  void Deallocate(void* memory, size_t bytes) override {
    used -= bytes;
    HostAllocator()->Deallocate(memory, bytes);
  }

  size_t limit = SIZE_MAX;
  size_t used = 0;
  size_t most = 0;
};

TEST(ScratchMemory, OfStoresWhoseVerbsHaveEndedIsFreedIfItIsShort) {
  constexpr size_t kSize = 400, kDim = 16, kStores = 5;
  const Rule rule = MakeRule(RuleKind::kSgd, kDim);
  LimitedAllocator allocator;
  std::vector<std::unique_ptr<Store>> stores(kStores);
  std::vector<std::unique_ptr<Step>> steps;
  for (std::unique_ptr<Store>& store : stores) {
    StoreOptions options;
    options.dim = kDim;
    options.init_size = 4 * kSize;
    options.allocator = &allocator;
    ASSERT_TRUE(NewEmulatedDeviceStore(options, DeviceOptions(), &store).ok());
    steps.push_back(std::make_unique<Step>(EmulatedDeviceMemory(), kSize, kDim));
    steps.back()->keys.Write(KeysFrom(0, kSize));
  }
  ExecContext context = ExecContext::Serial();
  ASSERT_TRUE(steps[0]->Apply(context, stores[0].get(), rule).ok());
  const size_t of_one = allocator.most - allocator.used;
  allocator.limit = allocator.used + of_one + of_one / 2;
  LaunchQueue queue(kStores);
  ExecContext queued = context;
  queued.queue = &queue;
  for (size_t i = 0; i < kStores; ++i) {
    queue.NextStore(context);
    EXPECT_TRUE(steps[i]->Apply(queued, stores[i].get(), rule).ok()) << i;
  }
  ASSERT_TRUE(queue.Finish(context).ok());
  EXPECT_EQ(allocator.limit, allocator.used + of_one + of_one / 2) << "all of it is free again";
  for (const std::unique_ptr<Store>& store : stores) EXPECT_EQ(kSize, store->size());
}

// Counts what would be calls of a driver.
struct Calls {
  int launches = 0;
  int fills = 0;
  int copies = 0;
  bool operator==(const Calls& other) const {
    return launches == other.launches && fills == other.fills && copies == other.copies;
  }
};
void PrintTo(const Calls& calls, std::ostream* out) {
  *out << calls.launches << " launches, " << calls.fills << " fills, " << calls.copies << " copies";
}

class CountingDevice : public EmulatedDevice {
 public:
  explicit CountingDevice(Calls* calls) : EmulatedDevice(HostAllocator()), calls_(calls) {}
  struct Order : EmulatedDevice::Order {
    explicit Order(const CountingDevice& device) : EmulatedDevice::Order(device) {}
  };

  template <class Kernel>
  void Launch(const ExecContext& context, size_t count, size_t cost, const Kernel& kernel) const {
    ++calls_->launches;
    EmulatedDevice::Launch(context, count, cost, kernel);
  }
  void Fill(const ExecContext& context, void* to, int byte, size_t bytes) const {
    ++calls_->fills;
    EmulatedDevice::Fill(context, to, byte, bytes);
  }
  void CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) const {
    ++calls_->copies;
    EmulatedDevice::CopyIn(context, host, bytes, device);
  }
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    ++calls_->copies;
    EmulatedDevice::CopyOut(context, device, bytes, host);
  }
  void CopyLater(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    ++calls_->copies;
    EmulatedDevice::CopyLater(context, device, bytes, host);
  }
  Status RunningSum(const ExecContext& context, uint32_t* numbers, size_t count) const {
    calls_->launches += 2;  // of CUB
    return EmulatedDevice::RunningSum(context, numbers, count);
  }

 private:
  Calls* calls_;
};

// Stores with room for the rows of some steps, and the calls of their verbs.
class CountedStores {
 public:
  static constexpr size_t kSize = 500, kDim = 16;

  explicit CountedStores(size_t count) : stores_(count) {
    using Device = QueuedDevice<CountingDevice>;
    Random random(5);
    for (std::unique_ptr<Store>& store : stores_) {
      StoreOptions options;
      options.dim = kDim;
      options.init_size = 20 * kSize;
      EXPECT_TRUE(
          DeviceStoreImpl<Device>::Create(options, DeviceOptions(), Device(&calls_), &store).ok());
      steps_.push_back(std::make_unique<Step>(EmulatedDeviceMemory(), kSize, kDim));
      steps_.back()->keys.Write(Keys(kSize, 1, &random));
    }
  }

  // The calls of a verb of each store, made together if there are several.
  template <class Verb>
  Calls Run(const Verb& verb) {
    calls_ = Calls();
    LaunchQueue queue(stores_.size());
    ExecContext context = ExecContext::Serial();
    if (stores_.size() > 1) context.queue = &queue;
    for (size_t i = 0; i < stores_.size(); ++i) {
      queue.NextStore(context);
      EXPECT_TRUE(verb(context, *steps_[i], OnDevice(i)).ok());
    }
    EXPECT_TRUE(queue.Finish(context).ok());
    return calls_;
  }
  Calls Find() {
    return Run([](const ExecContext& context, const Step& step, Store* store) {
      return step.Find(context, store);
    });
  }
  Calls Apply() {
    return Run([](const ExecContext& context, const Step& step, Store* store) {
      return step.Apply(context, store, MakeRule(RuleKind::kAdagrad, kDim));
    });
  }
  // The calls of a pooled find in all stores.
  Calls FindPooled(const Bags& bags) {
    std::vector<PooledFind> finds(stores_.size());
    std::vector<const Store*> shards;
    for (const std::unique_ptr<Store>& store : stores_) shards.push_back(store.get());
    for (size_t i = 0; i < finds.size(); ++i) {
      finds[i].keys = {steps_[i]->batch.keys, nullptr, false, &shards[i], 1};
      finds[i].bags = &bags;
      finds[i].pooled = steps_[i]->rows.data();
      finds[i].stride = kDim;
    }
    calls_ = Calls();
    EXPECT_TRUE(OnDevice(0)->FindPooled(ExecContext::Serial(), finds.data(), finds.size()).ok());
    return calls_;
  }

 private:
  DeviceStore* OnDevice(size_t i) const { return static_cast<DeviceStore*>(stores_[i].get()); }

  Calls calls_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<std::unique_ptr<Step>> steps_;
};

TEST(CallsOfTheDevice, AreFewInAStep) {
  CountedStores one(1);
  one.Apply();
  EXPECT_EQ((Calls{1, 0, 0}), one.Find());
  // Four for the groups of equal keys, a lookup, sums, rows, the number of rows.
  EXPECT_EQ((Calls{8, 1, 0}), one.Apply());
  CountedStores many(26);
  many.Apply();
  EXPECT_EQ((Calls{2, 0, 0}), many.Find()) << "a launch carries about 16 stores";
  EXPECT_EQ((Calls{10, 0, 0}), many.Apply());
}

TEST(CallsOfTheDevice, OfAPooledFindAreCopiesOnlyForBagsOfSplits) {
  constexpr size_t kSize = CountedStores::kSize;
  Bags lines(HostAllocator()), runs(HostAllocator());
  lines.OfLines(kSize / 10, 10);
  const std::vector<int64_t> splits = {0, 0, 7, kSize};
  ASSERT_TRUE(runs.OfSplits(splits.data(), splits.size(), kSize).ok());
  CountedStores one(1), many(26);
  EXPECT_EQ((Calls{1, 0, 0}), one.FindPooled(lines));
  EXPECT_EQ((Calls{1, 0, 1}), one.FindPooled(runs));
  EXPECT_EQ((Calls{1, 0, 0}), many.FindPooled(lines));
  EXPECT_EQ((Calls{1, 0, 1}), many.FindPooled(runs)) << "one copy of the splits of all bags";
}

TEST(CallsOfTheDevice, OfAStepByBagsAreThoseOfAStepAndALaunch) {
  constexpr size_t kSize = CountedStores::kSize, kDim = CountedStores::kDim;
  const OnDevice<int64_t> splits(EmulatedDeviceMemory(), {0, 7, kSize / 2});
  const OnDevice<float> gradients(EmulatedDeviceMemory(), std::vector<float>(2 * kDim));
  for (const size_t num_batches : {size_t{1}, size_t{2}}) {
    const auto apply = [&](const ExecContext& context, const Step& step, DeviceStore* store) {
      const BagGradients batch{step.batch.keys, kSize / 2, splits.data(), 2, nullptr, 0, kDim};
      const BagGradients batches[] = {batch, batch};
      return store->ApplyBags(context, gradients.data(), batches, num_batches, Combiner::kSum,
                              MakeRule(RuleKind::kAdagrad, kDim));
    };
    CountedStores one(1);
    one.Run(apply);
    const int fills = num_batches == 1 ? 2 : 3;  // also of the keys of several batches
    EXPECT_EQ((Calls{9, fills, 0}), one.Run(apply)) << num_batches;
  }
}

}  // namespace
}  // namespace tf_embed
