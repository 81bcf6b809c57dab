// SPDX-License-Identifier: Apache-2.0
// Tables over two and three tiers of each kind, for their tests.
#ifndef TF_EMBED_TESTS_CC_TIERED_TIERED_TABLES_H_
#define TF_EMBED_TESTS_CC_TIERED_TIERED_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "cc/tiered/tiered_table.h"
#include "gtest/gtest.h"
#include "tests/cc/support/policy_simulation.h"
#include "tests/cc/support/test_tables.h"

namespace tf_embed {

// The place of the cache, and the tier below it.
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

class TieredTableTest : public testing::TestWithParam<CacheKind> {
 protected:
  static TableOptions Options(size_t dim = kDim) {
    TableOptions options;
    options.name = "items";
    options.dim = dim;
    options.initializer = UniformInitializer();
    return options;
  }

  void SetUp() override {
    table = NewTieredTable(Options(), 8, &store, GetParam().new_cache, GetParam().new_lower);
    ASSERT_NE(nullptr, table);
  }

  static std::vector<int64_t> KeysUpTo(int64_t count) {
    std::vector<int64_t> keys(static_cast<size_t>(count));
    std::iota(keys.begin(), keys.end(), 0);
    return keys;
  }
  void Put(const Batch& batch, float weight) {
    const std::vector<float> weights(batch.size() * kDim, weight);
    ASSERT_TRUE(table->InsertOrAssign(context, batch, weights.data(), {}).ok());
  }
  std::vector<float> Get(const Batch& batch) {
    std::vector<float> weights(batch.size() * kDim);
    EXPECT_TRUE(table->Find(context, batch, DefaultRows(), weights.data(), nullptr, {}).ok());
    return weights;
  }

  ExecContext context = ExecContext::Serial();
  FaultyStore* store = nullptr;  // of `table`
  std::unique_ptr<TieredTable> table;
};

// The first key that is in the store alone.
inline int64_t ColdKey(const FaultyStore& store, const std::vector<int64_t>& keys) {
  for (const int64_t key : keys) {
    bool exists;
    store.Contains(&key, 1, &exists);
    if (exists) return key;
  }
  ADD_FAILURE() << "there is none";
  return 0;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_TIERED_TIERED_TABLES_H_
