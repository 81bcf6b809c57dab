// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/region_arena.h"

#include <new>

namespace tf_embed {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Below this total no regions are made.
constexpr size_t kSmallestTotal = kHugePage;
constexpr size_t kRegionsOfTotal = 16;
// A block may take this share of a region at most.
constexpr size_t kBlocksOfRegion = 4;

}  // namespace

// The header of a region: its first cache line.
struct alignas(64) RegionArena::Region {
  size_t bytes;
  size_t used;
  size_t blocks;
};

RegionArena::~RegionArena() {
  if (open_ != nullptr) allocator_->Deallocate(open_, open_->bytes);
}

RegionArena::Block RegionArena::Allocate(size_t bytes) {
  std::lock_guard<OrderedMutex> lock(mutex_);
  const size_t total = bytes_out_ + bytes;
  const size_t region_bytes = total / kRegionsOfTotal / kHugePage * kHugePage + kHugePage;
  Block block;
  if (total >= kSmallestTotal && bytes <= region_bytes / kBlocksOfRegion) {
    block = Cut(bytes);
    if (block.memory == nullptr && OpenRegion(region_bytes)) block = Cut(bytes);
  }
  if (block.memory == nullptr) block.memory = allocator_->Allocate(bytes);
  if (block.memory != nullptr) bytes_out_ = total;
  return block;
}

RegionArena::Block RegionArena::Cut(size_t bytes) {
  if (open_ == nullptr || open_->bytes - open_->used < bytes) return Block();
  void* const memory = reinterpret_cast<char*>(open_) + open_->used;
  open_->used += bytes;
  ++open_->blocks;
  return {memory, open_};
}

bool RegionArena::OpenRegion(size_t bytes) {
  void* const memory = allocator_->Allocate(bytes);
  if (memory == nullptr) return false;
  if (open_ != nullptr && open_->blocks == 0) allocator_->Deallocate(open_, open_->bytes);
  open_ = new (memory) Region{bytes, sizeof(Region), 0};
  return true;
}

void RegionArena::Deallocate(const Block& block, size_t bytes) {
  std::lock_guard<OrderedMutex> lock(mutex_);
  bytes_out_ -= bytes;
  Region* const region = block.region;
  if (region == nullptr) {
    allocator_->Deallocate(block.memory, bytes);
  } else if (--region->blocks == 0) {
    if (region == open_) {
      region->used = sizeof(Region);
    } else {
      allocator_->Deallocate(region, region->bytes);
    }
  }
}

}  // namespace tf_embed
