// SPDX-License-Identifier: Apache-2.0
// The verbs that many threads at once may run on a lower tier.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_TIER_THREADS_H_
#define TF_EMBED_TESTS_CC_SUPPORT_TIER_THREADS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "cc/core/store/lower_tier.h"
#include "gtest/gtest.h"
#include "tests/cc/support/tier_oracle.h"

namespace tf_embed {

struct TierThreads {
  using After = LowerTier::After;

  // The rows of the tier are floats.
  static constexpr size_t kDim = 60;
  static constexpr size_t kBytes = kDim * sizeof(float);
  static constexpr int64_t kKeys = 3000;

  // Runs writers of different keys, readers, scans and compactions. Rows are whole, and no row is
  // lost. `forgets`: whether the tier may forget shared rows.
  static void ReadAndWrite(LowerTier* tier, bool forgets);
  // Changes rules and clears the tier while other threads read and write.
  static void ChangeTheRule(LowerTier* tier);

  // A row begins with its version, and the rest is a function of version and key. So a row of
  // another key, or a torn row, is detected.
  static void Make(int64_t key, uint64_t version, char* row) {
    std::memcpy(row, &version, sizeof(version));
    FillRow(key, version, row + sizeof(version), kBytes - sizeof(version));
  }
  static bool IsWhole(int64_t key, const char* row, uint64_t* version) {
    char wanted[kBytes];
    std::memcpy(version, row, sizeof(*version));
    Make(key, *version, wanted);
    return std::memcmp(wanted, row, kBytes) == 0;
  }
};

inline void TierThreads::ReadAndWrite(LowerTier* tier, bool forgets) {
  // Each writer has different keys, and knows the version of each key. 0 means absent.
  constexpr int kWriters = 3;
  constexpr int kRounds = 150;
  std::vector<uint64_t> versions(kKeys, 0);
  std::atomic<int> writing{kWriters};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      std::mt19937_64 random(static_cast<uint64_t>(writer));
      WholeRows rows(HostAllocator());
      for (uint64_t round = 1; round <= kRounds; ++round) {
        std::vector<int64_t> keys;
        for (int64_t key = writer; key < kKeys; key += kWriters) {
          if (random() % 4 == 0) keys.push_back(key);
        }
        if (round % 5 == 0) {
          tier->Erase(keys.data(), keys.size());
          for (const int64_t key : keys) versions[static_cast<size_t>(key)] = 0;
          continue;
        }
        ASSERT_TRUE(rows.Resize(keys.size(), kBytes, 0, 0).ok());
        rows.size = keys.size();
        for (size_t i = 0; i < keys.size(); ++i) {
          rows.keys[i] = keys[i];
          Make(keys[i], round, rows.weights.data() + i * kBytes);
          versions[static_cast<size_t>(keys[i])] = round;
        }
        ASSERT_TRUE(tier->Put(ExecContext::Serial(), rows).ok());
        // The rows of the Put are present. They stay cold if Put may make the tier forget shared
        // rows, because there is no cache that would have them.
        const After after = round % 2 == 0 && !forgets ? After::kShared : After::kCold;
        ASSERT_TRUE(tier->Get(ExecContext::Serial(), keys.data(), keys.size(), after, &rows).ok());
        ASSERT_EQ(keys.size(), rows.size);
        for (size_t i = 0; i < rows.size; ++i) {
          uint64_t version = 0;
          EXPECT_TRUE(IsWhole(rows.keys[i], rows.weights.data() + i * kBytes, &version));
          EXPECT_EQ(versions[static_cast<size_t>(rows.keys[i])], version);
        }
        if (after == After::kShared) tier->Unshare(keys.data(), keys.size(), nullptr);
      }
      --writing;
    });
  }
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&, reader] {
      std::mt19937_64 random(static_cast<uint64_t>(100 + reader));
      WholeRows rows(HostAllocator());
      while (writing > 0) {
        std::vector<int64_t> keys;
        for (int64_t key = 0; key < kKeys; ++key) {
          if (random() % 8 == 0) keys.push_back(key);
        }
        const auto exists = std::make_unique<bool[]>(keys.size() + 1);
        tier->Contains(keys.data(), keys.size(), exists.get());
        ASSERT_TRUE(
            tier->Get(ExecContext::Serial(), keys.data(), keys.size(), After::kCold, &rows).ok());
        std::vector<int64_t> got;
        for (size_t i = 0; i < rows.size; ++i) {
          uint64_t version = 0;
          EXPECT_TRUE(IsWhole(rows.keys[i], rows.weights.data() + i * kBytes, &version));
          got.push_back(rows.keys[i]);
        }
        std::sort(got.begin(), got.end());
        EXPECT_TRUE(std::adjacent_find(got.begin(), got.end()) == got.end());
        tier->Stats();
      }
    });
  }
  threads.emplace_back([&] {
    WholeRows rows(HostAllocator());
    while (writing > 0) {
      ASSERT_TRUE(tier->Compact(ExecContext::Serial()).ok());
      for (ExportCursor cursor; !cursor.done;) {
        ASSERT_TRUE(tier->Scan(500, &cursor, &rows).ok());
        for (size_t i = 0; i < rows.size; ++i) {
          uint64_t version = 0;
          EXPECT_TRUE(IsWhole(rows.keys[i], rows.weights.data() + i * kBytes, &version));
        }
      }
    }
  });
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(0u, tier->shared());
  std::vector<int64_t> keys;
  size_t present = 0;
  for (int64_t key = 0; key < kKeys; ++key) {
    keys.push_back(key);
    present += versions[static_cast<size_t>(key)] > 0;
  }
  EXPECT_EQ(present, tier->size());
  WholeRows rows(HostAllocator());
  ASSERT_TRUE(tier->Get(ExecContext::Serial(), keys.data(), keys.size(), After::kCold, &rows).ok());
  ASSERT_EQ(present, rows.size);
  for (size_t i = 0; i < rows.size; ++i) {
    uint64_t version = 0;
    EXPECT_TRUE(IsWhole(rows.keys[i], rows.weights.data() + i * kBytes, &version));
    EXPECT_EQ(versions[static_cast<size_t>(rows.keys[i])], version);
  }
}

inline void TierThreads::ChangeTheRule(LowerTier* tier) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&, number] {
      WholeRows rows(HostAllocator());
      std::vector<int64_t> keys;
      for (int64_t key = 0; key < 1000; ++key) keys.push_back(key * 3 + number);
      while (!done) {
        // Enough slots for each of the rules.
        ASSERT_TRUE(rows.Resize(keys.size(), kBytes, 2 * kBytes, 0).ok());
        std::memset(rows.slots.data(), 0, keys.size() * 2 * kBytes);
        rows.size = keys.size();
        for (size_t i = 0; i < keys.size(); ++i) {
          rows.keys[i] = keys[i];
          Make(keys[i], 1, rows.weights.data() + i * kBytes);
        }
        ASSERT_TRUE(tier->Put(ExecContext::Serial(), rows).ok());
        ASSERT_TRUE(
            tier->Get(ExecContext::Serial(), keys.data(), keys.size(), After::kShared, &rows).ok());
        for (size_t i = 0; i < rows.size; ++i) {
          uint64_t version = 0;
          EXPECT_TRUE(IsWhole(rows.keys[i], rows.weights.data() + i * kBytes, &version));
        }
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    ASSERT_TRUE(
        tier->SetRule(round % 2 == 0 ? FusedSlots(RuleKind::kAdam, kDim) : RuleSlots()).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (round % 4 == 3) {
      ASSERT_TRUE(tier->Clear().ok());
    }
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(tier->Clear().ok());
  EXPECT_EQ(0u, tier->size());
  EXPECT_EQ(0u, tier->shared());
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_TIER_THREADS_H_
