// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_groups.h"

#include <mutex>

#include "tests/cc/support/reference_store.h"

namespace tf_embed {
namespace {

struct Group {
  int64_t key;
  std::vector<uint32_t> positions;
  bool operator==(const Group& other) const {
    return key == other.key && positions == other.positions;
  }
};

// The groups of keys that are not skipped, in the order of their first positions.
std::vector<Group> Expected(const Batch& batch, const bool* skip) {
  std::vector<Group> groups;
  std::map<int64_t, size_t> number;
  for (size_t i = 0; i < batch.size(); ++i) {
    const size_t position = batch.Position(i);
    if (skip != nullptr && skip[position]) continue;
    if (number.emplace(batch.keys[i], groups.size()).second) groups.push_back({batch.keys[i], {}});
    groups[number[batch.keys[i]]].positions.push_back(static_cast<uint32_t>(position));
  }
  return groups;
}

void Check(const Batch& batch, const bool* skip, bool distinct = false) {
  KeyBatch keys = batch;
  keys.distinct = distinct;
  for (const size_t threads : {1, 3}) {
    const ExecContext context = threads == 1 ? ExecContext::Serial() : Threads(threads);
    KeyGroups groups(HostAllocator());
    ASSERT_TRUE(groups.Build(context, keys, skip).ok());
    std::vector<std::vector<Group>> ranges;
    std::mutex mutex;
    const Status status = groups.ForEachRange(context, 1000, [&](KeyGroups::Range* range) {
      std::vector<Group> seen;
      while (range->Next()) {
        for (size_t i = 0; i < range->size(); ++i) {
          const KeyGroup& group = (*range)[i];
          seen.push_back({group.key, {group.positions, group.positions + group.count}});
        }
      }
      std::lock_guard<std::mutex> lock(mutex);
      ranges.push_back(std::move(seen));
      return Status();
    });
    ASSERT_TRUE(status.ok());
    // Ranges are in any order. The groups within a range are in batch order.
    const std::vector<Group> expected = Expected(batch, skip);
    std::map<int64_t, size_t> number;
    for (size_t i = 0; i < expected.size(); ++i) number[expected[i].key] = i;
    size_t found = 0;
    for (const std::vector<Group>& range : ranges) {
      for (size_t i = 0; i < range.size(); ++i, ++found) {
        ASSERT_EQ(1u, number.count(range[i].key));
        ASSERT_TRUE(expected[number[range[i].key]] == range[i]) << range[i].key;
        if (i > 0) {
          EXPECT_EQ(number[range[i - 1].key] + 1, number[range[i].key]);
        }
      }
    }
    EXPECT_EQ(expected.size(), found);
  }
}

TEST(KeyGroups, GroupsEqualKeysInTheOrderOfTheBatch) {
  Random random(1);
  for (const size_t size : {0, 1, 2, 511, 512, 513, 4096, 4097, 40000}) {
    for (const int64_t largest : {0, 5, 1000000}) {
      const Batch batch = RandomKeys(size, -largest, largest, &random);
      Check(batch, nullptr);
      Check(Scattered(batch, &random), nullptr);
    }
  }
}

TEST(KeyGroups, LeavesOutWhatIsSkipped) {
  Random random(2);
  for (const size_t size : {1, 100, 20000}) {
    const Batch batch = Scattered(RandomKeys(size, -300, 300, &random), &random);
    const auto skip = std::make_unique<bool[]>(batch.places);
    for (size_t i = 0; i < batch.places; ++i) skip[i] = random() % 3 == 0;
    Check(batch, skip.get());
    std::fill_n(skip.get(), batch.places, true);
    Check(batch, skip.get());
  }
}

TEST(KeyGroups, TakesKeysAsDistinctWhereTheBatchSaysSo) {
  Random random(3);
  for (const size_t size : {0, 1, 511, 512, 513, 20000}) {
    const Batch batch = Scattered(KeysFrom(-100, size), &random);
    Check(KeysFrom(-100, size), nullptr, /*distinct=*/true);
    Check(batch, nullptr, /*distinct=*/true);
    const auto skip = std::make_unique<bool[]>(batch.places);
    for (size_t i = 0; i < batch.places; ++i) skip[i] = random() % 3 == 0;
    Check(batch, skip.get(), /*distinct=*/true);
  }
}

TEST(KeyGroups, VisitsOnlyTheGroupsThatAreKept) {
  const Batch batch = KeysFrom(0, 5000);
  const KeyGroups::Keeps keeps = [](const KeyGroup& group) {
    return group.key == 7 || group.key >= 4990;
  };
  for (const bool distinct : {false, true}) {
    KeyBatch keys = batch;
    keys.distinct = distinct;
    KeyGroups groups(HostAllocator());
    ASSERT_TRUE(groups.Build(ExecContext::Serial(), keys, nullptr).ok());
    std::vector<int64_t> visited;
    const auto visit = [&](KeyGroups::Range* range) {
      while (range->Next()) {
        for (size_t i = 0; i < range->size(); ++i) visited.push_back((*range)[i].key);
      }
      return Status();
    };
    ASSERT_TRUE(groups.ForEachRange(ExecContext::Serial(), 1, visit, &keeps).ok());
    const std::vector<int64_t> expected = {7,    4990, 4991, 4992, 4993, 4994,
                                           4995, 4996, 4997, 4998, 4999};
    EXPECT_EQ(expected, visited);
  }
}

TEST(KeyGroups, GivesTheFirstFailureAndBeginsNoFurtherRange) {
  const Batch batch = KeysFrom(0, 40000);
  KeyGroups groups(HostAllocator());
  ASSERT_TRUE(groups.Build(ExecContext::Serial(), batch, nullptr).ok());
  ExecContext by_hundreds;
  by_hundreds.parallel_for = [](size_t total, size_t, const ExecContext::Work& work) {
    for (size_t i = 0; i < total; i += 100) work(i, i + 100);
  };
  int begun = 0;
  const Status status = groups.ForEachRange(by_hundreds, 1, [&](KeyGroups::Range*) {
    return ++begun < 5 ? Status() : Status::InvalidArgument("the fifth");
  });
  EXPECT_EQ("the fifth", status.message());
  EXPECT_EQ(5, begun);
}

}  // namespace
}  // namespace tf_embed
