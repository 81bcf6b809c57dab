// SPDX-License-Identifier: Apache-2.0
// Stores over two or three tiers of each kind, for their tests.
#ifndef TF_EMBED_TESTS_CC_STORES_TIERED_TIERED_STORES_H_
#define TF_EMBED_TESTS_CC_STORES_TIERED_TIERED_STORES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "cc/stores/tiered/tiered_store.h"
#include "gtest/gtest.h"
#include "tests/cc/support/policy_simulation.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {

// The place of the cache, and the tiers below it.
struct CacheKind {
  const char* name;
  NewCache new_cache;
  NewLower new_lower;
};
inline const CacheKind kCaches[] = {{"OnHost", NewHostCache, NewHostLower},
                                    {"OnHostOverDisk", NewHostCache, NewDiskLower},
                                    {"OnDevice", NewDeviceCache, NewHostLower},
                                    {"ThreeTiers", NewDeviceCache, NewHostOverDisk}};
inline std::string NameOfCache(const testing::TestParamInfo<CacheKind>& info) {
  return info.param.name;
}
inline void PrintTo(const CacheKind& kind, std::ostream* out) { *out << kind.name; }

class TieredStoreTest : public testing::TestWithParam<CacheKind> {
 protected:
  static StoreOptions Options(size_t dim = kDim) {
    StoreOptions options;
    options.name = "items";
    options.dim = dim;
    options.initializer = UniformInitializer();
    return options;
  }

  void SetUp() override {
    store = NewTieredStore(Options(), 8, &lower, GetParam().new_cache, GetParam().new_lower);
    ASSERT_NE(nullptr, store);
  }

  static std::vector<int64_t> KeysUpTo(int64_t count) {
    std::vector<int64_t> keys(static_cast<size_t>(count));
    std::iota(keys.begin(), keys.end(), 0);
    return keys;
  }
  void Put(const Batch& batch, float weight) {
    const std::vector<float> weights(batch.size() * kDim, weight);
    ASSERT_TRUE(store->InsertOrAssign(context, batch, weights.data(), {}).ok());
  }
  std::vector<float> Get(const Batch& batch) {
    std::vector<float> weights(batch.size() * kDim);
    EXPECT_TRUE(store->Find(context, batch, DefaultRows(), weights.data(), nullptr, {}).ok());
    return weights;
  }

  ExecContext context = ExecContext::Serial();
  FaultyTier* lower = nullptr;  // the lower tier of `store`
  std::unique_ptr<TieredStore> store;
};

// The first key that is in the lower tier alone.
inline int64_t ColdKey(const FaultyTier& lower, const std::vector<int64_t>& keys) {
  for (const int64_t key : keys) {
    bool exists;
    lower.Contains(&key, 1, &exists);
    if (exists) return key;
  }
  ADD_FAILURE() << "there is none";
  return 0;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_STORES_TIERED_TIERED_STORES_H_
