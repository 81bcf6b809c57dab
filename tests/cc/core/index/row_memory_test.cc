// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/row_memory.h"

#include <map>
#include <set>

#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/test_stores.h"

namespace tf_embed {
namespace {

std::vector<RowLayout> Layouts() {
  return {{DataType::kInt8, 1, 0},    {DataType::kHalf, 3, 3},     {DataType::kFloat, 64, 128},
          {DataType::kFloat, 101, 1}, {DataType::kDouble, 17, 51}, {DataType::kDouble, 4096, 4096}};
}

// Fills a row with a pattern made from its number, and checks it.
void Mark(char* row, size_t bytes, uint32_t number) {
  for (size_t i = 0; i < bytes; ++i) row[i] = static_cast<char>(number * 31 + i * 7);
}
bool IsMarked(const char* row, size_t bytes, uint32_t number) {
  for (size_t i = 0; i < bytes; ++i) {
    if (row[i] != static_cast<char>(number * 31 + i * 7)) return false;
  }
  return true;
}

TEST(RowLayout, NarrowSlotsTakeWhatTheyNeedInWholeWords) {
  RuleSlots rule = FusedSlots(RuleKind::kPartialRowwiseAdam, 5);
  EXPECT_EQ(24u, RowLayout(DataType::kFloat, 5, rule).slot_bytes);
  EXPECT_FALSE(RowLayout(DataType::kFloat, 5, rule).narrow_slots);
  rule.groups[0].type = SlotType::kBFloat16;  // 10 bytes, then a float at offset 12
  const RowLayout layout(DataType::kFloat, 5, rule);
  EXPECT_EQ(16u, layout.slot_bytes);
  EXPECT_EQ(24u, layout.wide_slot_bytes);
  EXPECT_EQ(24u + 16u + 8u, layout.stride);
  EXPECT_TRUE(layout.narrow_slots);
  rule.groups[1].type = SlotType::kHalf;
  EXPECT_EQ(12u, StoredSlotBytes(rule, DataType::kFloat));
  EXPECT_EQ(24u, RowLayout(DataType::kDouble, 5, FusedSlots(RuleKind::kAdagrad, 3)).slot_bytes);
}

TEST(RowLayout, WeightsAndSlotsShareNoWordAndRowsAreAligned) {
  for (DataType type : {DataType::kFloat, DataType::kHalf, DataType::kDouble, DataType::kInt8}) {
    for (size_t dim = 1; dim <= 70; ++dim) {
      for (RuleKind kind : {RuleKind::kNone, RuleKind::kRowwiseAdagrad, RuleKind::kAdamAmsgrad}) {
        const RowLayout layout(type, dim, FusedSlots(kind, dim).slots_per_row());
        EXPECT_EQ(dim * SizeOf(type), layout.weight_bytes);
        EXPECT_EQ(layout.slots_per_row * (type == DataType::kDouble ? 8 : 4), layout.slot_bytes);
        EXPECT_EQ(0u, layout.slot_offset % 8);
        EXPECT_EQ(0u, layout.stride % 16);
        EXPECT_GE(layout.slot_offset, layout.weight_bytes);
        EXPECT_GE(layout.stride, layout.slot_offset + layout.slot_bytes);
        EXPECT_LT(layout.stride, layout.weight_bytes + layout.slot_bytes + 24);
      }
    }
  }
}

TEST(RowMemory, RowsAreAlignedAndDoNotOverlap) {
  for (const RowLayout& layout : Layouts()) {
    SCOPED_TRACE("dim " + std::to_string(layout.dim));
    const uint32_t count = layout.dim > 1000 ? 700 : 40000;
    FailingAllocator allocator;
    RowMemory slabs(&allocator, layout);
    RowMemory::RowIdPool pools[3];
    std::vector<uint32_t> row_ids;
    for (uint32_t i = 0; i < count; ++i) {
      row_ids.push_back(slabs.Take(&pools[i % 3]));
      ASSERT_NE(kNoRowId, row_ids.back());
      ASSERT_EQ(0u, reinterpret_cast<uintptr_t>(slabs.Row(row_ids.back())) % RowLayout::kAlignment);
      Mark(slabs.Row(row_ids.back()), layout.stride, i);
    }
    EXPECT_EQ(count, std::set<uint32_t>(row_ids.begin(), row_ids.end()).size());
    for (uint32_t i = 0; i < count; ++i) {
      ASSERT_TRUE(IsMarked(slabs.Row(row_ids[i]), layout.stride, i)) << "row id " << row_ids[i];
    }
  }
}

TEST(RowMemory, TakesMemoryInStepWithItsRows) {
  FailingAllocator allocator;
  const RowLayout layout(DataType::kFloat, 4, 0);
  RowMemory slabs(&allocator, layout);
  EXPECT_EQ(0u, allocator.live_bytes());
  RowMemory::RowIdPool pool;
  const size_t page = 4096 * sizeof(void*);
  ASSERT_NE(kNoRowId, slabs.Take(&pool));
  const size_t others = allocator.live_bytes() - slabs.bytes();
  for (size_t i = 2; i <= 100000; ++i) {
    ASSERT_NE(kNoRowId, slabs.Take(&pool));
    ASSERT_EQ(others + slabs.bytes(), allocator.live_bytes());
    ASSERT_LE(allocator.live_bytes(), page + std::max<size_t>(16 << 10, 2 * (i + 16) * 16));
  }
}

TEST(RowMemory, AFirstRowOfManyBytesStillFits) {
  FailingAllocator allocator;
  RowMemory slabs(&allocator,
                  RowLayout(DataType::kDouble, 3 << 20, 0));  // 24 MiB, more than a full slab
  RowMemory::RowIdPool pool;
  const uint32_t first = slabs.Take(&pool);
  const uint32_t second = slabs.Take(&pool);
  ASSERT_NE(first, second);
  const std::ptrdiff_t apart = slabs.Row(second) - slabs.Row(first);
  EXPECT_GE(std::abs(apart), 24 << 20);
}

TEST(RowMemory, FreedRowIdsAreUsedBeforeNewOnes) {
  FailingAllocator allocator;
  RowMemory slabs(&allocator, RowLayout(DataType::kInt8, 1, 0));
  RowMemory::RowIdPool pool;
  std::set<uint32_t> row_ids;
  for (int i = 0; i < 5000; ++i) row_ids.insert(slabs.Take(&pool));
  const size_t bytes = allocator.live_bytes();
  for (int round = 0; round < 3; ++round) {
    for (uint32_t row_id : row_ids) slabs.Free(&pool, row_id);
    std::set<uint32_t> again;
    for (size_t i = 0; i < row_ids.size(); ++i) again.insert(slabs.Take(&pool));
    EXPECT_EQ(row_ids, again);
  }
  EXPECT_EQ(bytes, allocator.live_bytes());
}

TEST(RowMemory, RowIdsThatOnePoolFreesServeOthers) {
  FailingAllocator allocator;
  RowMemory slabs(&allocator, RowLayout(DataType::kInt8, 1, 0));
  RowMemory::RowIdPool pools[4];
  std::set<uint32_t> row_ids, again;
  for (int i = 0; i < 5000; ++i) row_ids.insert(slabs.Take(&pools[0]));
  for (uint32_t row_id : row_ids) slabs.Free(&pools[0], row_id);
  for (int i = 0; i < 4990; ++i) again.insert(slabs.Take(&pools[1 + i % 3]));
  EXPECT_EQ(4990u, again.size());
  for (uint32_t row_id : again) EXPECT_EQ(1u, row_ids.count(row_id)) << row_id;
}

TEST(RowMemory, ThreadsTakeWhatOthersFree) {
  FailingAllocator allocator;
  const RowLayout layout(DataType::kFloat, 3, 0);
  RowMemory slabs(&allocator, layout);
  InThreads(4, [&](size_t thread) {
    RowMemory::RowIdPool pool;
    Random random(thread);
    std::vector<uint32_t> row_ids;
    for (uint32_t round = 0; round < 200; ++round) {
      for (size_t count = random() % 100; count > 0; --count) {
        row_ids.push_back(slabs.Take(&pool));
        Mark(slabs.Row(row_ids.back()), layout.stride, static_cast<uint32_t>(thread));
      }
      std::shuffle(row_ids.begin(), row_ids.end(), random);
      for (size_t count = row_ids.size() / 2; count > 0; --count, row_ids.pop_back()) {
        ASSERT_TRUE(
            IsMarked(slabs.Row(row_ids.back()), layout.stride, static_cast<uint32_t>(thread)));
        slabs.Free(&pool, row_ids.back());
      }
    }
  });
}

TEST(RowMemory, ThreadsWithPoolsOfTheirOwnNeverMeet) {
  FailingAllocator allocator;
  const RowLayout layout(DataType::kFloat, 3, 0);
  RowMemory slabs(&allocator, layout);
  std::vector<uint32_t> row_ids[4];
  InThreads(4, [&](size_t thread) {
    RowMemory::RowIdPool pool;
    for (uint32_t i = 0; i < 20000; ++i) {
      row_ids[thread].push_back(slabs.Take(&pool));
      Mark(slabs.Row(row_ids[thread].back()), layout.stride, i);
    }
  });
  std::set<uint32_t> all;
  for (const auto& of_thread : row_ids) {
    all.insert(of_thread.begin(), of_thread.end());
    for (uint32_t i = 0; i < of_thread.size(); ++i) {
      ASSERT_TRUE(IsMarked(slabs.Row(of_thread[i]), layout.stride, i));
    }
  }
  EXPECT_EQ(80000u, all.size());
}

TEST(RowMemory, ChangeLayoutKeepsWeightsAndTheListOfFreedRowIds) {
  for (const RowLayout& before : Layouts()) {
    for (size_t slots_per_row : {size_t{0}, size_t{1}, 3 * before.dim}) {
      FailingAllocator allocator;
      RowMemory slabs(&allocator, before);
      RowMemory::RowIdPool pool;
      const uint32_t count = before.dim > 1000 ? 50 : 3000;
      std::vector<uint32_t> row_ids;
      for (uint32_t i = 0; i < count; ++i) {
        row_ids.push_back(slabs.Take(&pool));
        Mark(slabs.Row(row_ids.back()), before.weight_bytes, i);
      }
      for (uint32_t i = 0; i < count; i += 3) slabs.Free(&pool, row_ids[i]);
      const RowLayout after(before.value_type, before.dim, slots_per_row);
      std::vector<char> initial(after.slot_bytes);
      Mark(initial.data(), initial.size(), 12345);
      ASSERT_TRUE(slabs.ChangeLayout(after, [&](const char*) { return initial.data(); }).ok());
      EXPECT_EQ(after.stride, slabs.layout().stride);
      std::set<uint32_t> reused;
      for (uint32_t i = 0; i < count; ++i) {
        if (i % 3 == 0) {
          reused.insert(slabs.Take(&pool));
        } else {
          ASSERT_TRUE(IsMarked(slabs.Row(row_ids[i]), after.weight_bytes, i));
          ASSERT_TRUE(IsMarked(slabs.Row(row_ids[i]) + after.slot_offset, after.slot_bytes, 12345));
        }
      }
      for (uint32_t i = 0; i < count; i += 3) EXPECT_EQ(1u, reused.count(row_ids[i]));
    }
  }
}

TEST(RowMemory, ChangeLayoutGivesEachRowWhatBecomesOfItsSlots) {
  const RowLayout before(DataType::kFloat, 3, 2);
  const RowLayout after(DataType::kFloat, 3, 1);
  RowMemory slabs(HostAllocator(), before);
  RowMemory::RowIdPool pool;
  std::vector<uint32_t> row_ids;
  for (uint32_t i = 0; i < 3000; ++i) {
    row_ids.push_back(slabs.Take(&pool));
    const float of_row[] = {static_cast<float>(i), 0.5f};
    std::memcpy(slabs.Row(row_ids.back()) + before.slot_offset, of_row, sizeof(of_row));
  }
  float sum = 0;
  const auto add = [&](const char* present) -> const void* {
    float of_row[2];
    std::memcpy(of_row, present, sizeof(of_row));
    sum = of_row[0] + of_row[1];
    return &sum;
  };
  ASSERT_TRUE(slabs.ChangeLayout(after, add).ok());
  for (uint32_t i = 0; i < 3000; ++i) {
    float slot;
    std::memcpy(&slot, slabs.Row(row_ids[i]) + after.slot_offset, sizeof(slot));
    ASSERT_EQ(static_cast<float>(i) + 0.5f, slot);
  }
}

TEST(RowMemory, ChangeLayoutWithoutMemoryChangesNothing) {
  const RowLayout before(DataType::kFloat, 8, 0);
  const RowLayout after(DataType::kFloat, 8, 16);
  const std::vector<char> initial(after.slot_bytes);
  for (int64_t passes = 0;; ++passes) {
    FailingAllocator allocator;
    RowMemory slabs(&allocator, before);
    RowMemory::RowIdPool pool;
    std::vector<uint32_t> row_ids;
    for (uint32_t i = 0; i < 5000; ++i) {
      row_ids.push_back(slabs.Take(&pool));
      Mark(slabs.Row(row_ids.back()), before.stride, i);
    }
    const size_t bytes = allocator.live_bytes();
    allocator.FailAfter(passes);
    const Status status = slabs.ChangeLayout(after, [&](const char*) { return initial.data(); });
    allocator.NeverFail();
    if (status.ok()) {
      EXPECT_GT(passes, 3);
      break;
    }
    EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
    EXPECT_EQ(bytes, allocator.live_bytes());
    EXPECT_EQ(before.stride, slabs.layout().stride);
    for (uint32_t i = 0; i < 5000; ++i)
      ASSERT_TRUE(IsMarked(slabs.Row(row_ids[i]), before.stride, i));
  }
}

TEST(RowMemory, WithoutMemoryGivesNoRowIdAndGoesOnLater) {
  FailingAllocator allocator;
  RowMemory slabs(&allocator, RowLayout(DataType::kFloat, 16, 16));
  RowMemory::RowIdPool pool;
  std::set<uint32_t> row_ids;
  size_t refused = 0;
  for (int i = 0; i < 20000; ++i) {
    allocator.FailAfter(0);
    uint32_t row_id = slabs.Take(&pool);
    if (row_id == kNoRowId) {
      ++refused;
      row_id = slabs.Take(&pool);
    }
    ASSERT_NE(kNoRowId, row_id);
    ASSERT_TRUE(row_ids.insert(row_id).second);
  }
  allocator.NeverFail();
  EXPECT_GE(refused, 5u);
}

}  // namespace
}  // namespace tf_embed
