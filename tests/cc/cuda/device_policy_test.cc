// What a bounded DeviceTable does beyond what the tests of policies ask of every table: bounds on
// bytes, memory that ends, what the host must not ask for, and many lanes.
#include <set>

#include "cc/cuda/device_table_inl.h"
#include "cc/cuda/host_device.h"
#include "tests/cc/core/failing_allocator.h"
#include "tests/cc/core/policy_simulation.h"
#include "tests/cc/cuda/lockstep_table.h"

namespace tf_embed {
namespace {

TableKind OnHost(const DeviceOptions& device, Allocator* allocator = HostAllocator()) {
  const auto create = [=](const TableOptions& given) {
    TableOptions options = given;
    options.allocator = allocator;
    std::unique_ptr<Table> table;
    (void)NewDeviceTableOnHost(options, device, &table);
    return table;
  };
  return {"DeviceTableOnHost", create, true, true, true};
}

TEST(DevicePolicy, AtTheBoundOnBytesABoundedTableEvicts) {
  FailingAllocator allocator;
  DeviceOptions device;
  device.max_bytes = 200000;
  Subject subject(OnHost(device, &allocator), Bounded(SIZE_MAX, EvictionOrder::kLru));
  uint64_t rows = 0;
  for (int64_t first = 0; first < 20000; first += 500) {
    subject.Apply(KeysFrom(first, 500));
    const TableStats stats = subject.table->Stats();
    EXPECT_LE(allocator.live_bytes(), device.max_bytes + 10000);
    EXPECT_GE(stats.rows, rows);
    EXPECT_EQ(stats.admitted, stats.rows + stats.evicted);
    EXPECT_EQ(0u, stats.refused);
    rows = stats.rows;
    subject.NextStep();
  }
  EXPECT_GT(rows, 1000u);
  EXPECT_LT(rows, 5000u);
  const std::set<int64_t> keys = subject.Keys();
  for (int64_t key = 19500; key < 20000; ++key) EXPECT_EQ(1u, keys.count(key)) << key;
}

TEST(DevicePolicy, WithoutRoomForAnyRowAllAreRefused) {
  DeviceOptions device;
  device.max_bytes = 1;
  Subject subject(OnHost(device), Bounded(10, EvictionOrder::kLfu));
  subject.Apply({1, 2, 3});
  EXPECT_EQ(0u, subject.table->size());
  EXPECT_EQ(3u, subject.table->Stats().refused);
}

TEST(DevicePolicy, WhoLeavesDependsOnNoThread) {
  std::set<int64_t> before;
  for (const size_t threads : {1, 2, 5}) {
    Subject subject(OnHost(DeviceOptions()), Bounded(3000, EvictionOrder::kEpochLfu),
                    Threads(threads));
    Random random(3);
    for (int step = 0; step < 30; ++step) {
      subject.Apply(RandomKeys(1000, 0, 10000, &random));
      subject.NextStep();
    }
    const std::set<int64_t> keys = subject.Keys();
    EXPECT_EQ(3000u, keys.size());
    if (threads > 1) {
      EXPECT_TRUE(before == keys);
    }
    before = keys;
  }
}

TEST(DevicePolicy, WhatIsRestoredComesWhateverTheBound) {
  Subject subject(OnHost(DeviceOptions()), Bounded(100, EvictionOrder::kLru));
  subject.context.restoring = true;
  subject.Upsert(KeysFrom(0, 300));
  EXPECT_EQ(300u, subject.table->size());
  subject.context.restoring = false;
  subject.NextStep();
  subject.Apply(KeysFrom(1000, 40));
  EXPECT_LE(subject.table->size(), 300u);
  EXPECT_EQ(40u, subject.table->Stats().evicted);
  const auto fresh = subject.table->NewEmpty(0, UniformInitializer());
  EXPECT_EQ(0u, fresh->options().policy.max_rows) << "where rows are collected none may leave";
  EXPECT_EQ(subject.table->options().policy.statistics.bits(),
            fresh->options().policy.statistics.bits());
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
        return subject.table->InsertOrAssign(subject.context, batch, rows.data(), {});
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
        EXPECT_EQ(0u, subject.table->Stats().evicted);
        EXPECT_TRUE(upsert(new_keys).ok());
      }
      EXPECT_EQ(1000u, subject.table->size());
      EXPECT_EQ(200u, subject.table->Stats().evicted);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Counts how often the host waits.
class WaitingDevice : public HostDevice {
 public:
  WaitingDevice(Allocator* allocator, size_t* waits) : HostDevice(allocator), waits_(waits) {}
  struct Order : HostDevice::Order {
    explicit Order(const WaitingDevice& device) : HostDevice::Order(device) {}
  };
  void CopyOut(const ExecContext& context, const void* device, size_t bytes, void* host) const {
    ++*waits_;
    HostDevice::CopyOut(context, device, bytes, host);
  }

 private:
  size_t* waits_;
};

TEST(DevicePolicy, TheHostDoesNotWaitOnceATableIsFull) {
  size_t waits = 0;
  DeviceOptions device;
  const auto create = [&](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)DeviceTable<WaitingDevice>::Create(options, device,
                                             WaitingDevice(HostAllocator(), &waits), &table);
    return table;
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

TEST(DevicePolicy, ManyLanesDoWhatOneDoes) {
  if (!HasLockstep()) GTEST_SKIP() << "sanitizers do not know the stacks of lanes";
  const auto create = [](const TableOptions& options) {
    std::unique_ptr<Table> table;
    (void)NewLockstepTable(options, DeviceOptions(), &table);
    return table;
  };
  for (const EvictionOrder order : kAllOrders) {
    constexpr size_t kMostRows = 300;  // two neighbourhoods
    const TableKind kind{"LockstepTable", create, true, true, true};
    Subject subject(kind, Bounded(kMostRows, order), ExecContext::Serial());
    Simulation simulation(kind, kMostRows, order);
    Random random(static_cast<uint64_t>(order));
    size_t refused = 0;
    for (int step = 0; step < 12; ++step) {
      Batch batch = RandomKeys(150, 0, 500, &random);
      if (step == 11) batch = KeysFrom(1000, 500);  // more than all
      refused += simulation.Write(batch.keys, subject.context.now);
      subject.Apply(batch);
      ASSERT_TRUE(simulation.Keys() == subject.Keys()) << "step " << step;
      subject.NextStep();
      subject.context.now.epoch = static_cast<uint64_t>(step) / 4;
    }
    EXPECT_EQ(refused, subject.table->Stats().refused);
    EXPECT_GT(refused, 0u);
  }
  RowPolicy policy;
  policy.ttl_milliseconds = 30;
  Subject lanes({"LockstepTable", create, true, true, true}, policy, ExecContext::Serial());
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
  EXPECT_GT(one.table->Stats().expired, 0u);
  EXPECT_EQ(one.table->Stats().expired, lanes.table->Stats().expired);
}

}  // namespace
}  // namespace tf_embed
