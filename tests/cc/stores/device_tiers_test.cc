// SPDX-License-Identifier: Apache-2.0
// Stores with rows below the GPU's memory, called with arrays in that memory.
#include "cc/stores/device_tiers.h"

#include <memory>
#include <vector>

#include "cc/core/pooling/pooled_find.h"
#include "gtest/gtest.h"
#include "tests/cc/support/quantized_rows.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// Memory in which the array behind `output` changes after each read of `output`, as if by another
// stream.
class SharedMemory final : public DeviceMemory {
 public:
  void* Allocate(const ExecContext& context, size_t bytes) override {
    return EmulatedDeviceMemory()->Allocate(context, bytes);
  }
  void Free(const ExecContext& context, void* memory, size_t bytes) override {
    EmulatedDeviceMemory()->Free(context, memory, bytes);
  }
  Status CopyIn(const ExecContext& context, const void* host, size_t bytes, void* device) override {
    return EmulatedDeviceMemory()->CopyIn(context, host, bytes, device);
  }
  Status CopyOut(const ExecContext& context, const void* device, size_t bytes,
                 void* host) override {
    TF_EMBED_RETURN_IF_ERROR(EmulatedDeviceMemory()->CopyOut(context, device, bytes, host));
    if (device == output) std::fill_n(behind, num_behind, 7.0f);
    return Status();
  }
  Status CopyWithin(const ExecContext& context, const void* from, size_t bytes, void* to) override {
    return EmulatedDeviceMemory()->CopyWithin(context, from, bytes, to);
  }
  Status Wait(const ExecContext& context) override { return EmulatedDeviceMemory()->Wait(context); }

  const void* output = nullptr;
  float* behind = nullptr;
  size_t num_behind = 0;
};

// Three bags with a row each, except the second, which is empty.
TEST(DeviceTiers, PooledRowsLeaveTheMemoryBehindThemAlone) {
  constexpr size_t kBags = 3, kDim = 4, kBehind = 16;
  for (const bool quantized : {false, true}) {
    for (const size_t stride : {kDim, 2 * kDim}) {
      StoreOptions options;
      options.name = "items";
      options.dim = kDim + (quantized ? kQuantizedTail : 0);
      options.value_type = quantized ? DataType::kInt8 : DataType::kFloat;
      const std::unique_ptr<Store> tiers = HostStore::Create(options);
      ASSERT_NE(nullptr, tiers);
      const ExecContext context = ExecContext::Serial();
      Random random(1);
      const std::vector<int8_t> bytes = RandomQuantizedRows(2, kDim, &random);
      const std::vector<float> floats = RandomValues<float>(2 * kDim, &random);
      const void* const rows = quantized ? static_cast<const void*>(bytes.data()) : floats.data();
      ASSERT_TRUE(tiers->InsertOrAssign(context, Batch{1, 3}, rows, {}).ok());

      const size_t size = (kBags - 1) * stride + kDim;
      const auto pooled_by = [&](const Store* store, SharedMemory* memory) {
        std::vector<float> values(size + kBehind, 1.0f), found(2 * kDim);
        const std::vector<int64_t> keys{1, 3}, splits{0, 1, 1, 2};
        Bags bags(HostAllocator());
        EXPECT_TRUE(bags.OfSplits(splits.data(), splits.size(), keys.size()).ok());
        PooledFind find;
        find.keys = {keys.data(), nullptr, false, &store, 1};
        find.bags = &bags;
        find.pooled = values.data();
        find.stride = stride;
        find.found = found.data();
        find.quantized = quantized;
        if (memory == nullptr) {
          EXPECT_TRUE(FindPooled(context, &find, 1).ok());
        } else {
          *memory = SharedMemory();
          memory->output = values.data();
          memory->behind = values.data() + size;
          memory->num_behind = kBehind;
          EXPECT_TRUE(static_cast<const DeviceStore*>(store)->FindPooled(context, &find, 1).ok());
        }
        values.insert(values.end(), found.begin(), found.end());
        return values;
      };
      SharedMemory memory;
      const std::unique_ptr<DeviceStore> device = NewDeviceTiers(tiers.get(), &memory);
      std::vector<float> wanted = pooled_by(tiers.get(), nullptr);
      std::fill_n(wanted.data() + size, kBehind, 7.0f);
      EXPECT_EQ(wanted, pooled_by(device.get(), &memory))
          << "quantized: " << quantized << ", stride " << stride;
    }
  }
}

TEST(DeviceTiers, PooledRowsOfAnotherTypeAreRefused) {
  StoreOptions options;
  options.name = "items";
  options.dim = 4;
  const std::unique_ptr<Store> tiers = HostStore::Create(options);
  const std::unique_ptr<DeviceStore> device = NewDeviceTiers(tiers.get(), EmulatedDeviceMemory());
  const Store* const store = device.get();
  const std::vector<int64_t> keys{1}, splits{0, 1};
  Bags bags(HostAllocator());
  ASSERT_TRUE(bags.OfSplits(splits.data(), splits.size(), keys.size()).ok());
  std::vector<float> values(4);
  PooledFind find;
  find.keys = {keys.data(), nullptr, false, &store, 1};
  find.bags = &bags;
  find.pooled = values.data();
  find.stride = 4;
  find.quantized = true;
  const Status status = device->FindPooled(ExecContext::Serial(), &find, 1);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'items'")) << status.message();
}

}  // namespace
}  // namespace tf_embed
