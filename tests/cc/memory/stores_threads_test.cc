// SPDX-License-Identifier: Apache-2.0
// Many threads at once in a store in host memory, alone and over a store on disk.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/cc/support/store_threads.h"
#include "tests/cc/support/tiered_tables.h"

namespace tf_embed {
namespace {

struct Kind {
  const char* name;
  NewLower create;
  size_t rows;  // within the bound, if there is one
};
const Kind kKinds[] = {
    {"HostStore", NewHostLower, 0},
    {"HostTierOfFewRows", NewHostOverDisk, 100},
    {"HostTierOfManyRows", NewHostOverDisk, 1000},
};

class Threads : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    TableOptions options;
    options.name = "items";
    options.dim = StoreThreads::kDim;
    ASSERT_TRUE(GetParam().create(options, StatisticSet(), GetParam().rows, &store_).ok());
  }
  std::unique_ptr<BackingStore> store_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, Threads, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Threads, GetWholeRowsAndNoneIsLost) {
  StoreThreads::ReadAndWrite(store_.get(), GetParam().rows > 0);
}

TEST_P(Threads, MayChangeTheRuleAndClear) { StoreThreads::ChangeTheRule(store_.get()); }

}  // namespace
}  // namespace tf_embed
