// SPDX-License-Identifier: Apache-2.0
#include "cc/core/policy/admission.h"

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/hash.h"
#include "cc/core/files/crc32c.h"
#include "gtest/gtest.h"

namespace tf_embed {
namespace {

bool CountOne(Admission* admission, int64_t key) {
  bool admitted;
  EXPECT_TRUE(admission->Count(&key, 1, &admitted).ok());
  return admitted;
}

TEST(Admission, KeysOfHashesAreTheirKeys) {
  std::mt19937_64 random(1);
  for (int64_t key : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(key, KeyOfHash(HashKey(key)));
  }
  for (int i = 0; i < 10000; ++i) {
    const int64_t key = static_cast<int64_t>(random());
    ASSERT_EQ(key, KeyOfHash(HashKey(key)));
  }
}

TEST(Admission, ThresholdOneAdmitsAtOnce) {
  const auto counter = Admission::NewCounter(HostAllocator(), 1, 0);
  const auto bloom = Admission::NewBloom(HostAllocator(), 1, 0.01, 0);
  EXPECT_TRUE(CountOne(counter.get(), 5));
  EXPECT_TRUE(CountOne(bloom.get(), 5));
}

TEST(Admission, ACounterIsExactAndForgetsWhoIsAdmitted) {
  const auto counter = Admission::NewCounter(HostAllocator(), 4, 0);
  std::map<int64_t, int> counts;
  std::mt19937_64 random(2);
  for (int i = 0; i < 200000; ++i) {
    const int64_t key = static_cast<int64_t>(random() % 30000) - 15000;
    bool peeked;
    counter->Peek(&key, 1, &peeked);
    const bool expected = ++counts[key] == 4;
    if (expected) counts[key] = 0;
    ASSERT_EQ(expected, peeked);
    ASSERT_EQ(expected, CountOne(counter.get(), key));
    if (expected) {
      ASSERT_TRUE(CountOne(counter.get(), key)) << "until its row comes";
      counter->Forget(&key, 1);
    }
  }
}

TEST(Admission, BloomFiltersAreNeverLateAndInErrorAsSeldomAsStated) {
  for (const uint32_t threshold : {2u, 3u, 5u, 17u, 40u}) {
    for (const double error_rate : {0.1, 0.01}) {
      const auto bloom = Admission::NewBloom(HostAllocator(), threshold, error_rate, 0);
      constexpr int64_t kKeys = 100000;  // more than the first filter's capacity
      size_t early = 0;
      for (uint32_t time = 1; time <= threshold; ++time) {
        early = 0;
        for (int64_t key = 0; key < kKeys; ++key) {
          const bool admitted = CountOne(bloom.get(), key * 977);
          early += admitted ? 1 : 0;
          ASSERT_TRUE(admitted || time < threshold) << "late";
        }
        if (time + 1 == threshold) {
          EXPECT_LE(static_cast<double>(early) / kKeys, error_rate) << threshold;
        }
      }
    }
  }
}

TEST(Admission, BloomFiltersTakeLessThanACounter) {
  const auto counter = Admission::NewCounter(HostAllocator(), 2, 0);
  const auto bloom = Admission::NewBloom(HostAllocator(), 2, 0.01, 0);
  for (int64_t key = 0; key < 1000000; ++key) {
    CountOne(counter.get(), key);
    CountOne(bloom.get(), key);
  }
  EXPECT_LT(bloom->bytes(), counter->bytes() / 2);
}

TEST(Admission, KeysThatWaitAreForgottenWhenSoManyOthersHaveCome) {
  for (const auto& admission : {Admission::NewCounter(HostAllocator(), 2, 1000),
                                Admission::NewBloom(HostAllocator(), 2, 0.001, 1000)}) {
    int64_t next = 1;
    const auto others = [&](int count) {
      for (int i = 0; i < count; ++i) CountOne(admission.get(), ++next);
    };
    others(100000);
    const size_t bytes = admission->bytes();
    EXPECT_FALSE(CountOne(admission.get(), -1));
    others(450);
    EXPECT_TRUE(CountOne(admission.get(), -1)) << "within half of max_keys";
    EXPECT_FALSE(CountOne(admission.get(), -2));
    others(2000);
    EXPECT_FALSE(CountOne(admission.get(), -2)) << "forgotten";
    others(100000);
    EXPECT_LE(admission->bytes(), bytes + bytes / 2);
  }
}

TEST(Admission, OneKeyMayWaitAtMost) {
  for (const bool is_forgotten : {false, true}) {
    const auto counter = Admission::NewCounter(HostAllocator(), 2, 1);
    EXPECT_FALSE(CountOne(counter.get(), 1));
    EXPECT_FALSE(CountOne(counter.get(), 2));  // begins a generation; 1 is in the old generation
    const int64_t key = 1;
    if (is_forgotten) counter->Forget(&key, 1);
    EXPECT_EQ(!is_forgotten, CountOne(counter.get(), key));
  }
}

TEST(Admission, SavedNumbersAreThoseOfEarlierVersions) {
  const auto bloom = Admission::NewBloom(HostAllocator(), 4, 0.01, 100);
  for (int64_t key = 0; key < 120; ++key) CountOne(bloom.get(), key % 90 * 1000003 - 5);
  std::vector<int64_t> numbers;
  ASSERT_TRUE(bloom->Save(&numbers).ok());
  EXPECT_EQ(805323574u, ExtendCrc32c(0, numbers.data(), numbers.size() * sizeof(int64_t)));
}

TEST(Admission, SavesAndLoads) {
  std::mt19937_64 random(3);
  for (const uint32_t threshold : {3u, 100u}) {
    for (const bool exact : {true, false}) {
      const auto make = [&] {
        return exact ? Admission::NewCounter(HostAllocator(), threshold, 0)
                     : Admission::NewBloom(HostAllocator(), threshold, 0.01, 0);
      };
      const auto saved = make(), loaded = make();
      for (int i = 0; i < 100000; ++i)
        CountOne(saved.get(), static_cast<int64_t>(random() % 80000));
      std::vector<int64_t> numbers;
      ASSERT_TRUE(saved->Save(&numbers).ok());
      ASSERT_TRUE(loaded->Load(numbers.data(), numbers.size()).ok());
      for (int64_t key = 0; key < 80000; ++key) {
        bool a, b;
        saved->Peek(&key, 1, &a);
        loaded->Peek(&key, 1, &b);
        ASSERT_EQ(a, b);
      }
      for (const size_t length : {size_t{0}, size_t{1}, size_t{3}, numbers.size() - 1}) {
        EXPECT_FALSE(loaded->Load(numbers.data(), length).ok()) << length;
      }
      numbers.push_back(0);
      EXPECT_FALSE(loaded->Load(numbers.data(), numbers.size()).ok());
      const auto other = exact ? Admission::NewBloom(HostAllocator(), threshold, 0.01, 0)
                               : Admission::NewCounter(HostAllocator(), threshold, 0);
      numbers.pop_back();
      EXPECT_FALSE(other->Load(numbers.data(), numbers.size()).ok());
    }
  }
}

TEST(Admission, WhatOwnersCountedIsMerged) {
  constexpr size_t kOwners = 3;
  for (const size_t max_keys : {size_t{0}, size_t{40000}}) {
    for (const bool exact : {true, false}) {
      const auto make = [&] {
        return exact ? Admission::NewCounter(HostAllocator(), 4, max_keys)
                     : Admission::NewBloom(HostAllocator(), 4, 0.001, max_keys);
      };
      const auto all = make();
      std::vector<std::shared_ptr<Admission>> owners;
      std::vector<size_t> times(300000);
      std::mt19937_64 random(4);
      for (size_t owner = 0; owner < kOwners; ++owner) owners.push_back(make());
      // The shares are unequal, so the first owner has more filters than the others.
      const size_t num_keys = max_keys > 0 ? 15000 : 150000;
      for (size_t i = 0; i < num_keys * 2; ++i) {
        const size_t key = random() % num_keys;
        if (times[key] == 3) continue;
        CountOne(owners[key % 7 < 5 ? 0 : 1 + key % 7 - 5].get(), static_cast<int64_t>(key));
        ++times[key];
      }
      for (const auto& owner : owners) ASSERT_TRUE(all->Merge(*owner).ok());
      size_t early = 0;
      for (size_t key = 0; key < num_keys; ++key) {
        const int64_t number = static_cast<int64_t>(key);
        bool admitted;
        all->Peek(&number, 1, &admitted);
        const bool expected = times[key] == 3;
        if (exact) {
          ASSERT_EQ(expected, admitted) << key;
        }
        ASSERT_TRUE(admitted || !expected) << "late";
        early += admitted != expected ? 1 : 0;
      }
      EXPECT_LE(static_cast<double>(early), 0.01 * static_cast<double>(num_keys));
      std::vector<int64_t> numbers, keys;
      ASSERT_TRUE(all->Save(&numbers).ok());
      Admission::SavedKeys(numbers, &keys);
      std::set<int64_t> expected_keys;
      for (size_t key = 0; key < num_keys && exact; ++key) {
        if (times[key] > 0) expected_keys.insert(static_cast<int64_t>(key));
      }
      EXPECT_EQ(expected_keys, std::set<int64_t>(keys.begin(), keys.end()));
    }
  }
}

TEST(Admission, EachCellOfAFilterIsMerged) {
  for (int64_t key = 0; key < 64; ++key) {  // each filter has two cells
    const auto make = [] { return Admission::NewBloom(HostAllocator(), 2, 0.99, 2); };
    const auto all = make(), owner = make();
    CountOne(owner.get(), key);
    ASSERT_TRUE(all->Merge(*owner).ok());
    bool admitted;
    all->Peek(&key, 1, &admitted);
    EXPECT_TRUE(admitted) << key;
  }
}

TEST(Admission, FiltersOfAllGenerationsMustFitInMemory) {
  // 31 hashes, which need 44.7 cells of 2 bytes for each key of a generation: half of the memory. A
  // second filter would take the other half.
  const size_t max_keys = PhysicalMemoryBytes() / 90;
  EXPECT_EQ(nullptr, Admission::NewBloom(HostAllocator(), 65535, 1e-9, max_keys));
  EXPECT_NE(nullptr, Admission::NewBloom(HostAllocator(), 65535, 1e-9, max_keys / 1000));
}

TEST(Admission, CountsOfOtherKindsAreNotMerged) {
  const auto counter = Admission::NewCounter(HostAllocator(), 3, 0);
  const auto bloom = Admission::NewBloom(HostAllocator(), 3, 0.01, 0);
  const auto finer = Admission::NewBloom(HostAllocator(), 3, 0.001, 0);
  const auto wider = Admission::NewBloom(HostAllocator(), 300, 0.01, 0);
  for (const auto& one : {counter, bloom, finer, wider}) CountOne(one.get(), 1);
  EXPECT_FALSE(counter->Merge(*bloom).ok());
  for (const auto& one : {counter, finer, wider}) EXPECT_FALSE(bloom->Merge(*one).ok());
  CountOne(bloom.get(), 1);
  EXPECT_TRUE(CountOne(bloom.get(), 1)) << "as before";
}

}  // namespace
}  // namespace tf_embed
