// SPDX-License-Identifier: Apache-2.0
// The context that a caller passes to each verb: the threads that it may run on (the core makes
// none), the moment it runs at, and whether it is a part of training.
#ifndef TF_EMBED_CC_CORE_BASE_EXEC_CONTEXT_H_
#define TF_EMBED_CC_CORE_BASE_EXEC_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "cc/core/base/lock_order.h"

namespace tf_embed {

class Allocator;
class LaunchQueue;

// A moment is a step and a time: the number of the caller's step, which is the same whenever the
// same steps are run, and the time of day, in milliseconds since 1970. The caller defines its
// epoch, such as a number of steps.
struct Moment {
  uint64_t step = 0;
  uint64_t milliseconds = 0;
  uint64_t epoch = 0;  // at most kMaxEpoch
};
inline constexpr uint64_t kMaxEpoch = INT32_MAX;

// The locks of the store that the caller of a verb already holds (HeldStores in store_locks.h), so
// that the verb does not take them.
enum class Held : uint8_t {
  kNothing,
  kContent,  // nothing is replaced or rearranged: for verbs that read
  kUsing,    // the same, and no thread keeps writers out: for verbs that read and note uses
  kWriting,  // the same, and the locks of a writing verb: for verbs that write
  kPaused,   // no other thread writes: for verbs that keep writers out
};

// Runs work on the caller's threads; see ExecContext::parallel_for.
class ParallelFor {
 public:
  using Work = std::function<void(size_t begin, size_t end)>;
  using Function = std::function<void(size_t total, size_t cost, const Work& work)>;

  // Runs work in the calling thread. `waits`: whether locks are checked as if it waited for a pool.
  static ParallelFor Serial(bool waits) {
    ParallelFor serial;
    serial.function_ = [](size_t total, size_t, const Work& work) {
      if (total > 0) work(0, total);
    };
    serial.waits_ = waits;
    return serial;
  }

  ParallelFor& operator=(Function function) {
    function_ = std::move(function);
    waits_ = true;
    return *this;
  }

  void operator()(size_t total, size_t cost, const Work& work) const {
#if defined(TF_EMBED_CHECK_LOCKS)
    if (waits_) HeldLocks::OfThread().CheckParallelFor();
    const auto checked = [&work](size_t begin, size_t end) {
      HeldLocks::OfThread().BeginWork();
      work(begin, end);
      HeldLocks::OfThread().EndWork();
    };
    function_(total, cost, std::cref(checked));
#else
    function_(total, cost, work);
#endif
  }

 private:
  Function function_;
  bool waits_ = true;  // for threads of a pool
};

struct ExecContext {
  // Calls `work(begin, end)` over disjoint ranges that make up [0, total), perhaps concurrently,
  // and returns when all are done. `cost` is the cost of a unit in nanoseconds, roughly. Wherever
  // the core makes `work`, it holds a reference (std::cref): a lambda might need memory, and throw.
  // It waits for no lock of a store (lock_order.h).
  using Work = ParallelFor::Work;
  ParallelFor parallel_for;

  // For devices: the stream on which the caller's arrays are ready and the verb's results will be;
  // null: the device's default stream. Stores without streams ignore it. Verbs on another stream
  // wait for the work of this stream, so it outlives the last verb of the stores that it was used
  // with, but not necessarily the stores.
  void* stream = nullptr;

  // For devices: an allocator of device memory for the time of a verb. Memory is freed when the
  // verb is queued, and may then be given to work that is queued later on `stream`. If it has no
  // memory, or is null, the store uses its own. It outlives all copies of this context.
  Allocator* scratch = nullptr;

  // A store keeps its statistics by these two; see row_policy.h.
  Moment now;
  bool training = false;

  // A write inserts all of its rows, even if the store's policy would refuse new rows. The caller
  // keeps the bound: it restores saved rows, or it is a store over this store and has planned the
  // rows to insert.
  bool restoring = false;

  // Rows, defaults, slots and gradients of a batch are in device memory, and the rest of the batch
  // is on the host. For a store over several tiers whose first tier is on that device; the store
  // copies the rest there itself.
  bool rows_on_device = false;

  Held held = Held::kNothing;

  // Where launches wait for those of other stores on the device; null: they are made at once.
  LaunchQueue* queue = nullptr;

  // Runs everything in the calling thread. Locks are checked as with a pool, so that a test without
  // threads finds the same errors.
  static ExecContext Serial() {
    ExecContext context;
    context.parallel_for = ParallelFor::Serial(/*waits=*/true);
    return context;
  }

  // The same moment and purpose in the calling thread, for a caller that must not wait for a pool.
  ExecContext InSerial() const {
    ExecContext context = *this;
    context.parallel_for = ParallelFor::Serial(/*waits=*/false);
    return context;
  }
  // The same, for verbs whose caller holds the store.
  ExecContext Holding(Held what) const {
    ExecContext context = *this;
    context.held = what;
    return context;
  }
  // The same, for arrays on the host.
  ExecContext OnHost() const {
    ExecContext context = *this;
    context.rows_on_device = false;
    return context;
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_EXEC_CONTEXT_H_
