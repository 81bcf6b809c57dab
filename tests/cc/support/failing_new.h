// SPDX-License-Identifier: Apache-2.0
// An operator new that fails on demand, for the whole program. Only a single file of a program may
// include this.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_FAILING_NEW_H_
#define TF_EMBED_TESTS_CC_SUPPORT_FAILING_NEW_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

// Like FailingAllocator::FailAfter, for operator new in this thread.
thread_local int64_t news_to_pass = INT64_MAX;
thread_local bool news_fail_for_good = false;

}  // namespace

// Not inlined, because g++ would warn that malloc and operator delete do not match.
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (news_to_pass <= 0) {
    if (!news_fail_for_good) news_to_pass = INT64_MAX;
    throw std::bad_alloc();
  }
  --news_to_pass;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// The default form, which the allocator of AddressSanitizer would replace by its own.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

#endif  // TF_EMBED_TESTS_CC_SUPPORT_FAILING_NEW_H_
