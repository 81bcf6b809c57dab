// SPDX-License-Identifier: Apache-2.0
// The locks of a store that a verb holds throughout, and their acquisition for several stores by a
// caller of many verbs.
//
// A verb takes the locks that it needs, unless the context says that the caller holds them already
// (ExecContext::held). The caller must hold them if verbs run in the threads of a pool: such a
// thread may not wait for a lock, because a verb inside may be waiting for the pool (lock_order.h).
#ifndef TF_EMBED_CC_CORE_STORE_STORE_LOCKS_H_
#define TF_EMBED_CC_CORE_STORE_STORE_LOCKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"

namespace tf_embed {

class Store;

struct StoreLocks {
  // Whether writing verbs exclude each other.
  enum class Writes : uint8_t { kTogether, kAlone };

  explicit StoreLocks(Writes writes)
      : number(NextNumber()),
        writes(writes),
        writers(LockRank::kWriters, number),
        content(LockRank::kContent, number),
        policy(LockRank::kPolicy, number) {}

  // Lock order within one rank: the order in which stores were made.
  const uint64_t number;
  const Writes writes;
  // Shared by verbs that change the store; exclusive to callers that keep them out.
  mutable FairSharedMutex writers;
  // Shared by all verbs; exclusive to verbs that replace or rearrange everything.
  mutable FairSharedMutex content;
  // Serializes writing verbs in a store that plans its writes.
  mutable OrderedMutex policy;

 private:
  static uint64_t NextNumber() {
    static std::atomic<uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
  }
};

// For a verb that reads. If it notes uses of rows, it writes their statistics, so callers that
// pause writers keep it out too.
class ReadLocks {
 public:
  ReadLocks(const StoreLocks& locks, const ExecContext& context, bool notes_uses = false) {
    if (context.held == Held::kContent || context.held == Held::kUsing ||
        context.held == Held::kWriting) {
      return;
    }
    if (notes_uses && context.held != Held::kPaused) {
      writers_ = std::shared_lock<FairSharedMutex>(locks.writers);
    }
    content_ = std::shared_lock<FairSharedMutex>(locks.content);
  }

 private:
  std::shared_lock<FairSharedMutex> writers_;
  std::shared_lock<FairSharedMutex> content_;
};

// For a verb that writes, in a store that admits concurrent writes.
class WriteLocks {
 public:
  WriteLocks(const StoreLocks& locks, const ExecContext& context) {
    if (context.held == Held::kWriting) return;
    if (context.held != Held::kPaused) writers_ = std::shared_lock<FairSharedMutex>(locks.writers);
    content_ = std::shared_lock<FairSharedMutex>(locks.content);
  }
  void Release() {
    if (content_.owns_lock()) content_.unlock();
    if (writers_.owns_lock()) writers_.unlock();
  }

 private:
  std::shared_lock<FairSharedMutex> writers_;
  std::shared_lock<FairSharedMutex> content_;
};

// For a verb that replaces the content, and waits until no other verb is inside.
class ReplaceLocks {
 public:
  ReplaceLocks(const StoreLocks& locks, const ExecContext& context) {
    if (context.held != Held::kPaused) writers_ = std::shared_lock<FairSharedMutex>(locks.writers);
    content_ = std::unique_lock<FairSharedMutex>(locks.content);
  }

 private:
  std::shared_lock<FairSharedMutex> writers_;
  std::unique_lock<FairSharedMutex> content_;
};

// For a verb that keeps writers out. Readers may continue.
class PauseLocks {
 public:
  PauseLocks(const StoreLocks& locks, const ExecContext& context) {
    if (context.held == Held::kPaused || context.held == Held::kWriting) return;
    writers_ = std::unique_lock<FairSharedMutex>(locks.writers);
  }

 private:
  std::unique_lock<FairSharedMutex> writers_;
};

// Several stores, held by one thread for the verbs that it calls, directly or on pool threads, with
// `held` in their context.
class HeldStores {
 public:
  explicit HeldStores(Allocator* allocator) : stores_(allocator) {}
  ~HeldStores() { Release(); }
  HeldStores(const HeldStores&) = delete;
  HeldStores& operator=(const HeldStores&) = delete;

  // Locks stores, possibly repeated, in the global order. REQUIRES: none are held.
  Status Take(const Store* const* stores, size_t count, Held held);
  void Release();

  // Each store once.
  size_t size() const { return count_; }
  const Store* operator[](size_t i) const { return stores_[i]; }

 private:
  template <typename Do>
  void ForEach(const Do& act) const;
  template <typename Do>
  void ForEachPlanned(const Do& act) const;  // of stores whose writes are planned

  Buffer<const Store*> stores_;
  size_t count_ = 0;
  Held held_ = Held::kNothing;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_STORE_LOCKS_H_
