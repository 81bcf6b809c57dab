// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace tf_embed {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
// Blocks of at least this size are mapped, not taken from the heap.
constexpr size_t kMapThreshold = kHugePage;

size_t RoundUp(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Maps `bytes` (a multiple of a page), aligned to a huge page: maps one huge page more, then unmaps
// the parts before and after. The remainder beyond the last whole huge page uses small pages.
void* MapAligned(size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  char* const aligned =
      reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage));
  const size_t before = aligned - begin;
  // They fail only if the process has too many mappings. Then unused address space stays mapped.
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(aligned + bytes, kHugePage - before);
  madvise(aligned, bytes, MADV_HUGEPAGE);  // only advice: the block also works without huge pages
  return aligned;
}

class ProcessAllocator final : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX / 2) return nullptr;
    if (bytes >= kMapThreshold) return MapAligned(RoundUp(bytes, kPage));
    return std::aligned_alloc(kCacheLine, RoundUp(bytes, kCacheLine));
  }

  void Deallocate(void* memory, size_t bytes) override {
    if (bytes >= kMapThreshold) {
      munmap(memory, RoundUp(bytes, kPage));  // a whole mapping, so none is split
    } else {
      std::free(memory);
    }
  }
};

}  // namespace

size_t PhysicalMemoryBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

Allocator* HostAllocator() {
  static ProcessAllocator* const allocator = new ProcessAllocator;  // never destroyed: used at exit
  return allocator;
}

}  // namespace tf_embed
