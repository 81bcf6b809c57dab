// SPDX-License-Identifier: Apache-2.0
// Batches of more than 2^31 values, beyond 32-bit arithmetic. The test needs 14 GiB of memory, so
// run it by hand: bazel test //tests/cc/stores/device:large_batch_test
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cc/core/pooling/bags.h"
#include "cc/core/pooling/pooled_find.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

constexpr size_t kDim = 1024;
constexpr size_t kKeys = (size_t{1} << 21) + 1000;
static_assert(kKeys * kDim > size_t{1} << 31);

struct Free {
  size_t bytes;
  void operator()(void* memory) const { HostAllocator()->Deallocate(memory, bytes); }
};
template <typename T>
using Large = std::unique_ptr<T[], Free>;

// The system allocates its pages at their first write.
template <typename T>
Large<T> NewLarge(size_t size) {
  return Large<T>(static_cast<T*>(HostAllocator()->Allocate(size * sizeof(T))),
                  Free{size * sizeof(T)});
}

// Rows that differ from their neighbours and from rows 2^21 further on. The row of key k begins 7 *
// k values after key 0's row, in a sequence of period kPeriod. All values are exact in Half.
class Rows {
 public:
  explicit Rows(float less = 0.0f) : values_(kPeriod + kDim) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = Number<Half>::FromDouble(static_cast<double>(i % kPeriod) - less);
    }
  }
  const Half* Of(size_t key) const { return values_.data() + key * 7 % kPeriod; }

 private:
  static constexpr size_t kPeriod = 2039;
  std::vector<Half> values_;
};

class LargeBatch : public testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.value_type = DataType::kHalf;
    options.dim = kDim;
    store = GetParam().create(options);
    ASSERT_NE(nullptr, store);
  }

  const ExecContext context = Threads(2);
  const Batch batch{KeysFrom(0, kKeys)};
  std::unique_ptr<Store> store;
};

TEST_P(LargeBatch, RowsGoInAndComeOutAndTakeAStep) {
  {
    const Large<Half> rows = NewLarge<Half>(kKeys * kDim);
    ASSERT_NE(nullptr, rows);
    const Rows wanted;
    for (size_t i = 0; i < kKeys; ++i) {
      std::memcpy(&rows[i * kDim], wanted.Of(i), kDim * sizeof(Half));
    }
    ASSERT_TRUE(store->InsertOrAssign(context, batch, rows.get(), {}).ok());
  }
  ASSERT_EQ(kKeys, store->size());
  // The first and the last key have different gradients. All other keys share a gradient.
  std::vector<float> gradients(3 * kDim, 1.0f);
  std::fill_n(gradients.begin() + kDim, kDim, 2.0f);
  std::fill_n(gradients.begin() + 2 * kDim, kDim, 4.0f);
  std::vector<size_t> begins(kKeys, 0);
  begins.front() = kDim;
  begins.back() = 2 * kDim;
  Rule rule = MakeRule(RuleKind::kSgd, kDim);
  rule.learning_rate = 1.0;
  ASSERT_TRUE(store
                  ->Apply(context, batch,
                          Gradients{gradients.data(), DataType::kFloat, begins.data()}, rule)
                  .ok());
  const Large<Half> found = NewLarge<Half>(kKeys * kDim);
  ASSERT_NE(nullptr, found);
  std::vector<uint8_t> exists(kKeys);
  ASSERT_TRUE(store
                  ->Find(context, batch, DefaultRows(), found.get(),
                         reinterpret_cast<bool*>(exists.data()), {})
                  .ok());
  const Rows less_one(1.0f), less_two(2.0f), less_four(4.0f);
  for (size_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(1, exists[i]) << i;
    const Rows& wanted = i == 0 ? less_two : i == kKeys - 1 ? less_four : less_one;
    ASSERT_EQ(0, std::memcmp(wanted.Of(i), &found[i * kDim], kDim * sizeof(Half))) << "key " << i;
  }
}

TEST_P(LargeBatch, BagsAreAsManyAsKeys) {
  const Rows rows;
  ASSERT_TRUE(store->InsertOrAssign(context, Batch{3}, rows.Of(3), {}).ok());
  ASSERT_TRUE(store->InsertOrAssign(context, Batch{4}, rows.Of(4), {}).ok());
  std::vector<int64_t> keys(kKeys, 3);
  keys.front() = keys.back() = 4;
  const Large<float> pooled = NewLarge<float>(kKeys * kDim);
  ASSERT_NE(nullptr, pooled);
  Bags bags(HostAllocator());
  bags.OfLines(kKeys, 1);
  const Store* const shard = store.get();
  PooledFind find;
  find.keys.keys = keys.data();
  find.keys.shards = &shard;
  find.bags = &bags;
  find.pooled = pooled.get();
  find.stride = kDim;
  if (GetParam().on_device) {
    const auto* const on_device = static_cast<const DeviceStore*>(shard);
    ASSERT_TRUE(on_device->FindPooled(context, &find, 1).ok());
  } else {
    ASSERT_TRUE(FindPooled(context, &find, 1).ok());
  }
  std::vector<float> wanted[2];
  for (size_t k = 0; k < 2; ++k) {
    for (size_t j = 0; j < kDim; ++j) wanted[k].push_back(Number<Half>::Load(rows.Of(3 + k)[j]));
  }
  for (size_t i = 0; i < kKeys; ++i) {
    const float* const row = wanted[keys[i] - 3].data();
    ASSERT_EQ(0, std::memcmp(row, &pooled[i * kDim], kDim * sizeof(float))) << "bag " << i;
  }
}

// Stores in host memory and on a device. Instruction sets have no effect on offsets.
std::vector<StoreKind> Kinds() {
  const std::vector<StoreKind> all = AllStores();
  return {all.front(), all.back()};
}

INSTANTIATE_TEST_SUITE_P(Stores, LargeBatch, testing::ValuesIn(Kinds()), NameOfStore);

}  // namespace
}  // namespace tf_embed
