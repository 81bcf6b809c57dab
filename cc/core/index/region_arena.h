// SPDX-License-Identifier: Apache-2.0
// Memory for the arrays of an index: blocks cut one after the other from regions, which are mapped
// on huge pages.
//
// The arrays of an index's stripes, some ten kilobytes to a megabyte, are too small for separate
// huge pages, and every find would pay for that with a TLB miss. In a heap they would also leave
// holes, because each growth takes half as much again as it frees. But stripes grow in turn, so
// arrays are freed nearly in the order in which they were taken, and a region is free soon after
// its first block is. A region is a sixteenth of all memory in use: little is lost at the end of a
// region, or while a region waits for its last block.
//
// While little is allocated, and for blocks that are large relative to a region, the allocator
// serves directly.
//
// Thread-safe.
#ifndef TF_EMBED_CC_CORE_INDEX_REGION_ARENA_H_
#define TF_EMBED_CC_CORE_INDEX_REGION_ARENA_H_

#include <cstddef>
#include <mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/thread_annotations.h"

namespace tf_embed {

class RegionArena {
 public:
  struct Region;

  // The origin of a block: its region, or the allocator itself if that is null.
  struct Block {
    void* memory = nullptr;
    Region* region = nullptr;
  };

  explicit RegionArena(Allocator* allocator) : allocator_(allocator) {}
  // REQUIRES: all blocks were deallocated.
  ~RegionArena();
  RegionArena(const RegionArena&) = delete;
  RegionArena& operator=(const RegionArena&) = delete;

  // A block of `bytes` (a multiple of a cache line, and so aligned), or none without memory.
  Block Allocate(size_t bytes);
  void Deallocate(const Block& block, size_t bytes);

  // The bytes that are allocated and not yet freed.
  size_t bytes_out() const {
    std::lock_guard<OrderedMutex> lock(mutex_);
    return bytes_out_;
  }

 private:
  // A block of the open region, or none if it has no room.
  Block Cut(size_t bytes) TF_EMBED_REQUIRES(mutex_);
  // Closes the open region and opens another; false without memory.
  bool OpenRegion(size_t bytes) TF_EMBED_REQUIRES(mutex_);

  Allocator* const allocator_;
  mutable OrderedMutex mutex_{LockRank::kArena};
  size_t bytes_out_ TF_EMBED_GUARDED_BY(mutex_) = 0;
  Region* open_ TF_EMBED_GUARDED_BY(mutex_) = nullptr;  // the region that blocks are cut from
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_INDEX_REGION_ARENA_H_
