// SPDX-License-Identifier: Apache-2.0
// Memory that a batch on a device allocates for copies of the host's arrays and for the parts of
// shards. If the device has no memory left, verbs fail.
#include "cc/stores/device/host_access_store.h"

#include <functional>
#include <set>
#include <utility>

#include "cc/stores/device/device_split.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 3;

class FailingMemory final : public DeviceMemory {
 public:
  void* Allocate(const ExecContext& context, size_t bytes) override {
    NoteStream(context);
    return allocator.Allocate(bytes);
  }
  void Free(const ExecContext& context, void* memory, size_t bytes) override {
    NoteStream(context);
    EXPECT_FALSE(reads_host) << "a copy from the caller's array may still be under way";
    allocator.Deallocate(memory, bytes);
  }
  Status CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) override {
    NoteStream(context);
    if (copies_until_failure-- == 0) return Broken();
    reads_host = true;
    return EmulatedDeviceMemory()->CopyIn(context, host, bytes, device);
  }
  Status CopyOut(const ExecContext& context, const void* device, size_t bytes,
                 void* host) override {
    NoteStream(context);
    if (copies_until_failure-- == 0) return Broken();
    return EmulatedDeviceMemory()->CopyOut(context, device, bytes, host);
  }
  Status CopyWithin(const ExecContext& context, const void* from, size_t bytes, void* to) override {
    return EmulatedDeviceMemory()->CopyWithin(context, from, bytes, to);
  }
  Status Wait(const ExecContext& context) override {
    NoteStream(context);
    reads_host = false;
    return is_lost ? Broken() : Status();
  }

  FailingAllocator allocator;
  int copies_until_failure = -1;  // negative: all succeed
  bool is_lost = false;           // queued work fails
  bool reads_host = false;        // a copy from the host may be running
  std::set<void*> streams;        // of all calls

 private:
  void NoteStream(const ExecContext& context) { streams.insert(context.stream); }
  static Status Broken() { return Status::Unavailable("the device is broken"); }
};

class HostAccessStoreTest : public testing::Test {
 protected:
  HostAccessStoreTest() {
    StoreOptions options;
    options.dim = kDim;
    options.policy.statistics = StatisticSet().With(Statistic::kScore);
    std::unique_ptr<Store> on_device;
    EXPECT_TRUE(NewEmulatedDeviceStore(options, DeviceOptions(), &on_device).ok());
    store = NewHostAccessStore(std::move(on_device), &memory);
    const std::vector<float> ones(3 * kDim, 1.0f);
    EXPECT_TRUE(store->InsertOrAssign(context, Batch{1, 2, 3}, ones.data(), {}).ok());
  }

  FailingMemory memory;
  std::unique_ptr<Store> store;
  const ExecContext context = ExecContext::Serial();
};

// Each copy in turn gets no memory.
TEST_F(HostAccessStoreTest, EachVerbSaysWhenTheDeviceHasNoMemoryForItsCopies) {
  Batch keys{3, 9, 1};
  keys.positions = {2, 0, 1};
  KeyBatch batch = keys;
  const std::vector<float> rows(3 * kDim, 5.0f);
  const std::vector<int64_t> scores(3, 4);
  batch.scores = scores.data();
  const std::vector<uint64_t> words(3, 7);
  const bool no[3] = {};
  const StatisticSet set = StatisticSet().With(Statistic::kScore);
  const Rule rule = MakeRule(RuleKind::kSgd, kDim);
  const DefaultRows defaults{DefaultRows::Kind::kOneForAll, rows.data()};
  // The outputs of a verb. A failed verb does not change them.
  std::vector<float> weights(3 * kDim);
  std::vector<uint64_t> statistics(3);
  bool exists[3];
  const auto clean = [&] {
    std::fill(weights.begin(), weights.end(), 8.0f);
    std::fill(statistics.begin(), statistics.end(), 8);
    std::fill_n(exists, 3, true);
  };
  const auto is_clean = [&] {
    return weights == std::vector<float>(3 * kDim, 8.0f) &&
           statistics == std::vector<uint64_t>(3, 8) && exists[0] && exists[1] && exists[2];
  };
  const std::pair<const char*, std::function<Status()>> verbs[] = {
      {"Contains", [&] { return store->Contains(context, batch, exists); }},
      {"Find", [&] { return store->Find(context, batch, defaults, weights.data(), exists, {}); }},
      {"FindStatistics",
       [&] {
         return store->eviction()->FindStatistics(context, batch, statistics.data(), exists);
       }},
      {"AssignStatistics",
       [&] { return store->eviction()->AssignStatistics(context, batch, set, words.data()); }},
      {"Accum", [&] { return store->Accum(context, batch, rows.data(), rows.data(), no); }},
      {"Apply", [&] { return store->Apply(context, batch, rows.data(), DataType::kFloat, rule); }},
      {"InsertOrAssign", [&] { return store->InsertOrAssign(context, batch, rows.data(), {}); }},
      {"FindOrInsert",
       [&] { return store->FindOrInsert(context, batch, defaults, weights.data(), exists); }},
      {"Erase", [&] { return store->Erase(context, batch); }},
  };
  for (const auto& [name, verb] : verbs) {
    bool done = false;
    int64_t failure = 0;
    for (; !done; ++failure) {
      SCOPED_TRACE(std::string(name) + ", copy " + std::to_string(failure));
      clean();
      const size_t size = store->size();
      memory.allocator.FailAfter(failure);
      const Status status = verb();
      memory.allocator.NeverFail();
      EXPECT_EQ(0u, memory.allocator.live_blocks());
      done = status.ok();
      if (done) continue;
      EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
      EXPECT_TRUE(is_clean());
      EXPECT_EQ(size, store->size());
    }
    EXPECT_GE(failure, 4) << name << " copies keys, positions and scores";
  }
}

TEST_F(HostAccessStoreTest, AVerbSaysThatACopyFailed) {
  const Batch keys{3, 9};
  std::vector<float> weights(2 * kDim);
  bool exists[2];
  int failure = 0;
  for (bool done = false; !done; ++failure) {
    memory.copies_until_failure = failure;
    const Status status = store->Find(context, keys, {}, weights.data(), exists, {});
    done = memory.copies_until_failure >= 0;
    EXPECT_EQ(done ? StatusCode::kOk : StatusCode::kUnavailable, status.code()) << failure;
  }
  EXPECT_EQ(6, failure) << "keys, weights and flags there, weights and flags back, and then none";
}

TEST_F(HostAccessStoreTest, AVerbWaitsForItsStreamAlone) {
  int stream = 0;
  ExecContext on_stream = context;
  on_stream.stream = &stream;
  const Batch keys{3, 9};
  std::vector<float> weights(2 * kDim);
  memory.streams.clear();
  ASSERT_TRUE(store->InsertOrAssign(on_stream, keys, weights.data(), {}).ok());
  ASSERT_TRUE(store->Find(on_stream, keys, {}, weights.data(), nullptr, {}).ok());
  EXPECT_EQ(std::set<void*>{&stream}, memory.streams);
}

TEST_F(HostAccessStoreTest, AVerbSaysThatItsWorkFailedOnTheDevice) {
  const std::vector<float> weights(kDim);
  memory.is_lost = true;
  const Status status = store->InsertOrAssign(context, Batch{3}, weights.data(), {});
  EXPECT_EQ(StatusCode::kUnavailable, status.code());
}

TEST(DeviceSplitMemory, ASplitSaysWhenTheDeviceHasNoMemoryForIt) {
  FailingAllocator allocator;
  const std::vector<int64_t> keys = KeysFrom(-40, 100);
  const std::vector<int32_t> owners(keys.size(), 1);
  bool done = false;
  int64_t failure = 0;
  for (; !done; ++failure) {
    const auto split = NewEmulatedDeviceSplit(&allocator);
    allocator.FailAfter(failure);
    const Status status =
        split->Build(ExecContext::Serial(), keys.data(), keys.size(), owners.data(), 3, false);
    allocator.NeverFail();
    done = status.ok();
    EXPECT_EQ(done ? StatusCode::kOk : StatusCode::kResourceExhausted, status.code());
  }
  EXPECT_GT(failure, 7);
}

}  // namespace
}  // namespace tf_embed
