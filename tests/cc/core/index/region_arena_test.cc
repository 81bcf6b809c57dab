// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/region_arena.h"

#include <cmath>
#include <cstring>
#include <deque>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

// A block filled with its number.
struct Held {
  RegionArena::Block block;
  size_t bytes;
  unsigned char mark;
};

class RegionArenaTest : public testing::Test {
 protected:
  void Take(size_t bytes) {
    const RegionArena::Block block = arena.Allocate(bytes);
    ASSERT_NE(nullptr, block.memory);
    ASSERT_EQ(0u, reinterpret_cast<uintptr_t>(block.memory) % 64);
    const unsigned char mark = static_cast<unsigned char>(++taken);
    std::memset(block.memory, mark, bytes);
    held.push_back({block, bytes, mark});
    bytes_out += bytes;
  }

  void GiveBack(size_t i) {
    const Held& block = held[i];
    const unsigned char* const memory = static_cast<unsigned char*>(block.block.memory);
    for (size_t byte = 0; byte < block.bytes; ++byte) ASSERT_EQ(block.mark, memory[byte]);
    arena.Deallocate(block.block, block.bytes);
    bytes_out -= block.bytes;
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void GiveAllBack() {
    while (!held.empty()) GiveBack(held.size() - 1);
  }

  FailingAllocator allocator;
  RegionArena arena{&allocator};
  std::deque<Held> held;
  size_t taken = 0;
  size_t bytes_out = 0;
};

TEST_F(RegionArenaTest, BlocksDoNotOverlapWhateverTheOrder) {
  for (uint64_t seed : Seeds(3)) {
    SCOPED_TRACE("TF_EMBED_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    for (int step = 0; step < 2000; ++step) {
      if (held.empty() || random() % 3 != 0) {
        Take(64 * (1 + random() % (random() % 8 == 0 ? 5000 : 500)));
      } else {
        GiveBack(random() % held.size());
      }
    }
    GiveAllBack();
  }
}

TEST_F(RegionArenaTest, TakesNoMoreThanItsBlocksWhileTheyAreFew) {
  for (int i = 0; i < 30; ++i) {
    Take(64 * 1000);
    ASSERT_EQ(bytes_out, allocator.live_bytes());
  }
  GiveAllBack();
  EXPECT_EQ(0u, allocator.live_bytes());
}

// Grows as the stripes of an index do: 256 arrays, which take turns to grow by half.
TEST_F(RegionArenaTest, GrowthInTurnWastesLittle) {
  for (size_t i = 0; i < 256; ++i) {
    Take(static_cast<size_t>(20000 * std::pow(1.5, static_cast<double>(i) / 256)) / 64 * 64);
  }
  for (int growth = 0; growth < 1000; ++growth) {
    Take(held.front().bytes * 3 / 2 / 64 * 64);
    GiveBack(0);
    ASSERT_LT(static_cast<double>(allocator.live_bytes()),
              1.2 * static_cast<double>(bytes_out) + (6 << 20))
        << "after " << growth << " growths";
  }
  GiveAllBack();
  EXPECT_LE(allocator.live_blocks(), 1u) << "the open region";
}

TEST_F(RegionArenaTest, ARegionHasTheBlockThatItIsOpenedFor) {
  while (bytes_out < (64u << 20)) Take(64 * 2000);
  size_t regions = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t before = allocator.live_blocks();
    Take(64 * 2000);
    ASSERT_LE(allocator.live_blocks(), before + 1);
    regions += allocator.live_blocks() - before;
  }
  EXPECT_GT(regions, 0u);
  EXPECT_LT(regions, 100u);
  GiveAllBack();
}

TEST_F(RegionArenaTest, WithoutMemoryGivesNoBlockAndGoesOnLater) {
  for (int i = 0; i < 200; ++i) {
    allocator.FailAfter(0, true);
    const size_t bytes = allocator.live_bytes();
    const RegionArena::Block block = arena.Allocate(64 * 2000);
    allocator.NeverFail();
    EXPECT_EQ(bytes, allocator.live_bytes());
    if (block.memory != nullptr) arena.Deallocate(block, 64 * 2000);
    Take(64 * 2000);
  }
  GiveAllBack();
}

// There is memory for a block, but not for a region.
TEST_F(RegionArenaTest, DoesWithoutARegionWhereThereIsNone) {
  while (bytes_out < (64u << 20)) Take(64 * 2000);
  for (int i = 0; i < 100; ++i) {
    allocator.FailAfter(0);
    Take(64 * 2000);
  }
  allocator.NeverFail();
  GiveAllBack();
}

TEST_F(RegionArenaTest, ThreadsShareAnArena) {
  InThreads(4, [&](size_t thread) {
    Random random(thread);
    std::vector<Held> mine;
    for (int step = 0; step < 1000; ++step) {
      const size_t bytes = 64 * (1 + random() % 1000);
      const RegionArena::Block block = arena.Allocate(bytes);
      std::memset(block.memory, static_cast<int>(thread), bytes);
      mine.push_back({block, bytes, 0});
      if (mine.size() > 100) {
        std::swap(mine[random() % mine.size()], mine.back());
        for (size_t byte = 0; byte < mine.back().bytes; ++byte) {
          ASSERT_EQ(static_cast<char>(thread), static_cast<char*>(mine.back().block.memory)[byte]);
        }
        arena.Deallocate(mine.back().block, mine.back().bytes);
        mine.pop_back();
      }
    }
    for (const Held& block : mine) arena.Deallocate(block.block, block.bytes);
  });
}

}  // namespace
}  // namespace tf_embed
