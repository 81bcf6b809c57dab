// SPDX-License-Identifier: Apache-2.0
// A bucket is one cache line: five keys, their row ids, and a word that is lock, version and marks
// at once.
//
//     | key 0 .. key 4 : 5 x 8 | row id 0 .. row id 4 : 5 x 4 | word : 4 |
//
//     word:  | version : 29 | moved : 1 | overflowed : 1 | locked : 1 |
//
// A lane is empty when its row id is kNoRowId, so no key is reserved. The version changes with each
// change of the bucket or of a row in it. A reader that finds the same word before and after its
// reads has read a consistent state (a seqlock). A writer takes the lock with one compare-and-swap
// from the word under which it found its key, so the result of its search still holds.
//
// Thread safety: fields are atomic. Lanes change only under the lock of the word and the mutex of
// the stripe; rows of a bucket's keys only under the lock of the word.
#ifndef TF_EMBED_CC_CORE_INDEX_BUCKET_H_
#define TF_EMBED_CC_CORE_INDEX_BUCKET_H_

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "cc/core/base/lock_order.h"
#include "cc/core/base/platform.h"

namespace tf_embed {

inline constexpr uint32_t kNoRowId = 0xffffffffu;

// Waits a little longer each time. After a while yields, because the thread that it waits for may
// have been put to sleep.
class Backoff {
 public:
  void Wait() {
    if (++turns_ > kTurnsBeforeYield) {
      sched_yield();
    } else {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }

 private:
  static constexpr int kTurnsBeforeYield = 64;
  int turns_ = 0;
};

struct alignas(64) Bucket {
  static constexpr int kLanes = 5;
  static constexpr uint32_t kLocked = 1;
  static constexpr uint32_t kOverflowed = 2;  // a key whose home is here may lie further on
  static constexpr uint32_t kMoved = 4;       // the stripe has a new array; look there
  static constexpr uint32_t kVersion = 8;

  std::atomic<int64_t> keys[kLanes];
  std::atomic<uint32_t> row_ids[kLanes];
  std::atomic<uint32_t> word;

  // Makes raw memory an empty bucket.
  void Reset() {
    for (int lane = 0; lane < kLanes; ++lane) {
      keys[lane].store(0, std::memory_order_relaxed);
      row_ids[lane].store(kNoRowId, std::memory_order_relaxed);
    }
    word.store(0, std::memory_order_relaxed);
  }

  // Waits until the lock is free, and returns the word.
  uint32_t WaitUnlocked() const {
    uint32_t seen = word.load(std::memory_order_acquire);
    for (Backoff backoff; seen & kLocked; seen = word.load(std::memory_order_acquire)) {
      backoff.Wait();
    }
    return seen;
  }

  // Whether nothing has changed since the word was `seen`. Call it after the reads to validate.
  TF_EMBED_INLINE bool Unchanged(uint32_t seen) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return word.load(std::memory_order_relaxed) == seen;
  }

  // Takes the lock if the word is still `seen`, an unlocked word.
  bool TryLock(uint32_t seen) {
    if (!word.compare_exchange_strong(seen, seen | kLocked, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return false;
    }
    // A reader that sees a store made under the lock also sees the lock.
    std::atomic_thread_fence(std::memory_order_release);
    const LockPlace place(LockRank::kBucket);
    place.CheckWait();  // callers try until they have it
    place.Taken();
    return true;
  }

  // Takes the lock and returns the word before.
  uint32_t Lock() {
    for (;;) {
      const uint32_t seen = WaitUnlocked();
      if (TryLock(seen)) return seen;
    }
  }

  // Releases the lock; `before` is the word when it was taken, and `marks` are set as well.
  void Unlock(uint32_t before, uint32_t marks = 0) {
    LockPlace(LockRank::kBucket).GivenBack();
    word.store((before + kVersion) | marks, std::memory_order_release);
  }

  // The lane of `key`, or -1.
  int FindLane(int64_t key) const {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (keys[lane].load(std::memory_order_relaxed) == key &&
          row_ids[lane].load(std::memory_order_relaxed) != kNoRowId) {
        return lane;
      }
    }
    return -1;
  }
};

static_assert(sizeof(Bucket) == 64, "a bucket is one cache line");

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_INDEX_BUCKET_H_
