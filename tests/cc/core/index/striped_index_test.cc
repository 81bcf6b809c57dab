// SPDX-License-Identifier: Apache-2.0
// The index alone, mainly with keys that an adversary would send: the test chooses hashes, and
// inverts the hash to get their keys.
#include "cc/core/index/striped_index.h"

#include <atomic>
#include <map>

#include "cc/core/base/hash.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

uint64_t UndoXorShift(uint64_t x, int shift) {
  uint64_t undone = x;
  for (int done = shift; done < 64; done += shift) undone = x ^ (undone >> shift);
  return undone;
}

// The inverse of HashKey: Mix64 backwards, with its factors inverted modulo 2^64.
int64_t KeyWithHash(uint64_t hash) {
  hash = UndoXorShift(hash, 31) * 0x319642b2d24d8ec3u;
  hash = UndoXorShift(hash, 27) * 0x96de1b173f119089u;
  return static_cast<int64_t>(UndoXorShift(hash, 30) - kGolden64);
}

// A key of this stripe and place. `number` (24 bits) distinguishes such keys.
int64_t KeyAt(size_t stripe, uint32_t place, uint32_t number) {
  return KeyWithHash(uint64_t{stripe} << 56 | uint64_t{number} << 32 | place);
}

class StripedIndexTest : public testing::Test {
 protected:
  explicit StripedIndexTest(size_t size_hint = 0, double max_load = StripedIndex::kMaxLoad)
      : index(&allocator, size_hint, max_load) {}

  Status Insert(int64_t key, uint32_t row_id) {
    const uint64_t hash = HashKey(key);
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(StripedIndex::StripeOf(hash)));
    const Status status = index.Insert(key, hash, row_id);
    if (status.ok()) row_ids[key] = row_id;
    return status;
  }
  uint32_t Erase(int64_t key) {
    const uint64_t hash = HashKey(key);
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(StripedIndex::StripeOf(hash)));
    row_ids.erase(key);
    return index.Erase(key, hash);
  }
  uint32_t RowIdOf(int64_t key) const { return index.Find(key, HashKey(key)).row_id; }

  // The index holds exactly `row_ids`, whether keys are looked up or scanned.
  void ExpectWhole() const {
    for (const auto& [key, row_id] : row_ids) ASSERT_EQ(row_id, RowIdOf(key)) << "key " << key;
    std::map<int64_t, uint32_t> seen;
    size_t size = 0;
    for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
      size_t in_stripe = 0;
      std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
      index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
        EXPECT_EQ(stripe, StripedIndex::StripeOf(HashKey(key)));
        EXPECT_TRUE(seen.emplace(key, row_id).second) << "key " << key << " came twice";
        ++in_stripe;
      });
      ASSERT_EQ(in_stripe, index.StripeSize(stripe));
      size += in_stripe;
    }
    EXPECT_EQ(row_ids.size(), size);
    EXPECT_TRUE(row_ids == seen);
  }

  // Inserts `count` keys, erases half of them and inserts them again.
  template <typename KeyOf>
  void InsertEraseAndReinsert(uint32_t count, const KeyOf& key_of) {
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_TRUE(Insert(key_of(i), i).ok());
      if (i % 1000 == 999) index.DropRetired();
    }
    ExpectWhole();
    for (uint32_t i = 0; i < count; i += 2) ASSERT_EQ(i, Erase(key_of(i)));
    for (uint32_t i = 0; i < count; i += 2) ASSERT_EQ(kNoRowId, RowIdOf(key_of(i)));
    ExpectWhole();
    for (uint32_t i = 0; i < count; i += 2) ASSERT_TRUE(Insert(key_of(i), i + 1000000).ok());
    ExpectWhole();
    index.DropRetired();
    ExpectWhole();
  }

  FailingAllocator allocator;
  StripedIndex index;
  std::map<int64_t, uint32_t> row_ids;  // the expected content of the index
};

constexpr uint32_t kPlaces[] = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};

TEST(KeyWithHash, IsTheInverseOfTheHash) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t hash = random();
    ASSERT_EQ(hash, HashKey(KeyWithHash(hash)));
  }
}

TEST_F(StripedIndexTest, EmptyIndexFindsNothingAndTakesNoMemory) {
  for (int64_t key : ExtremeKeys()) {
    EXPECT_FALSE(index.Find(key, HashKey(key)).found());
    EXPECT_EQ(kNoRowId, Erase(key));
  }
  EXPECT_EQ(0u, allocator.live_blocks());
  EXPECT_FALSE(index.has_retired());
}

TEST_F(StripedIndexTest, HoldsExtremeKeys) {
  const std::vector<int64_t> keys = ExtremeKeys();
  InsertEraseAndReinsert(static_cast<uint32_t>(keys.size()), [&](uint32_t i) { return keys[i]; });
}

TEST_F(StripedIndexTest, HoldsManyKeysThroughGrowth) {
  InsertEraseAndReinsert(60000, [](uint32_t i) { return int64_t{i} << 20; });
  EXPECT_LT(allocator.live_bytes(), 60000u * 28) << "16 bytes a key at a load of 0.8";
}

// Each growth keeps every key's row id, for keys of every kind.
TEST_F(StripedIndexTest, KeysAndSlotsSurviveEachGrowth) {
  const std::pair<const char*, int64_t (*)(uint32_t)> kinds[] = {
      {"sequential", [](uint32_t i) { return static_cast<int64_t>(i); }},
      {"random", [](uint32_t i) { return static_cast<int64_t>(Mix64(i)); }},
      {"of one stripe", [](uint32_t i) { return KeyAt(17, i * 2654435761u, 3); }},
      {"crowded", [](uint32_t i) { return KeyAt(200, i % 7 * 0x1000 + (i % 5 << 29), i); }},
      {"of the last places", [](uint32_t i) { return KeyAt(44, 0xffffffff - i % 999, i); }}};
  for (const auto& [name, key_of] : kinds) {
    SCOPED_TRACE(name);
    for (const auto& [key, row_id] : std::map<int64_t, uint32_t>(row_ids))
      ASSERT_EQ(row_id, Erase(key));
    size_t growths = 0;
    for (uint32_t i = 0; i < 6000; ++i) {
      const int64_t key = key_of(i);
      const size_t stripe = StripedIndex::StripeOf(HashKey(key));
      const size_t before = index.StripeBuckets(stripe);
      ASSERT_TRUE(Insert(key, i).ok());
      if (i % 11 == 3) Erase(key_of(i / 2));  // holes, which a growth must skip
      if (index.StripeBuckets(stripe) == before || before == 0) continue;
      ASSERT_GT(index.StripeBuckets(stripe), before);
      if (++growths % 16 == 1 || stripe == 17) ExpectWhole();
    }
    EXPECT_GT(growths, 5u);
    ExpectWhole();
  }
}

TEST_F(StripedIndexTest, GrowthsOfStripesAreSpreadEvenly) {
  constexpr uint32_t kKeys = 600000;
  // While keys grow by 1%, 256 ln 1.01 / ln 1.5 = 6.3 stripes grow on average.
  size_t moved_keys = 0;
  size_t growths = 0;
  uint32_t window_end = kKeys / 8;
  for (uint32_t i = 0; i < kKeys; ++i) {
    const int64_t key = static_cast<int64_t>(Mix64(i));
    const uint64_t hash = HashKey(key);
    const size_t stripe = StripedIndex::StripeOf(hash);
    const size_t before = index.StripeBuckets(stripe);
    ASSERT_TRUE(index.Insert(key, hash, i).ok());
    if (i >= kKeys / 8 && index.StripeBuckets(stripe) != before) {
      ++growths;
      moved_keys += index.StripeSize(stripe);
    }
    if (i == window_end) {
      EXPECT_LE(growths, 20u) << "at " << i << " keys";
      growths = 0;
      window_end += window_end / 100;
      index.DropRetired();
      EXPECT_LT(allocator.live_bytes(), i * 22 + (6u << 20));
    }
  }
  EXPECT_LT(moved_keys, 3 * kKeys);
}

// All hashes are equal except in 24 bits that the index does not use.
TEST_F(StripedIndexTest, HoldsThousandsOfKeysOfOnePlace) {
  for (uint32_t place : kPlaces) {
    const size_t stripe = place % 251;
    row_ids.clear();
    InsertEraseAndReinsert(2000, [&](uint32_t i) { return KeyAt(stripe, place, i); });
    EXPECT_LT(allocator.live_bytes(), 2u << 20);
    for (uint32_t i = 0; i < 2000; ++i) ASSERT_NE(kNoRowId, Erase(KeyAt(stripe, place, i)));
    ExpectWhole();
  }
}

TEST_F(StripedIndexTest, HoldsKeysOfNeighbouringPlacesAtTheEndOfAStripe) {
  InsertEraseAndReinsert(2500, [&](uint32_t i) { return KeyAt(255, 0xffffffff - i / 3, i); });
  InsertEraseAndReinsert(2500, [&](uint32_t i) { return KeyAt(0, i / 3, i); });
}

TEST_F(StripedIndexTest, CollidingKeysAreOverflowedOverByOthers) {
  // Two groups of colliding keys, whose chains overlap, and some scattered keys between them.
  InsertEraseAndReinsert(3000, [&](uint32_t i) {
    return KeyAt(9, i % 3 == 0 ? 0x80000000 : i % 3 == 1 ? 0x80100000 : i * 1431655u, i);
  });
}

TEST_F(StripedIndexTest, AgreesWithAMapOverRandomInsertsAndErasures) {
  for (uint64_t seed : Seeds(8)) {
    SCOPED_TRACE("TF_EMBED_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    const uint32_t places = 1 + random() % 50;
    for (int step = 0; step < 3000; ++step) {
      const int64_t key = KeyAt(seed % 256, kPlaces[random() % 6] + random() % places * 9999999,
                                static_cast<uint32_t>(random() % 400));
      const auto known = row_ids.find(key);
      ASSERT_EQ(known == row_ids.end() ? kNoRowId : known->second, RowIdOf(key));
      if (known == row_ids.end()) {
        ASSERT_TRUE(Insert(key, static_cast<uint32_t>(step)).ok());
      } else if (random() % 2 == 0) {
        const uint32_t row_id = known->second;
        ASSERT_EQ(row_id, Erase(key));
      }
      if (random() % 500 == 0) index.DropRetired();
    }
    ExpectWhole();
  }
}

class RoomyIndexTest : public StripedIndexTest {
 protected:
  RoomyIndexTest() : StripedIndexTest(60000) {}
};

TEST_F(RoomyIndexTest, AHintSparesGrowth) {
  for (uint32_t i = 0; i < 60000; ++i) ASSERT_TRUE(Insert(i * 7919ll, i).ok());
  ExpectWhole();
  // An array for each stripe, and a second array if a stripe's share is more than three standard
  // deviations too large.
  EXPECT_LE(allocator.live_blocks(), StripedIndex::kStripes + 4);
  EXPECT_LT(allocator.live_bytes(), 60000u * 28);
}

class SparseIndexTest : public StripedIndexTest {
 protected:
  SparseIndexTest() : StripedIndexTest(0, 0.5) {}
};

TEST_F(SparseIndexTest, NoStripeIsFullerThanItMayBe) {
  for (uint32_t i = 0; i < 50000; ++i) {
    const int64_t key = i;
    ASSERT_TRUE(Insert(key, i).ok());
    const size_t stripe = StripedIndex::StripeOf(HashKey(key));
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
    const size_t lanes = index.StripeBuckets(stripe) * Bucket::kLanes;
    ASSERT_LE(index.StripeSize(stripe), lanes / 2 + 1);
  }
  ExpectWhole();
}

TEST_F(StripedIndexTest, AGrowthWithoutMemoryLosesNothing) {
  uint32_t refused = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    const int64_t key = i % 2 == 0 ? static_cast<int64_t>(i) : KeyAt(3, 0xffffffff, i);
    allocator.FailAfter(0);
    const Status status = Insert(key, i);
    if (!status.ok()) {
      ++refused;
      ASSERT_EQ(StatusCode::kResourceExhausted, status.code());
      ASSERT_EQ(kNoRowId, RowIdOf(key));
      ASSERT_TRUE(Insert(key, i).ok());
    }
  }
  allocator.NeverFail();
  EXPECT_GT(refused, 256u);
  ExpectWhole();
}

// Readers run while stripes grow, chains get longer and other keys are inserted and erased.
TEST_F(StripedIndexTest, ReadersNeverMissAKeyThatIsThere) {
  constexpr uint32_t kKeys = 12000;
  const auto key_of = [](uint32_t i) {
    return i % 4 == 0 ? KeyAt(i % 2 * 255, 0xffffffff, i / 16) : KeyAt(i % 5, i * 2654435761u, i);
  };
  std::map<int64_t, uint32_t> number_of;
  std::vector<int64_t> keys;
  for (uint32_t i = 0; number_of.size() < kKeys; ++i) {
    if (number_of.emplace(key_of(i), keys.size()).second) keys.push_back(key_of(i));
  }
  std::atomic<uint32_t> inserted{0};
  InThreads(3, [&](size_t thread) {
    if (thread == 0) {
      for (uint32_t i = 0; i < kKeys; ++i) {
        ASSERT_TRUE(Insert(keys[i], i).ok());
        inserted.store(i + 1, std::memory_order_release);
        const int64_t passing = KeyAt(i % 5, i * 2654435761u, i | 0x800000);
        ASSERT_TRUE(Insert(passing, i).ok());
        Erase(passing);
      }
    } else {
      Random random(thread);
      for (uint32_t seen = 0; seen < kKeys;) {
        seen = inserted.load(std::memory_order_acquire);
        if (seen == 0) continue;
        const uint32_t i = static_cast<uint32_t>(random() % seen);
        ASSERT_EQ(i, RowIdOf(keys[i]));
        ASSERT_EQ(kNoRowId, RowIdOf(KeyAt(7, static_cast<uint32_t>(random()), 1)));
      }
    }
  });
  ExpectWhole();
}

TEST_F(StripedIndexTest, RowIdsAreReplacedAndStripesErased) {
  for (uint32_t i = 0; i < 20000; ++i) ASSERT_TRUE(Insert(i, i).ok());
  for (int64_t key = 0; key < 20000; key += 3) {
    const uint64_t hash = HashKey(key);
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(StripedIndex::StripeOf(hash)));
    index.Replace(index.Find(key, hash), key, static_cast<uint32_t>(key) + 100000);
    row_ids[key] += 100000;
  }
  ExpectWhole();
  for (size_t stripe = 0; stripe < StripedIndex::kStripes; stripe += 2) {
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
    index.EraseStripe(stripe);
    index.EraseStripe(stripe);  // an empty stripe
  }
  for (auto at = row_ids.begin(); at != row_ids.end();) {
    at = StripedIndex::StripeOf(HashKey(at->first)) % 2 == 0 ? row_ids.erase(at) : std::next(at);
  }
  index.DropRetired();
  ExpectWhole();
  for (uint32_t i = 0; i < 5000; ++i) {
    if (row_ids.count(i) > 0) continue;
    ASSERT_TRUE(Insert(i, i + 7).ok());
  }
  ExpectWhole();
}

TEST_F(StripedIndexTest, ShrinkGivesMemoryBackAndLosesNoKey) {
  const auto shrink = [&] {
    for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
      std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
      ASSERT_TRUE(index.Shrink(stripe).ok());
    }
    index.DropRetired();
  };
  for (uint32_t i = 0; i < 100000; ++i) ASSERT_TRUE(Insert(i, i).ok());
  index.DropRetired();
  const size_t full = index.bytes();
  shrink();
  EXPECT_EQ(full, index.bytes()) << "it is not half empty";
  for (int64_t key = 0; key < 95000; ++key) Erase(key);
  shrink();
  EXPECT_LE(index.bytes(), full / 5);
  ExpectWhole();
  for (uint32_t i = 0; i < 50000; ++i) ASSERT_TRUE(Insert(i, i + 3).ok());
  ExpectWhole();
  for (int64_t key = 0; key < 100000; ++key) Erase(key);
  shrink();
  index.DropRetired();
  EXPECT_EQ(0u, index.size());
  EXPECT_LE(index.bytes(), full / 50);
  ASSERT_TRUE(Insert(1, 1).ok());
  ExpectWhole();
}

TEST_F(StripedIndexTest, ALongSearchVisitsEachKeyOnceFromAnyCursor) {
  for (uint32_t i = 0; i < 20000; ++i) ASSERT_TRUE(Insert(i, i).ok());
  for (uint32_t i = 0; i < 500; ++i) ASSERT_TRUE(Insert(KeyAt(9, 0xffffffff, i), 20000 + i).ok());
  StripedIndex::Cursor cursor;
  for (int search = 0; search < 60; ++search) {
    index.ForSome(67, &cursor, [](const Bucket&, int64_t, uint32_t) {});
    std::map<int64_t, uint32_t> seen;
    StripedIndex::Cursor around = cursor;
    index.ForSome(size_t{1} << 40, &around, [&](const Bucket&, int64_t key, uint32_t row_id) {
      EXPECT_TRUE(seen.emplace(key, row_id).second) << "key " << key << " came twice";
    });
    ASSERT_TRUE(row_ids == seen) << "from stripe " << cursor.stripe << ", place " << cursor.place;
    EXPECT_EQ(cursor.stripe, around.stripe);
    EXPECT_EQ(cursor.place, around.place);
  }
}

TEST_F(RoomyIndexTest, AShrinkWithoutMemoryLosesNothing) {
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_TRUE(Insert(i, i).ok());
  const size_t before = index.bytes();
  for (const bool fails : {true, false}) {
    size_t failed = 0;
    for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
      std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
      if (fails) allocator.FailAfter(0);
      const Status status = index.Shrink(stripe);
      if (status.ok()) continue;
      EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
      ++failed;
    }
    allocator.NeverFail();
    EXPECT_EQ(fails, failed > 200);
    index.DropRetired();
    ExpectWhole();
  }
  EXPECT_LT(index.bytes(), before / 2);
}

}  // namespace
}  // namespace tf_embed
