// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/string_keys.h"

#include <map>
#include <set>
#include <string>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

using Strings = std::vector<std::string>;

StringBatch BatchOf(const Strings& strings) {
  return {strings.data(), strings.size(), [](const void* strings, size_t i) {
            return std::string_view(static_cast<const std::string*>(strings)[i]);
          }};
}

// Strings of equal length have the same first key, and some are displaced by strings of another
// length. A first key may be 0, which no string may have.
uint64_t WeakHash(std::string_view string, uint64_t seed) {
  if (seed == 0) return string.size() % 8;
  return HashString(string, seed) % (seed < 4 ? 40 : 1000000);
}

// A string of 0 to 400 bytes, any bytes, NUL included. Many strings share a few lengths.
std::string RandomString(Random* random, size_t pool) {
  Random own((*random)() % pool);
  static constexpr size_t kLengths[] = {0, 1, 7, 8, 9, 24, 25, 88, 200, 201, 400};
  std::string string(kLengths[own() % std::size(kLengths)], '\0');
  for (char& c : string) c = static_cast<char>(own() % 3 == 0 ? 0 : own());
  return string;
}

Strings RandomStrings(Random* random, size_t count, size_t pool) {
  Strings strings(count);
  for (std::string& string : strings) string = RandomString(random, pool);
  return strings;
}

// A dictionary and its expected content.
class CheckedDictionary {
 public:
  explicit CheckedDictionary(StringKeys::HashFunction hash,
                             ExecContext exec = ExecContext::Serial())
      : exec(std::move(exec)), keys(StringKeys::Create(&allocator, hash)) {}

  std::vector<int64_t> Intern(const Strings& strings) {
    std::vector<int64_t> found(strings.size()), added(strings.size());
    size_t num_added = 0;
    const size_t before = oracle.size();
    EXPECT_TRUE(keys->Intern(exec, BatchOf(strings), found.data(), added.data(), &num_added).ok());
    added.resize(num_added);
    std::set<int64_t> really_added;
    for (size_t i = 0; i < strings.size(); ++i) {
      const auto inserted = oracle.emplace(strings[i], found[i]);
      if (inserted.second) really_added.insert(found[i]);
      EXPECT_EQ(inserted.first->second, found[i]);
    }
    EXPECT_EQ(really_added, std::set<int64_t>(added.begin(), added.end()));
    EXPECT_EQ(before + num_added, oracle.size());
    return found;
  }

  void Remove(const Strings& strings) {
    std::vector<int64_t> gone = {StringKeys::kNoKey, -1};
    for (const std::string& string : strings) {
      const auto at = oracle.find(string);
      if (at == oracle.end()) continue;
      gone.push_back(at->second);
      gone.push_back(at->second);  // removing it again changes nothing
      oracle.erase(at);
    }
    keys->Remove(gone.data(), gone.size());
  }

  // Exactly the present strings are found.
  void Check(const Strings& others) {
    EXPECT_EQ(oracle.size(), keys->size());
    std::set<int64_t> distinct;
    Strings strings;
    for (const auto& entry : oracle) {
      strings.push_back(entry.first);
      distinct.insert(entry.second);
      EXPECT_EQ(entry.first, keys->StringOf(entry.second));
      EXPECT_NE(StringKeys::kNoKey, entry.second);
    }
    EXPECT_EQ(oracle.size(), distinct.size());
    std::vector<int64_t> found(strings.size());
    EXPECT_TRUE(keys->Find(exec, BatchOf(strings), found.data()));
    for (size_t i = 0; i < strings.size(); ++i) EXPECT_EQ(oracle[strings[i]], found[i]);
    std::set<int64_t> visited;
    keys->ForEachKey([&](int64_t key) { visited.insert(key); });
    EXPECT_EQ(distinct, visited);
    found.resize(others.size());
    bool all_there = true;
    const bool said = keys->Find(exec, BatchOf(others), found.data());
    for (size_t i = 0; i < others.size(); ++i) {
      if (oracle.count(others[i]) > 0) continue;
      all_there = false;
      EXPECT_EQ(nullptr, keys->StringOf(found[i]).data());
      EXPECT_NE(StringKeys::kNoKey, found[i]);
    }
    EXPECT_EQ(all_there, said);
  }

  FailingAllocator allocator;
  ExecContext exec;
  std::unique_ptr<StringKeys> keys;
  std::map<std::string, int64_t> oracle;
};

TEST(StringKeys, AgreesWithAMapHoweverStringsCollide) {
  for (const StringKeys::HashFunction hash : {WeakHash, HashString}) {
    for (const uint64_t seed : Seeds(6)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Random random(seed);
      CheckedDictionary both(hash, seed % 2 == 0 ? Threads(3) : ExecContext::Serial());
      for (int round = 0; round < 40; ++round) {
        switch (random() % 4) {
          case 0:
            both.Remove(RandomStrings(&random, random() % 200, 150));
            break;
          case 1:
            if (random() % 4 != 0) break;
            ASSERT_TRUE(both.keys->Shrink().ok());
            break;
          default:
            both.Intern(RandomStrings(&random, random() % 60, 150));
        }
        both.Check(RandomStrings(&random, 20, 300));
        if (testing::Test::HasFailure()) return;
      }
      Strings all;
      for (const auto& entry : both.oracle) all.push_back(entry.first);
      std::shuffle(all.begin(), all.end(), random);
      both.Remove(all);
      both.Check(all);
      // No displaced string is left either, so the dictionary equals a new dictionary.
      CheckedDictionary fresh(hash);
      const Strings again = RandomStrings(&random, 100, 150);
      EXPECT_EQ(fresh.Intern(again), both.Intern(again));
    }
  }
}

TEST(StringKeys, KeysDoNotDependOnTheNumberOfThreads) {
  Random random(1);
  const Strings strings = RandomStrings(&random, 5000, 2000);
  CheckedDictionary one(WeakHash), four(WeakHash, Threads(4));
  EXPECT_EQ(one.Intern(strings), four.Intern(strings));
}

TEST(StringKeys, FindForetellsTheKeyOfAStringThatIsAdded) {
  CheckedDictionary both(WeakHash);
  Random random(2);
  both.Intern(RandomStrings(&random, 100, 100));
  for (const std::string& string : RandomStrings(&random, 200, 1000)) {
    int64_t key;
    both.keys->Find(both.exec, BatchOf({string}), &key);
    EXPECT_EQ(key, both.Intern({string})[0]);
  }
}

TEST(StringKeys, AHashIsOfTheWholeStringAndItsLength) {
  std::set<uint64_t> hashes;
  size_t strings = 0;
  for (size_t length = 0; length < 40; ++length) {
    std::string string(length, '\0');
    hashes.insert(HashString(string, 0));
    hashes.insert(HashString(string, 1));
    strings += 2;
    for (size_t i = 0; i < length; ++i, ++strings) {
      std::string other = string;
      other[i] = 1;
      hashes.insert(HashString(other, 0));
    }
  }
  EXPECT_EQ(strings, hashes.size());
  // As documented, for readers that compute the key themselves.
  const uint64_t first = Mix64(Mix64(4 * kGolden64) ^ 0x636261);
  EXPECT_EQ(first, HashString("abc", 0));
}

TEST(StringKeys, AFailureChangesNothing) {
  Random random(3);
  const Strings present = RandomStrings(&random, 100, 100);
  const Strings wanted = RandomStrings(&random, 300, 250);
  for (const bool for_good : {false, true}) {
    size_t failures = 0;
    for (int64_t passes = 0;; ++passes) {
      CheckedDictionary both(WeakHash);
      both.Intern(present);
      std::vector<int64_t> found(wanted.size()), added(wanted.size());
      size_t num_added = 1;
      both.allocator.FailAfter(passes, for_good);
      const Status status =
          both.keys->Intern(both.exec, BatchOf(wanted), found.data(), added.data(), &num_added);
      both.allocator.NeverFail();
      if (status.ok()) break;
      ++failures;
      EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
      EXPECT_EQ(0u, num_added);
      both.Check(wanted);
      both.Intern(wanted);
      both.Check(wanted);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(failures, 30u);
  }
}

TEST(StringKeys, AShrinkWithoutMemoryChangesNothing) {
  Random random(4);
  const Strings strings = RandomStrings(&random, 300, 300);
  for (int64_t passes = 0;; ++passes) {
    CheckedDictionary both(WeakHash);
    both.Intern(strings);
    both.Remove({strings.begin(), strings.begin() + 100});
    both.allocator.FailAfter(passes, true);
    const Status status = both.keys->Shrink();
    both.allocator.NeverFail();
    both.Check(strings);
    if (status.ok()) break;
    EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
  }
}

TEST(StringKeys, MemoryGoesBack) {
  CheckedDictionary both(HashString);
  const size_t empty = both.allocator.live_bytes();
  Random random(5);
  both.Intern(RandomStrings(&random, 20000, 1 << 30));
  const size_t full = both.allocator.live_bytes();
  Strings most;
  for (const auto& entry : both.oracle) {
    if (random() % 10 != 0) most.push_back(entry.first);
  }
  both.Remove(most);
  ASSERT_TRUE(both.keys->Shrink().ok());
  EXPECT_LT(both.allocator.live_bytes(), full / 3);
  both.Check(most);
  both.keys->Clear();
  both.oracle.clear();
  both.Check(most);
  EXPECT_EQ(empty, both.allocator.live_bytes());
  both.Intern(most);
  both.allocator.FailAfter(0, true);
  both.keys->Clear();
  both.allocator.NeverFail();
  both.oracle.clear();
  both.Check(most);
  both.Intern(most);
  both.Check(most);
}

TEST(StringKeys, ManyThreadsFindAtOnce) {
  CheckedDictionary both(WeakHash);
  Random random(6);
  const Strings strings = RandomStrings(&random, 3000, 1000);
  const std::vector<int64_t> wanted = both.Intern(strings);
  InThreads(4, [&](size_t) {
    std::vector<int64_t> found(strings.size());
    EXPECT_TRUE(both.keys->Find(ExecContext::Serial(), BatchOf(strings), found.data()));
    EXPECT_EQ(wanted, found);
  });
}

TEST(NumberDistinctStrings, GivesTheFirstOfEqualStrings) {
  for (const ExecContext& exec : {ExecContext::Serial(), Threads(3)}) {
    for (size_t count : {0, 1, 2, 1000, 20000}) {
      Random random(count);
      const Strings strings = RandomStrings(&random, count, 1 + count / 2);
      std::map<std::string, int64_t> first;
      std::vector<int64_t> numbers(count), wanted(count);
      for (size_t i = 0; i < count; ++i) {
        wanted[i] = first.emplace(strings[i], static_cast<int64_t>(i)).first->second;
      }
      ASSERT_TRUE(
          NumberDistinctStrings(exec, BatchOf(strings), HostAllocator(), numbers.data()).ok());
      EXPECT_EQ(wanted, numbers);
    }
  }
}

}  // namespace
}  // namespace tf_embed
