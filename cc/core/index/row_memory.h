// SPDX-License-Identifier: Apache-2.0
// The rows of a store in memory, by row id. Rows lie in slabs and never move while they live. Room
// grows by a slab at a time. The first slab is small and each next slab is twice as large, up to
// about 16 MiB of weights; from there on all are alike. So a small store is small, and a large
// store leaves at most one slab partly used.
//
//     slab 0 | slab 1 | slab 2     | ... | slab k             | slab k+1           | ...
//     2^f    | 2^f    | 2^(f+1)    |     | 2^m rows           | 2^m rows
//
// Behind the rows of a slab lie their statistics, a few 64-bit words each, and their marks, a byte
// each, if they have any. So a pass over all statistics or marks does not read the rows, and a
// change of them does not touch the rows' cache lines.
//
// Row ids are handed out in runs, so that the stripes of an index, which share them, rarely
// contend. A freed row id goes on its stripe's list, and a list as long as a run goes to all
// stripes. So hardly more row ids are ever taken than there were rows at most. The links lie in the
// rows themselves.
//
// Thread safety: Row, and the row ids of different RowIdPools, from any thread. A RowIdPool is used
// by one thread at a time (the stripe's mutex). ChangeLayout: REQUIRES that no other thread is in
// the slabs.
#ifndef TF_EMBED_CC_CORE_INDEX_ROW_MEMORY_H_
#define TF_EMBED_CC_CORE_INDEX_ROW_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/platform.h"
#include "cc/core/index/bucket.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/rows/row_mark.h"
#include "cc/core/rows/row_statistics.h"

namespace tf_embed {

class RowMemory {
 public:
  // The row ids that a stripe holds: a run that was never used, and a chain of freed row ids.
  struct RowIdPool {
    uint32_t run_next = 0;
    uint32_t run_end = 0;
    uint32_t freed = kNoRowId;
    uint32_t num_freed = 0;  // about
  };

  RowMemory(Allocator* allocator, const RowLayout& layout);
  ~RowMemory();
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;

  TF_EMBED_INLINE const RowLayout& layout() const { return layout_; }

  // The row of a row id that was taken.
  TF_EMBED_INLINE char* Row(uint32_t row_id) const {
    const Place place = PlaceOf(row_id);
    return Slab(place.slab) + place.row * layout_.stride;
  }

  // The statistics of a row id that was taken.
  RowStatistics::Word* Statistics(uint32_t row_id) const {
    const Place place = PlaceOf(row_id);
    char* const behind_rows = Slab(place.slab) + RowsOfSlab(place.slab) * layout_.stride;
    return reinterpret_cast<RowStatistics::Word*>(behind_rows) +
           place.row * layout_.statistics_per_row;
  }

  // The mark of a row id that was taken. REQUIRES: the layout has marks.
  TF_EMBED_INLINE RowMark::Byte* Mark(uint32_t row_id) const {
    const Place place = PlaceOf(row_id);
    char* const marks = Slab(place.slab) + RowsOfSlab(place.slab) * BytesBeforeMark(layout_);
    return reinterpret_cast<RowMark::Byte*>(marks) + place.row;
  }

  // The bytes of all slabs.
  size_t bytes() const;

  // Takes a row id out of the pool; kNoRowId without memory. The row's content is unspecified.
  uint32_t Take(RowIdPool* pool);

  // Frees a row id. Its row is overwritten, so readers must no longer be able to find it.
  void Free(RowIdPool* pool, uint32_t row_id);

  // Returns the new slots (layout.slot_bytes) of a row, given its present slots.
  using NewSlots = std::function<const void*(const char* slots)>;

  // Gives all rows another layout of the same weights: weights stay, and `new_slots` gives the
  // slots. It is called for freed rows as well. On failure nothing has changed. Calls
  // `change_others`, if it is given, when nothing can fail here any more, and changes nothing if
  // that fails.
  Status ChangeLayout(const RowLayout& layout, const NewSlots& new_slots,
                      const std::function<Status()>& change_others = nullptr);

 private:
  // The content of a freed row: the next row of its chain and, if it heads a chain without an
  // owner, the head of the next such chain.
  struct Link {
    uint32_t next;
    uint32_t next_chain;
  };

  struct Place {
    size_t slab;
    size_t row;
  };

  static constexpr size_t kSlabsPerPage = 4096;
  static constexpr size_t kPages = 1024;
  struct Page {
    std::atomic<char*> slabs[kSlabsPerPage];
  };

  TF_EMBED_INLINE Place PlaceOf(uint32_t row_id) const {
    // Slabs 1, 2, ... of the doubling part hold 2^f, 2^(f+1), ... rows, so with 2^f added the
    // highest bit of a row id tells its slab. From `first_full_row_` on all have 2^m.
    if (row_id >= first_full_row_) {
      const uint32_t offset = row_id - first_full_row_;
      return {first_full_slab_ + (offset >> full_bits_), offset & ((1u << full_bits_) - 1)};
    }
    if (row_id < (1u << first_bits_)) return {0, row_id};
    const int high = 31 - __builtin_clz(row_id);
    return {static_cast<size_t>(high - first_bits_ + 1), row_id - (1u << high)};
  }

  size_t RowsOfSlab(size_t slab) const {
    if (slab >= first_full_slab_) return size_t{1} << full_bits_;
    return size_t{1} << (slab == 0 ? first_bits_ : first_bits_ + slab - 1);
  }

  size_t SlabBytes(size_t slab, const RowLayout& layout) const {
    return RowsOfSlab(slab) * (BytesBeforeMark(layout) + (layout.has_marks ? 1 : 0));
  }
  // For one row.
  static TF_EMBED_INLINE size_t BytesBeforeMark(const RowLayout& layout) {
    return layout.stride + layout.statistics_per_row * sizeof(RowStatistics::Word);
  }

  size_t FirstRowOf(size_t slab) const {
    if (slab == 0) return 0;
    if (slab < first_full_slab_) return size_t{1} << (first_bits_ + slab - 1);
    return first_full_row_ + ((slab - first_full_slab_) << full_bits_);
  }

  TF_EMBED_INLINE char* Slab(size_t slab) const {
    return pages_[slab / kSlabsPerPage]
        .load(std::memory_order_acquire)
        ->slabs[slab % kSlabsPerPage]
        .load(std::memory_order_acquire);
  }

  // The number of row ids that a stripe takes or gives at a time.
  uint32_t RunLength() const;
  // Takes a chain of freed row ids that has no owner, if there is one.
  void TakeChain(RowIdPool* pool);

  // Makes sure that the slab of each row id below `end` exists. False without memory.
  bool ReserveSlabs(uint32_t end);
  bool AddSlab();
  void SetSlab(size_t slab, char* memory);

  Allocator* const allocator_;
  RowLayout layout_;
  int first_bits_;           // f
  int full_bits_;            // m
  uint32_t first_full_row_;  // 2^m
  size_t first_full_slab_;   // m - f + 1
  uint32_t max_rows_;

  std::atomic<uint32_t> next_row_id_{0};  // the first row id that is in no run
  OrderedMutex chains_mutex_{LockRank::kRows};
  std::atomic<uint32_t> chains_{kNoRowId};  // head of the first chain of freed row ids
  OrderedMutex slab_mutex_{LockRank::kRows};
  std::atomic<size_t> slabs_{0};
  std::atomic<Page*> pages_[kPages] = {};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_INDEX_ROW_MEMORY_H_
