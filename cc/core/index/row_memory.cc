// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/row_memory.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "cc/core/rows/row_copy.h"

namespace tf_embed {
namespace {

constexpr size_t kFirstSlabBytes = size_t{16} << 10;
constexpr size_t kFullSlabBytes = size_t{16} << 20;
constexpr uint32_t kLongestRun = 16;
// Runs get one row id longer for each kRowsPerRunRow row ids that were taken.
constexpr uint32_t kRowsPerRunRow = 4096;

// The exponent of the largest power of two of rows of `row_bytes` that fit in `bytes`.
int RowBits(size_t bytes, size_t row_bytes) {
  int bits = 0;
  while (bits < 24 && (row_bytes << (bits + 1)) <= bytes) ++bits;
  return bits;
}

}  // namespace

RowMemory::RowMemory(Allocator* allocator, const RowLayout& layout)
    : allocator_(allocator), layout_(layout) {
  const size_t bytes = std::max(layout.weight_bytes, RowLayout::kAlignment);
  first_bits_ = RowBits(kFirstSlabBytes, bytes);
  full_bits_ = std::max(first_bits_, RowBits(kFullSlabBytes, bytes));
  first_full_row_ = 1u << full_bits_;
  first_full_slab_ = static_cast<size_t>(full_bits_ - first_bits_) + 1;
  const uint64_t all_rows = static_cast<uint64_t>(kPages * kSlabsPerPage - first_full_slab_)
                            << full_bits_;
  max_rows_ = static_cast<uint32_t>(
      std::min<uint64_t>(all_rows, std::numeric_limits<uint32_t>::max() - kLongestRun));
}

RowMemory::~RowMemory() {
  const size_t slabs = slabs_.load(std::memory_order_relaxed);
  for (size_t slab = 0; slab < slabs; ++slab) {
    allocator_->Deallocate(Slab(slab), SlabBytes(slab, layout_));
  }
  for (auto& page : pages_) {
    Page* const memory = page.load(std::memory_order_relaxed);
    if (memory != nullptr) allocator_->Deallocate(memory, sizeof(Page));
  }
}

uint32_t RowMemory::RunLength() const {
  const uint32_t taken = next_row_id_.load(std::memory_order_relaxed);
  return std::min(kLongestRun, 1 + taken / kRowsPerRunRow);
}

uint32_t RowMemory::Take(RowIdPool* pool) {
  if (pool->freed == kNoRowId && pool->run_next == pool->run_end) TakeChain(pool);
  if (pool->freed != kNoRowId) {
    const uint32_t row_id = pool->freed;
    LoadRow(Row(row_id), sizeof(pool->freed), &pool->freed);
    if (pool->num_freed > 0) --pool->num_freed;
    // The next call reads the link of this row, and its caller writes the row.
    if (pool->freed != kNoRowId) PrefetchRow(Row(pool->freed), layout_.stride);
    return row_id;
  }
  if (pool->run_next == pool->run_end) {
    uint32_t begin = next_row_id_.load(std::memory_order_relaxed);
    uint32_t end;
    do {
      if (begin >= max_rows_) return kNoRowId;
      end = begin + std::min(kLongestRun, 1 + begin / kRowsPerRunRow);
      if (!ReserveSlabs(end)) return kNoRowId;
    } while (!next_row_id_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
    pool->run_next = begin;
    pool->run_end = end;
  }
  return pool->run_next++;
}

void RowMemory::Free(RowIdPool* pool, uint32_t row_id) {
  const Link link{pool->freed, kNoRowId};
  StoreRow(&link, sizeof(link), Row(row_id));
  pool->freed = row_id;
  if (++pool->num_freed < RunLength()) return;
  std::lock_guard<OrderedMutex> lock(chains_mutex_);
  const Link head{link.next, chains_.load(std::memory_order_relaxed)};
  StoreRow(&head, sizeof(head), Row(row_id));
  chains_.store(row_id, std::memory_order_relaxed);
  pool->freed = kNoRowId;
  pool->num_freed = 0;
}

void RowMemory::TakeChain(RowIdPool* pool) {
  if (chains_.load(std::memory_order_relaxed) == kNoRowId) return;
  std::lock_guard<OrderedMutex> lock(chains_mutex_);
  const uint32_t head = chains_.load(std::memory_order_relaxed);
  if (head == kNoRowId) return;
  Link link;
  LoadRow(Row(head), sizeof(link), &link);
  chains_.store(link.next_chain, std::memory_order_relaxed);
  pool->freed = head;
  pool->num_freed = RunLength();
}

size_t RowMemory::bytes() const {
  size_t sum = 0;
  const size_t slabs = slabs_.load(std::memory_order_acquire);
  for (size_t slab = 0; slab < slabs; ++slab) sum += SlabBytes(slab, layout_);
  return sum;
}

bool RowMemory::ReserveSlabs(uint32_t end) {
  const size_t needed = PlaceOf(end - 1).slab + 1;
  if (slabs_.load(std::memory_order_acquire) >= needed) return true;
  std::lock_guard<OrderedMutex> lock(slab_mutex_);
  while (slabs_.load(std::memory_order_relaxed) < needed) {
    if (!AddSlab()) return false;
  }
  return true;
}

bool RowMemory::AddSlab() {
  const size_t slab = slabs_.load(std::memory_order_relaxed);
  auto& page = pages_[slab / kSlabsPerPage];
  if (page.load(std::memory_order_relaxed) == nullptr) {
    void* const memory = allocator_->Allocate(sizeof(Page));
    if (memory == nullptr) return false;
    page.store(new (memory) Page(), std::memory_order_release);
  }
  void* const memory = allocator_->Allocate(SlabBytes(slab, layout_));
  if (memory == nullptr) return false;
  SetSlab(slab, static_cast<char*>(memory));
  slabs_.store(slab + 1, std::memory_order_release);
  return true;
}

void RowMemory::SetSlab(size_t slab, char* memory) {
  pages_[slab / kSlabsPerPage]
      .load(std::memory_order_relaxed)
      ->slabs[slab % kSlabsPerPage]
      .store(memory, std::memory_order_release);
}

Status RowMemory::ChangeLayout(const RowLayout& layout, const NewSlots& new_slots,
                               const std::function<Status()>& change_others) {
  const size_t slabs = slabs_.load(std::memory_order_relaxed);
  // Takes all memory first: pages that are not written cost nothing yet, and the old slabs are
  // freed one by one.
  Buffer<char*> fresh(allocator_);
  TF_EMBED_RETURN_IF_ERROR(fresh.Resize(slabs));
  const auto free_first = [&](size_t count) {
    while (count-- > 0) allocator_->Deallocate(fresh[count], SlabBytes(count, layout));
  };
  for (size_t slab = 0; slab < slabs; ++slab) {
    const size_t bytes = SlabBytes(slab, layout);
    fresh[slab] = static_cast<char*>(allocator_->Allocate(bytes));
    if (fresh[slab] != nullptr) continue;
    free_first(slab);
    return Status::ResourceExhausted([&] {
      return "No memory for " + std::to_string(bytes) + " bytes of rows with " +
             std::to_string(layout.slots_per_row) + " optimizer slots each.";
    });
  }
  if (change_others != nullptr) {
    Status status = change_others();
    if (!status.ok()) {
      free_first(slabs);
      return status;
    }
  }
  for (size_t slab = 0; slab < slabs; ++slab) {
    char* const old = Slab(slab);
    // Rows that were never handed out stay untouched, so that their pages stay unused.
    const size_t used = next_row_id_.load(std::memory_order_relaxed) - FirstRowOf(slab);
    for (size_t row = 0; row < std::min(used, RowsOfSlab(slab)); ++row) {
      char* const to = fresh[slab] + row * layout.stride;
      const char* const from = old + row * layout_.stride;
      // A freed row's link is stored over its weights, so it moves with them.
      std::memcpy(to, from, layout.slot_offset);
      StoreRow(new_slots(from + layout_.slot_offset), layout.slot_bytes, to + layout.slot_offset);
    }
    // Statistics and marks stay as they are.
    const size_t rows = RowsOfSlab(slab);
    const size_t statistics_bytes =
        layout_.statistics_per_row * sizeof(RowStatistics::Word) * std::min(used, rows);
    if (statistics_bytes > 0) {
      std::memcpy(fresh[slab] + rows * layout.stride, old + rows * layout_.stride,
                  statistics_bytes);
    }
    if (layout.has_marks) {
      std::memcpy(fresh[slab] + rows * BytesBeforeMark(layout),
                  old + rows * BytesBeforeMark(layout_), std::min(used, rows));
    }
    allocator_->Deallocate(old, SlabBytes(slab, layout_));
    SetSlab(slab, fresh[slab]);
  }
  layout_ = layout;
  return Status();
}

}  // namespace tf_embed
