// SPDX-License-Identifier: Apache-2.0
// Properties of a bounded DeviceStore that need an emulated device: exhausted memory, requests that
// the host must not make, and many lanes.
#include <algorithm>
#include <set>

#include "cc/stores/device/device_store_inl.h"
#include "cc/stores/device/emulated_device.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/lockstep_store.h"
#include "tests/cc/support/policy_simulation.h"

namespace tf_embed {
namespace {

StoreKind OnHost(const DeviceOptions& device, Allocator* allocator = HostAllocator()) {
  const auto create = [=](const StoreOptions& given) {
    StoreOptions options = given;
    options.allocator = allocator;
    std::unique_ptr<Store> store;
    (void)NewEmulatedDeviceStore(options, device, &store);
    return store;
  };
  return {"EmulatedDeviceStore", create, true, true, true};
}

TEST(DevicePolicy, WhereMemoryEndsNothingLeaves) {
  const Batch old_keys = KeysFrom(0, 1000), new_keys = KeysFrom(700, 500);
  const std::vector<float> rows(old_keys.size() * kDim, 1.0f);
  const std::vector<int64_t> scores(old_keys.size(), 3);
  for (const EvictionOrder order : {EvictionOrder::kLru, EvictionOrder::kScore}) {
    bool done = false;
    for (int64_t failure = 0; !done; ++failure) {
      SCOPED_TRACE("allocation " + std::to_string(failure));
      FailingAllocator allocator;
      Subject subject(OnHost(DeviceOptions(), &allocator), Bounded(1000, order),
                      ExecContext::Serial());
      const auto upsert = [&](const Batch& keys) {
        KeyBatch batch = keys;
        if (order == EvictionOrder::kScore) batch.scores = scores.data();
        return subject.store->InsertOrAssign(subject.context, batch, rows.data(), {});
      };
      ASSERT_TRUE(upsert(old_keys).ok());
      const std::set<int64_t> before = subject.Keys();
      subject.NextStep();
      allocator.FailAfter(failure, true);
      const Status status = upsert(new_keys);
      allocator.NeverFail();
      done = status.ok();
      if (!done) {
        EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
        EXPECT_TRUE(before == subject.Keys());
        EXPECT_EQ(0u, subject.store->Stats().evicted);
        EXPECT_TRUE(upsert(new_keys).ok());
      }
      EXPECT_EQ(1000u, subject.store->size());
      EXPECT_EQ(200u, subject.store->Stats().evicted);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Counts loads of words of an index and of statistics.
struct CountingTile : SingleTile {
  static uint64_t Load(const uint64_t* from) {
    ++loads;
    return SingleTile::Load(from);
  }
  static inline thread_local size_t loads = 0;
};

// Counts how often the host waits. An answer arrives after `lateness` more requests.
class WaitingDevice : public EmulatedDevice {
 public:
  using Tile = CountingTile;
  explicit WaitingDevice(size_t* waits, int lateness = 0)
      : EmulatedDevice(HostAllocator()), waits_(waits), lateness_(lateness) {}
  struct Order : EmulatedDevice::Order {
    explicit Order(const WaitingDevice& device) : EmulatedDevice::Order(device) {}
  };
  class AsyncReadback : public EmulatedDevice::AsyncReadback {
   public:
    explicit AsyncReadback(const WaitingDevice& device)
        : EmulatedDevice::AsyncReadback(device), lateness_(device.lateness_) {}
    bool Send(const WaitingDevice& device, const ExecContext& context, const void* from,
              size_t bytes) {
      if (to_come_ > 0) return --to_come_, false;
      to_come_ = lateness_;
      return EmulatedDevice::AsyncReadback::Send(device, context, from, bytes);
    }
    const void* Arrived() const {
      return to_come_ > 0 ? nullptr : EmulatedDevice::AsyncReadback::Arrived();
    }

   private:
    int lateness_;
    int to_come_ = 0;
  };
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    ++*waits_;
    EmulatedDevice::CopyOut(context, device, bytes, host);
  }
  template <class Kernel>
  void Launch(const ExecContext&, size_t count, size_t, const Kernel& kernel) const {
    const size_t before = Tile::loads;
    for (size_t i = 0; i < count; ++i) kernel(Tile(), i);
    if (std::is_same_v<Kernel, ChooseVictimsKernel>) loads_of_victims += Tile::loads - before;
  }
  static inline size_t loads_of_victims = 0;

 private:
  size_t* waits_;
  int lateness_;
};

TEST(DevicePolicy, TheHostDoesNotWaitOnceAStoreIsFull) {
  size_t waits = 0;
  DeviceOptions device;
  const auto create = [&](const StoreOptions& options) {
    std::unique_ptr<Store> store;
    (void)DeviceStoreImpl<WaitingDevice>::Create(options, device, WaitingDevice(&waits), &store);
    return store;
  };
  RowPolicy expires = Bounded(1000, EvictionOrder::kLru);
  expires.ttl_milliseconds = 1000;
  const auto run = [&](const RowPolicy& policy) {
    Subject subject({"WaitingDevice", create, true, true, true}, policy);
    for (int64_t step = 0; step < 40; ++step) {
      if (step == 20) waits = 0;
      subject.Apply(KeysFrom(step * 100, 300));
      subject.Find(KeysFrom(step * 100, 300), true);
      subject.NextStep();
    }
    return waits;
  };
  EXPECT_EQ(0u, run(Bounded(1000, EvictionOrder::kLru)));
  EXPECT_EQ(0u, run(expires));
  device.max_bytes = 60000;
  EXPECT_EQ(0u, run(Bounded(SIZE_MAX, EvictionOrder::kLfu)));
  EXPECT_EQ(0u, run(RowPolicy())) << "where the last ones are refused";
}

TEST(DevicePolicy, AVictimIsFoundByFewReads) {
  const auto create = [](const StoreOptions& options) {
    static size_t waits;
    std::unique_ptr<Store> store;
    (void)DeviceStoreImpl<WaitingDevice>::Create(options, DeviceOptions(), WaitingDevice(&waits),
                                                 &store);
    return store;
  };
  for (const EvictionOrder order : kAllOrders) {
    if (order == EvictionOrder::kScore) continue;  // users may lower scores
    SCOPED_TRACE(static_cast<int>(order));
    Subject subject({"WaitingDevice", create, true, true, true}, Bounded(4096, order));
    subject.context.now.epoch = 1;
    Random random(1);
    for (int step = 0; step < 300; ++step) {
      if (step == 200) WaitingDevice::loads_of_victims = 0;
      subject.Apply(RandomKeys(64, 0, 6000, &random));
      subject.NextStep();
    }
    const size_t victims = subject.store->Stats().evicted / 2;
    EXPECT_LT(WaitingDevice::loads_of_victims / victims, 40u);
  }
}

// A store with exactly enough room for its rows, or a little more.
TEST(DevicePolicy, TheHostDoesNotWaitForKeysThatAreThere) {
  constexpr size_t kRows = 20000, kBatch = 1000;
  constexpr int kNever = 1 << 20;
  for (const int lateness : {0, 1, 2, 3, kNever}) {
    SCOPED_TRACE(lateness);
    for (const size_t init_size : {size_t{0}, kRows, kRows + kBatch}) {
      SCOPED_TRACE(init_size);
      size_t waits = 0;
      StoreOptions options;
      options.init_size = init_size;
      std::unique_ptr<Store> store;
      ASSERT_TRUE(DeviceStoreImpl<WaitingDevice>::Create(options, DeviceOptions(),
                                                         WaitingDevice(&waits, lateness), &store)
                      .ok());
      const std::vector<float> rows(kRows, 1.0f);
      const auto write = [&](int64_t first) {
        ASSERT_TRUE(store
                        ->InsertOrAssign(ExecContext::Serial(), Batch(KeysFrom(first, kBatch)),
                                         rows.data(), {})
                        .ok());
      };
      const auto write_all = [&] {
        for (size_t first = 0; first < kRows; first += kBatch) write(static_cast<int64_t>(first));
      };
      write_all();
      waits = 0;
      for (int round = 0; round < 10; ++round) write_all();
      // A wait has two copies. Without an answer, the host asks every few batches.
      EXPECT_LE(waits, lateness == kNever ? 10 * kRows / kBatch / 3 : 8);
      const size_t bytes = store->Stats().payload_bytes + store->Stats().slack_bytes;
      EXPECT_LE(bytes, (std::max(kRows, init_size) + (1 << 16)) * sizeof(float) * 2 * 5 / 4);
      // The assumed number of rows is at least the true number, so new keys get room.
      for (int64_t first = 0; first < 200000; first += kBatch) write(first);
      EXPECT_EQ(200000u, store->size());
    }
  }
}

StoreKind OfManyLanes() {
  const auto create = [](const StoreOptions& options) {
    std::unique_ptr<Store> store;
    (void)NewLockstepStore(options, DeviceOptions(), &store);
    return store;
  };
  return {"LockstepStore", create, true, true, true};
}

// Lookups, restored statistics, and writes, some of which fail at first. Several rows of an
// eviction set leave, while some of the lowest rows are used in the same step. The index has hints
// of ranks. Uses raise them, and restored statistics lower them.
void ExpectLowestLeave(const StoreKind& kind, EvictionOrder order, uint64_t seed) {
  constexpr size_t kMaxRows = 300;  // two eviction sets
  constexpr int64_t kKeys = 600;
  Log log;
  RowPolicy policy = Bounded(kMaxRows, order);
  policy.sink = &log;
  Subject subject(kind, policy, ExecContext::Serial());
  Simulation simulation(kind, kMaxRows, order);
  Random random(seed);
  const StatisticSet set = StatisticSet()
                               .With(Statistic::kLastStep)
                               .With(Statistic::kLastTime)
                               .With(Statistic::kCount)
                               .With(Statistic::kEpoch);
  const auto find = [&] {
    const Batch batch = RandomKeys(40, 0, kKeys, &random);
    subject.Find(batch, true);
    for (const int64_t key : batch.keys) {
      const auto row = simulation.rows.find(key);
      if (row != simulation.rows.end()) Simulation::Use(&row->second, subject.context.now);
    }
  };
  const auto restore = [&] {
    const std::vector<int64_t> keys = RandomKeys(40, 0, kKeys, &random);
    std::vector<uint64_t> words;
    for (const int64_t key : keys) {
      // A function of the key, because a key may occur twice. Small numbers have hints, and others
      // do not.
      const uint64_t number = static_cast<uint64_t>(key);
      const Simulation::Row row{number % 9, 1000 + number % 7, number % 3, 0, number % 2};
      words.insert(words.end(), {row.step, row.milliseconds, row.count, row.epoch});
      if (simulation.rows.count(key) > 0) simulation.rows[key] = row;
    }
    Subject::ExpectOk(subject.store->eviction()->AssignStatistics(subject.context, Batch(keys), set,
                                                                  words.data()));
  };
  subject.context.now.step = 10;
  for (int step = 0; step < 60; ++step) {
    find();
    subject.NextStep(60);
    subject.context.now.epoch = static_cast<uint64_t>(step) / 10;
    if (step % 3 == 0) restore();
    find();
    const Batch batch = RandomKeys(step % 10 == 9 ? 400 : 60, 0, kKeys, &random);
    const uint64_t evicted = subject.store->Stats().evicted;
    log.fails = step % 4 == 1;
    if (log.fails && !subject.TryApply(batch).ok()) {
      EXPECT_EQ(evicted, subject.store->Stats().evicted);
    }
    log.fails = false;
    simulation.Write(batch.keys, subject.context.now);
    subject.Apply(batch);
    ASSERT_TRUE(simulation.Keys() == subject.Keys()) << "step " << step;
  }
  EXPECT_GT(subject.store->Stats().evicted, 1000u);
}

TEST(DevicePolicy, TheLowestRowsLeaveWhateverWasNotedOfTheirRanks) {
  for (const EvictionOrder order : kAllOrders) {
    SCOPED_TRACE(static_cast<int>(order));
    for (const uint64_t seed : {1, 2, 3}) {
      ExpectLowestLeave(OnHost(DeviceOptions()), order, seed);
      if (HasLockstep() && seed == 1) ExpectLowestLeave(OfManyLanes(), order, seed);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(DevicePolicy, ManyLanesDoWhatOneDoes) {
  if (!HasLockstep()) GTEST_SKIP() << "sanitizers do not know the stacks of lanes";
  const StoreKind kind = OfManyLanes();
  for (const EvictionOrder order : kAllOrders) {
    constexpr size_t kMaxRows = 300;  // two eviction sets
    Subject subject(kind, Bounded(kMaxRows, order), ExecContext::Serial());
    Simulation simulation(kind, kMaxRows, order);
    Random random(static_cast<uint64_t>(order));
    size_t refused = 0;
    for (int step = 0; step < 12; ++step) {
      Batch batch = RandomKeys(150, 0, 500, &random);
      if (step == 11) batch = KeysFrom(1000, 500);  // more than the bound
      refused += simulation.Write(batch.keys, subject.context.now);
      subject.Apply(batch);
      ASSERT_TRUE(simulation.Keys() == subject.Keys()) << "step " << step;
      subject.NextStep();
      subject.context.now.epoch = static_cast<uint64_t>(step) / 4;
    }
    EXPECT_EQ(refused, subject.store->Stats().refused);
    EXPECT_GT(refused, 0u);
  }
  RowPolicy policy;
  policy.ttl_milliseconds = 30;
  Log log_of_lanes, log_of_one;
  policy.sink = &log_of_lanes;
  Subject lanes(kind, policy, ExecContext::Serial());
  policy.sink = &log_of_one;
  Subject one(OnHost(DeviceOptions()), policy, ExecContext::Serial());
  Random random(9);
  for (int step = 0; step < 12; ++step) {
    const Batch looked_up = RandomKeys(50, 0, 400, &random);
    const Batch batch = RandomKeys(100, 0, 400, &random);
    for (Subject* const subject : {&lanes, &one}) {
      subject->Find(looked_up, true);
      subject->Apply(batch);
      subject->NextStep();
    }
    ASSERT_TRUE(one.Rows() == lanes.Rows()) << "step " << step;
  }
  EXPECT_GT(one.store->Stats().expired, 0u);
  EXPECT_EQ(one.store->Stats().expired, lanes.store->Stats().expired);
  std::sort(log_of_one.evicted.begin(), log_of_one.evicted.end());
  std::sort(log_of_lanes.evicted.begin(), log_of_lanes.evicted.end());
  EXPECT_EQ(one.store->Stats().expired, log_of_one.evicted.size());
  EXPECT_TRUE(log_of_one.evicted == log_of_lanes.evicted);
}

}  // namespace
}  // namespace tf_embed
