// SPDX-License-Identifier: Apache-2.0
// The suites of the contract and of policies on a GPU, and tests that need a real GPU. `make
// cuda-test` builds the program with nvcc and g++, without TensorFlow and Bazel. If there is no
// GPU, it says so and exits with 77, the code of a skipped test for Automake and Meson.
#include <cuda_runtime.h>

#include <cstdio>
#include <set>
#include <thread>

#include "cc/core/base/allocator.h"
#include "cc/stores/device/current_gpu.h"
#include "cc/stores/device/device_store.h"
#include "cc/stores/device/host_access_store.h"
#include "tests/cc/support/checked_store.h"
#include "tests/cc/support/contract_stores.h"

namespace tf_embed {
namespace {

std::unique_ptr<Store> NewGpuStore(const StoreOptions& options, const DeviceOptions& device = {}) {
  std::unique_ptr<Store> store;
  const Status status = NewDeviceStore(options, device, &store);
  EXPECT_TRUE(status.ok()) << status.message();
  return store;
}

}  // namespace

StoreKind DeviceStores(const DeviceOptions& device) {
  const auto create = [=](const StoreOptions& options) {
    return NewHostAccessStore(NewGpuStore(options, device), MemoryOfDevice(device.device));
  };
  return {"DeviceStoreOnGpu", create, true, false, /*on_device=*/true};
}

std::vector<StoreKind> ContractStores() {
  const NewCache new_cache = [](const StoreOptions& options, std::unique_ptr<Store>* cache) {
    std::unique_ptr<Store> on_gpu;
    TF_EMBED_RETURN_IF_ERROR(NewDeviceStore(options, DeviceOptions(), &on_gpu));
    *cache = NewHostAccessStore(std::move(on_gpu), MemoryOfDevice(0));
    return Status();
  };
  StoreKind tiers = TieredStores(64, "ThreeTiersOnGpu", new_cache, NewHostOverDisk);
  tiers.has_disk = true;
  tiers.same_powers = false;
  return {DeviceStores(DeviceOptions()), tiers};
}

std::vector<DeviceKind> ContractDevices() {
  return {{"Gpu", MemoryOfDevice(0), NewDeviceStore, [] { return NewDeviceSplit(0); },
           [] { return NewDeviceKeySums(0); }}};
}

namespace {

// An array on the GPU.
template <typename T>
class GpuArray {
 public:
  explicit GpuArray(size_t size) : size_(size) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data_, size * sizeof(T)));
  }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(values.size()) {
    cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice);
    cudaDeviceSynchronize();  // the streams do not wait for this write
  }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;
  ~GpuArray() { cudaFree(data_); }

  T* data() { return static_cast<T*>(data_); }
  std::vector<T> Values() const {
    std::vector<T> values(size_);
    cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t size_;
};

class GpuStreams : public testing::Test {
 protected:
  static constexpr size_t kStreams = 4;
  static constexpr size_t kDim = 16;
  static constexpr size_t kKeys = 100000;

  void SetUp() override {
    for (ExecContext& context : contexts) {
      cudaStream_t stream;
      ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      context = ExecContext::Serial();
      context.stream = stream;
    }
    StoreOptions options;
    options.dim = kDim;
    store = NewGpuStore(options);
    ASSERT_NE(nullptr, store);
  }
  void TearDown() override {
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    for (ExecContext& context : contexts) {
      cudaStreamDestroy(static_cast<cudaStream_t>(context.stream));
    }
    store.reset();  // a store may outlive its streams
  }
  KeyBatch All() {
    KeyBatch batch;
    batch.keys = keys.data();
    batch.size = kKeys;
    return batch;
  }
  void ExpectOrder(size_t (*writes)(size_t step), size_t (*reads)(size_t step));

  ExecContext contexts[kStreams];
  GpuArray<int64_t> keys{KeysFrom(0, kKeys)};
  std::unique_ptr<Store> store;
};

// Each step writes on one stream and reads on another, and the host waits for no stream.
void GpuStreams::ExpectOrder(size_t (*writes)(size_t step), size_t (*reads)(size_t step)) {
  constexpr size_t kSteps = 40;
  GpuArray<float> gradients(std::vector<float>(kKeys * kDim, -1.0f));
  std::vector<std::unique_ptr<GpuArray<float>>> found;
  Rule rule = MakeRule(RuleKind::kSgd, kDim);
  rule.learning_rate = 1.0;
  for (size_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(
        store->Apply(contexts[writes(step)], All(), gradients.data(), DataType::kFloat, rule).ok());
    found.push_back(std::make_unique<GpuArray<float>>(kKeys * kDim));
    ASSERT_TRUE(
        store->Find(contexts[reads(step)], All(), DefaultRows(), found.back()->data(), nullptr, {})
            .ok());
  }
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  for (size_t step = 0; step < kSteps; ++step) {
    const std::vector<float> rows = found[step]->Values();
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(static_cast<float>(step + 1), rows[i]) << "step " << step << ", value " << i;
    }
  }
}

TEST_F(GpuStreams, AVerbSeesWhatVerbsOfOtherStreamsWroteBefore) {
  ExpectOrder([](size_t step) { return step % kStreams; },
              [](size_t step) { return (step + 1) % kStreams; });
}

TEST_F(GpuStreams, AWriteWaitsForReadsOfOtherStreams) {
  ExpectOrder([](size_t) { return size_t{0}; }, [](size_t step) { return 1 + step % 2; });
}

// Each thread has a stream. A thread writes rows of equal values, and the others read them.
TEST_F(GpuStreams, RowsAreReadAsAWholeWhileOthersWrite) {
  InThreads(kStreams, [&](size_t number) {
    GpuArray<float> rows(kKeys * kDim);
    for (int round = 0; round < 50; ++round) {
      if (number == 0) {
        GpuArray<float> values(std::vector<float>(kKeys * kDim, static_cast<float>(round)));
        EXPECT_TRUE(store->InsertOrAssign(contexts[0], All(), values.data(), {}).ok());
        cudaStreamSynchronize(static_cast<cudaStream_t>(contexts[0].stream));
        continue;
      }
      EXPECT_TRUE(
          store->Find(contexts[number], All(), DefaultRows(), rows.data(), nullptr, {}).ok());
      cudaStreamSynchronize(static_cast<cudaStream_t>(contexts[number].stream));
      const std::vector<float> found = rows.Values();
      for (size_t i = 0; i < found.size(); ++i) {
        if (found[i] == found[i / kDim * kDim]) continue;
        ADD_FAILURE() << "a torn row";
        return;
      }
    }
  });
  EXPECT_EQ(kKeys, store->size());
}

TEST_F(GpuStreams, TheSameStepsGiveTheSameBits) {
  Random random(5);
  const std::vector<float> values = RandomValues<float>(kKeys * kDim, &random);
  GpuArray<int64_t> few(RandomKeys(kKeys, 0, 500, &random));
  GpuArray<float> gradients(values);
  std::vector<float> before;
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE(store->Clear().ok());
    KeyBatch batch = All();
    batch.keys = few.data();
    Rule rule = MakeRule(RuleKind::kAdam, kDim);
    for (rule.step = 1; rule.step <= 5; ++rule.step) {
      ASSERT_TRUE(
          store->Apply(contexts[run], batch, gradients.data(), DataType::kFloat, rule).ok());
    }
    GpuArray<float> rows(kKeys * kDim);
    ASSERT_TRUE(store->Find(contexts[run], All(), DefaultRows(), rows.data(), nullptr, {}).ok());
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    const std::vector<float> after = rows.Values();
    if (run > 0) ExpectSameBits(before, after, "rows");
    before = after;
  }
}

// Lends memory of the GPU, but has none for every third call.
class Lender final : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    void* memory = nullptr;
    if (++calls % 3 == 0) return nullptr;
    EXPECT_EQ(cudaSuccess, cudaMalloc(&memory, bytes));
    lent.insert(memory);
    return memory;
  }
  void Deallocate(void* memory, size_t) override {
    EXPECT_EQ(1u, lent.erase(memory)) << "not lent";
    cudaFree(memory);
  }

  size_t calls = 0;
  std::set<void*> lent;
};

TEST_F(GpuStreams, ScratchMemoryGoesBackToWhereItCameFrom) {
  Lender lender;
  for (ExecContext& context : contexts) context.scratch = &lender;
  ExpectOrder([](size_t step) { return step % kStreams; },
              [](size_t step) { return step % kStreams; });
  ASSERT_TRUE(store
                  ->FindOrInsert(contexts[0], All(), DefaultRows(),
                                 GpuArray<float>(kKeys * kDim).data(), nullptr)
                  .ok());
  EXPECT_LT(40u, lender.calls);
  EXPECT_EQ(0u, lender.lent.size());
}

TEST(GpuBytes, ABoundOnBytesRefusesTheLastNewKeys) {
  StoreOptions options;
  options.dim = 64;
  DeviceOptions device;
  device.max_bytes = 64 << 20;
  const auto copying = DeviceStores(device).create(options);
  const Batch batch(KeysFrom(0, 1000000));
  const std::vector<float> rows(batch.size() * options.dim, 1.0f);
  ASSERT_TRUE(copying->InsertOrAssign(ExecContext::Serial(), batch, rows.data(), {}).ok());
  const StoreStats stats = copying->Stats();
  EXPECT_LT(stats.rows, 260000u);
  EXPECT_GT(stats.rows, 100000u);
  EXPECT_EQ(batch.size(), stats.rows + stats.refused);
  EXPECT_LE(stats.payload_bytes + stats.index_bytes + stats.slack_bytes, device.max_bytes);
}

TEST(GpuBytes, RowsOfBothMemoriesAreWhatTheyAreElsewhere) {
  constexpr size_t kDim = 16;
  DeviceOptions device;
  device.max_row_bytes = 700 * kDim * sizeof(float);
  device.max_host_bytes = UINT64_MAX;
  CheckedStore<float> both(DeviceStores(device), kDim, Threads(2), 1);
  const auto some = [&] {
    return Scattered(RandomKeys(5000, 0, 20000, &both.random), &both.random);
  };
  for (const RuleKind kind : {RuleKind::kAdam, RuleKind::kRowwiseAdagrad, RuleKind::kFtrl}) {
    both.FindOrInsert(some());
    both.Apply(some(), MakeRule(kind, kDim));
    both.Erase(some());
    both.InsertOrAssign(some(), true);
    both.FindSlots(some());
    EXPECT_GT(both.store->Stats().pinned_bytes, 0u);
    both.Shrink();
    both.ExpectSame(70);
  }
}

TEST(Gpus, ThoseWithoutMemoryPoolsAreRefused) {
  int has_pools = 0;
  ASSERT_EQ(cudaSuccess, cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, 0));
  if (has_pools != 0) GTEST_SKIP() << "this GPU has memory pools";
  std::unique_ptr<Store> none;
  const Status status = NewDeviceStore(StoreOptions(), DeviceOptions(), &none);
  EXPECT_EQ(StatusCode::kUnavailable, status.code());
  EXPECT_NE(std::string::npos, status.message().find("its driver has no memory pools"));
}

TEST(Gpus, AStoreOnAnotherGpuLeavesAThreadWithoutAContextAsItWas) {
  if (NumGpus() < 2) GTEST_SKIP() << "this machine has one GPU";
  DeviceOptions device;
  device.device = 1;
  // A new thread has no context, and its current GPU is 0.
  std::thread([&] {
    StoreOptions options;
    options.dim = 4;
    const auto copying = DeviceStores(device).create(options);
    const std::vector<float> rows(2 * options.dim, 1.0f);
    ASSERT_TRUE(copying->InsertOrAssign(ExecContext::Serial(), Batch{1, 2}, rows.data(), {}).ok());
    EXPECT_EQ(2u, copying->size());
    CUcontext context;
    ASSERT_TRUE(DriverContexts::Get().Exchange(nullptr, &context));
    EXPECT_EQ(nullptr, context);
    int current = -1;
    EXPECT_EQ(cudaSuccess, cudaGetDevice(&current));
    EXPECT_EQ(0, current);
  }).join();
}

TEST(Gpus, TheEndOfANestedScopeRestoresTheGpuOfTheOuterScope) {
  if (NumGpus() < 2) GTEST_SKIP() << "this machine has one GPU";
  const auto current = [] {
    int device = -1;
    EXPECT_EQ(cudaSuccess, cudaGetDevice(&device));
    return device;
  };
  const int before = current();
  {
    const OnGpu outer(1);
    {
      const OnGpu same(1);
      EXPECT_EQ(1, current());
      const OnGpu other(0);
      const OnGpu first(1);
      EXPECT_EQ(1, current());
    }
    const OnGpu again(1);
    EXPECT_EQ(1, current());
  }
  EXPECT_EQ(before, current());
}

}  // namespace
}  // namespace tf_embed

int main(int argc, char** argv) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    std::printf("skipped: there is no GPU here that CUDA can use: %s\n", cudaGetErrorString(found));
    return 77;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
