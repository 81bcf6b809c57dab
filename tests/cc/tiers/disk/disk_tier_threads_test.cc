// SPDX-License-Identifier: Apache-2.0
// Many threads in a tier on disk at once.
#include <memory>
#include <string>

#include "cc/tiers/disk/disk_tier.h"
#include "gtest/gtest.h"
#include "tests/cc/support/disk_tier_oracle.h"
#include "tests/cc/support/tier_threads.h"

namespace tf_embed {
namespace {

class Threads : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    DiskTierOptions options;
    options.path = folder_.path();
    options.name = "items-0";
    options.dim = TierThreads::kDim;
    options.buffer_bytes = 32 << 10;
    options.use_io_uring = GetParam();
    ASSERT_TRUE(DiskTier::Open(options, &tier_).ok());
  }
  TempFolder folder_;
  std::unique_ptr<DiskTier> tier_;
};
INSTANTIATE_TEST_SUITE_P(Readers, Threads, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "IoUring" : "Pread");
});

TEST_P(Threads, GetWholeRowsAndNoneIsLost) {
  TierThreads::ReadAndWrite(tier_.get(), /*forgets=*/false);
  // The space of all garbage is freed.
  ASSERT_TRUE(tier_->Compact(ExecContext::Serial()).ok());
  const LowerTierStats stats = tier_->Stats();
  EXPECT_LE(stats.disk_bytes, 2 * stats.live_bytes + (64 << 10));
}

TEST_P(Threads, MayChangeTheRuleAndClear) {
  TierThreads::ChangeTheRule(tier_.get());
  EXPECT_EQ(0u, tier_->Stats().disk_bytes);
}

}  // namespace
}  // namespace tf_embed
