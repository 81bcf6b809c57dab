// SPDX-License-Identifier: Apache-2.0
// A DeviceWritePlanner over an empty store: the keys of a batch that want rows, and the keys that
// get rows.
#include "cc/stores/device/device_write_planner.h"

#include <memory>
#include <vector>

#include "cc/stores/device/emulated_device.h"
#include "gtest/gtest.h"

namespace tf_embed {
namespace {

class DeviceWritePlannerTest : public testing::Test {
 protected:
  using Content = DeviceContent<EmulatedDevice>;

  void Begin(const RowPolicy& policy) {
    policy_ = policy.WithNeeds();
    const RowLayout layout(DataType::kFloat, 2, 0, policy_.statistics.size());
    content_ = std::make_unique<Content>(device_, options_, layout, RowInitializer());
    const float initial_row[2] = {};
    ASSERT_TRUE(content_->Begin(context_, initial_row));
  }

  // The keys that want rows, by their first positions.
  std::vector<int64_t> Survey(const std::vector<int64_t>& keys, Admits admits = Admits::kCounted,
                              const bool* exists = nullptr) {
    batch_ = KeyBatch{keys.data(), keys.size(), nullptr};
    groups_ = std::make_unique<EmulatedDevice::Groups>(device_.NewGroups(context_));
    EXPECT_TRUE(device_.Group(context_, batch_, groups_.get()).ok());
    rows_.assign(keys.size(), 0);
    wanted_.assign(keys.size() + 1, 0);
    planner_ = std::make_unique<DeviceWritePlanner<EmulatedDevice>>(
        context_, device_, policy_, HostAllocator(), content_.get(), &tallies_, &held_back_,
        nullptr);
    EXPECT_TRUE(
        planner_->Survey(batch_, groups_->view(), exists, admits, rows_.data(), wanted_.data())
            .ok());
    return Marked(wanted_);
  }

  // The surveyed keys that get rows in a store of at most `max_rows`.
  std::vector<int64_t> Choose(const int64_t* scores = nullptr) {
    batch_.scores = scores;
    coming_.assign(batch_.size + 1, 0);
    EXPECT_TRUE(planner_
                    ->Choose(batch_, groups_->view(), NewRows{wanted_.data(), policy_.max_rows},
                             coming_.data())
                    .ok());
    return Marked(coming_);
  }

  std::vector<int64_t> Marked(const std::vector<uint32_t>& sums) const {
    std::vector<int64_t> marked;
    for (size_t i = 0; i < batch_.size; ++i) {
      if (sums[i + 1] != sums[i]) marked.push_back(batch_.keys[i]);
    }
    return marked;
  }

  using Keys = std::vector<int64_t>;
  const EmulatedDevice device_{HostAllocator()};
  const DeviceOptions options_;
  ExecContext context_ = ExecContext::Serial();
  RowPolicy policy_;
  std::unique_ptr<Content> content_;
  StoreTallies tallies_;
  std::atomic<uint64_t> held_back_{0};
  KeyBatch batch_;
  std::unique_ptr<EmulatedDevice::Groups> groups_;
  std::unique_ptr<DeviceWritePlanner<EmulatedDevice>> planner_;
  std::vector<uint32_t> rows_, wanted_, coming_;
};

RowPolicy Bounded(size_t max_rows, EvictionOrder order = EvictionOrder::kLru) {
  RowPolicy policy;
  policy.max_rows = max_rows;
  policy.eviction = order;
  return policy;
}

TEST_F(DeviceWritePlannerTest, EachAbsentKeyWantsOneRow) {
  Begin(Bounded(10));
  const Keys keys = {5, 5, 7, -1, 7};
  EXPECT_EQ((Keys{5, 7, -1}), Survey(keys));
}

TEST_F(DeviceWritePlannerTest, AVerbMayWantNoRow) {
  Begin(Bounded(10));
  const Keys keys = {5, 6, 6};
  const bool exists[] = {true, true, false};
  const Keys wanted = Survey(keys, Admits::kAll, exists);
  EXPECT_EQ((Keys{6}), wanted) << "one of its positions says that it is absent";
}

TEST_F(DeviceWritePlannerTest, TheFirstKeysOfTheBatchGetTheRoom) {
  Begin(Bounded(2));
  const Keys keys = {9, 9, 3, 4, 1};
  ASSERT_EQ((Keys{9, 3, 4, 1}), Survey(keys));
  EXPECT_EQ((Keys{9, 3}), Choose());
  EXPECT_EQ(0u, tallies_.evicted);
}

TEST_F(DeviceWritePlannerTest, AdmissionCountsPeeksAndForgets) {
  RowPolicy policy = Bounded(1);
  policy.admission = Admission::NewCounter(HostAllocator(), 2, 0);
  Begin(policy);
  const Keys keys = {7, 8};
  EXPECT_EQ(Keys(), Survey(keys));
  EXPECT_EQ(2u, held_back_);
  EXPECT_EQ((Keys{7, 8}), Survey(keys, Admits::kPeeked));
  EXPECT_EQ(2u, held_back_) << "a peek counts nothing";
  EXPECT_EQ((Keys{7, 8}), Survey(keys, Admits::kAll));
  ASSERT_EQ((Keys{7, 8}), Survey(keys));
  ASSERT_TRUE(planner_->ReserveCandidates(keys.size()).ok());
  ASSERT_EQ((Keys{7}), Choose());
  ASSERT_TRUE(planner_->ForgetAdmitted(batch_, NewRows{coming_.data(), 1}).ok());
  EXPECT_EQ((Keys{8}), Survey(keys, Admits::kPeeked)) << "the one that got a row begins anew";
}

TEST_F(DeviceWritePlannerTest, TheHighestScoresGetTheRoom) {
  Begin(Bounded(2, EvictionOrder::kScore));
  const Keys keys = {1, 2, 3};
  const int64_t scores[] = {-1, 5, 3};
  ASSERT_EQ((Keys{1, 2, 3}), Survey(keys));
  EXPECT_EQ((Keys{2, 3}), Choose(scores));
}

}  // namespace
}  // namespace tf_embed
