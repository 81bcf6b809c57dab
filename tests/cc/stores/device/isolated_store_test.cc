// SPDX-License-Identifier: Apache-2.0
// An IsolatedStore reports accesses of the host to device memory, and of the device to host memory.
// Otherwise it behaves like any store.
#include "tests/cc/support/isolated_store.h"

#include <utility>

#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

class IsolatedMemoryTest : public testing::Test {
 protected:
  using Scope = IsolatedMemory::Scope;
  using Open = IsolatedMemory::Open;

  static volatile char* Touch(void* memory) {
    volatile char* const byte = static_cast<char*>(memory);
    *byte = 1;
    return byte;
  }

  IsolatedMemory* const memory = IsolatedMemory::Get();
  void* const on_device = memory->Allocate(ExecContext::Serial(), 100);
  void* const on_host = memory->host()->Allocate(100);
};

TEST_F(IsolatedMemoryTest, EachSideMayTouchItsOwn) {
  Touch(on_host);
  const Scope scope(memory, Open::kDevice);
  Touch(on_device);
}

TEST_F(IsolatedMemoryTest, CopiesMayTouchBoth) {
  const ExecContext context = ExecContext::Serial();
  const char text[] = "rows";
  char back[sizeof(text)];
  ASSERT_TRUE(memory->CopyIn(context, text, sizeof(text), on_device).ok());
  ASSERT_TRUE(memory->CopyOut(context, on_device, sizeof(text), back).ok());
  EXPECT_STREQ("rows", back);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

TEST_F(IsolatedMemoryTest, AHostThatTouchesMemoryOfTheDeviceEnds) {
  EXPECT_DEATH(Touch(on_device), "the host touched memory of the device");
}

TEST_F(IsolatedMemoryTest, AKernelThatTouchesMemoryOfTheHostEnds) {
  EXPECT_DEATH(
      {
        const Scope scope(memory, Open::kDevice);
        Touch(on_host);
      },
      "a kernel touched memory of the host");
}

TEST_F(IsolatedMemoryTest, AWriteBeyondAnArrayEnds) {
  EXPECT_DEATH(
      {
        {
          const Scope scope(memory, Open::kDevice);
          Touch(static_cast<char*>(on_device) + 100);
        }
        memory->Free(ExecContext::Serial(), on_device, 100);
        const Scope scope(memory, Open::kDevice);
      },
      "beyond an array of 100 bytes");
}

// If a verb gets arrays of the host, the process ends.
TEST_F(IsolatedMemoryTest, AVerbThatGetsTheHostsArraysEnds) {
  std::unique_ptr<Store> store;
  ASSERT_TRUE(NewIsolatedStore(StoreOptions(), DeviceOptions(), &store).ok());
  auto* const keys = static_cast<int64_t*>(on_host);
  keys[0] = 5;
  float row;
  KeyBatch batch;
  batch.keys = keys;
  batch.size = 1;
  EXPECT_DEATH((void)store->Find(ExecContext::Serial(), batch, DefaultRows(), &row, nullptr, {}),
               "a kernel touched memory of the host");
  EXPECT_DEATH((void)store->Erase(ExecContext::Serial(), batch),
               "a kernel touched memory of the host");
}

#endif

}  // namespace
}  // namespace tf_embed
