// SPDX-License-Identifier: Apache-2.0
// The order in which a thread may take locks, and its check.
//
// A thread takes locks by rising rank, and locks of the same rank by rising number. The ranks up to
// kPolicy are held while a verb waits for the threads of a pool (ExecContext::parallel_for). So
// work that runs in such threads must not wait for a lock of these ranks: its holder may be waiting
// for that very thread.
//
// Builds with TF_EMBED_CHECK_LOCKS check both rules at each acquisition that may wait, whether or
// not it waits, and end the process at the first violation. Other builds check nothing and pay
// nothing.
#ifndef TF_EMBED_CC_CORE_BASE_LOCK_ORDER_H_
#define TF_EMBED_CC_CORE_BASE_LOCK_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <mutex>

#if defined(TF_EMBED_CHECK_LOCKS)
#include <cstdio>
#include <cstdlib>
#endif

#include "cc/core/base/thread_annotations.h"

namespace tf_embed {

enum class LockRank : uint8_t {
  kSave,       // saving a variable to files
  kStrings,    // the dictionaries of a variable
  kShards,     // writing to several stores of a table, by the number of the table
  kWriters,    // StoreLocks::writers, by the number of the store
  kContent,    // StoreLocks::content, also shared
  kPolicy,     // StoreLocks::policy, also shared
  kTier,       // rows on their way up to the next tier
  kCounts,     // the counts of an admission policy
  kTwoTiers,   // rows on their way between a tier in host memory and the tier below it
  kSweep,      // the search for rows that leave a tier in host memory
  kRowLog,     // the end of a tier's log of rows, for threads that append
  kLogTail,    // the same, for threads that read rows that are not on the medium yet
  kSegments,   // files of a log
  kStripe,     // a stripe of an index
  kRows,       // slabs and freed rows of a RowMemory
  kArena,      // memory of an index
  kLog,        // evicted rows
  kGiving,     // the turn of a store on a device to hand rows to a snapshot
  kBucket,     // a bucket's word
  kChanges,    // rows and keys that a snapshot will have
  kUnordered,  // not checked: the owner of such a lock says why it causes no cycle
};

#if defined(TF_EMBED_CHECK_LOCKS)

// The locks of one thread.
class HeldLocks {
 public:
  static HeldLocks& OfThread() {
    thread_local HeldLocks held;
    return held;
  }

  // Before the thread waits for a lock.
  void CheckWait(LockRank rank, uint64_t number) const {
    for (size_t i = 0; i < size_; ++i) {
      if (locks_[i].rank < rank || (locks_[i].rank == rank && locks_[i].number < number)) continue;
      Die("waits for", rank, number, "while it holds", locks_[i].rank, locks_[i].number);
    }
    if (works_ > 0 && rank <= LockRank::kPolicy) {
      Die("in work of a parallel_for waits for", rank, number, "of which the rank is", rank, 0);
    }
  }
  void Add(LockRank rank, uint64_t number) {
    if (size_ == kMax)
      Die("holds more locks than are counted and takes", rank, number, "", rank, 0);
    locks_[size_++] = {rank, number};
  }
  void Remove(LockRank rank, uint64_t number) {
    for (size_t i = size_; i-- > 0;) {
      if (locks_[i].rank != rank || locks_[i].number != number) continue;
      for (--size_; i < size_; ++i) locks_[i] = locks_[i + 1];
      return;
    }
    Die("gives back", rank, number, "which it does not hold:", rank, number);
  }

  // Before the thread waits for the threads of a pool.
  void CheckParallelFor() const {
    for (size_t i = 0; i < size_; ++i) {
      if (locks_[i].rank <= LockRank::kPolicy) continue;
      Die("waits for the threads of a pool", locks_[i].rank, locks_[i].number, "while it holds",
          locks_[i].rank, locks_[i].number);
    }
  }
  void BeginWork() { ++works_; }
  void EndWork() { --works_; }

 private:
  static constexpr size_t kMax = 4096;
  struct Lock {
    LockRank rank;
    uint64_t number;
  };

  [[noreturn]] static void Die(const char* does, LockRank rank, uint64_t number, const char* with,
                               LockRank other, uint64_t other_number) {
    std::fprintf(stderr, "Lock order: a thread %s rank %d number %llu %s rank %d number %llu.\n",
                 does, static_cast<int>(rank), static_cast<unsigned long long>(number), with,
                 static_cast<int>(other), static_cast<unsigned long long>(other_number));
    std::abort();
  }

  Lock locks_[kMax];
  size_t size_ = 0;
  int works_ = 0;
};

// The place of one lock in the order.
class LockPlace {
 public:
  explicit LockPlace(LockRank rank, uint64_t number = 0) : rank_(rank), number_(number) {}
  void CheckWait() const {
    if (IsOrdered()) HeldLocks::OfThread().CheckWait(rank_, number_);
  }
  void Taken() const {
    if (IsOrdered()) HeldLocks::OfThread().Add(rank_, number_);
  }
  void GivenBack() const {
    if (IsOrdered()) HeldLocks::OfThread().Remove(rank_, number_);
  }

 private:
  bool IsOrdered() const { return rank_ != LockRank::kUnordered; }

  const LockRank rank_;
  const uint64_t number_;
};

#else

class LockPlace {
 public:
  explicit LockPlace(LockRank, uint64_t = 0) {}
  void CheckWait() const {}
  void Taken() const {}
  void GivenBack() const {}
};

#endif

// A mutex with a place in the order.
class TF_EMBED_MUTEX OrderedMutex {
 public:
  explicit OrderedMutex(LockRank rank, uint64_t number = 0) : place_(rank, number) {}

  void lock() TF_EMBED_LOCKS {
    place_.CheckWait();
    mutex_.lock();
    place_.Taken();
  }
  bool try_lock() TF_EMBED_LOCKS_IF_TRUE {
    if (!mutex_.try_lock()) return false;
    place_.Taken();
    return true;
  }
  void unlock() TF_EMBED_UNLOCKS {
    place_.GivenBack();
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
  LockPlace place_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_LOCK_ORDER_H_
