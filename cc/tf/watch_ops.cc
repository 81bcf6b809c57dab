// SPDX-License-Identifier: Apache-2.0
// Aborts collectives that take too long. One thread watches all of them.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/shared_variant.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

using Clock = std::chrono::steady_clock;

// The longest wait that can be added to the clock without overflow.
constexpr float kMostSeconds = 1e8f;

class Watchdog {
 public:
  // The process's watchdog. It is never destroyed, because its thread never ends.
  static Watchdog* Get() {
    static Watchdog* const watchdog = new Watchdog;
    return watchdog;
  }

  // Calls `executor->StartAbort` after `seconds`, unless Remove is called before.
  uint64_t Add(tf::CollectiveExecutor* executor, float seconds, std::string message) {
    // The step may end, and drop its executor, before the watchdog looks at it.
    executor->Ref();
    const auto wait =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    const std::lock_guard<std::mutex> lock(mutex_);
    // Started at the first use: a process that never exchanges has no such thread.
    if (!std::exchange(has_thread_, true)) std::thread([this] { Run(); }).detach();
    const uint64_t number = ++last_number_;
    const Clock::time_point end = Clock::now() + wait;
    ends_[number] = end;
    const bool is_first = watches_.empty() || end < watches_.begin()->first.first;
    watches_[{end, number}] = {executor, std::move(message)};
    // The thread sleeps until the earliest deadline, so only an earlier deadline must wake it.
    if (is_first) changed_.notify_one();
    return number;
  }

  void Remove(uint64_t number) {
    tf::CollectiveExecutor* executor = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto end = ends_.find(number);
      if (end == ends_.end()) return;  // already removed or expired
      const auto watch = watches_.find({end->second, number});
      executor = watch->second.executor;
      watches_.erase(watch);
      ends_.erase(end);
    }
    // Without the lock: the last reference runs the destructor of the executor.
    executor->Unref();
  }

 private:
  struct Watch {
    tf::CollectiveExecutor* executor;  // holds a reference
    std::string message;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (watches_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const auto first = watches_.begin();
      if (Clock::now() < first->first.first) {
        changed_.wait_until(lock, first->first.first);
        continue;
      }
      const Watch watch = std::move(first->second);
      ends_.erase(first->first.second);
      watches_.erase(first);
      // StartAbort calls back into TensorFlow, where a kernel may end its watch and need the lock.
      lock.unlock();
      watch.executor->StartAbort(absl::DeadlineExceededError(watch.message));
      watch.executor->Unref();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<Clock::time_point, uint64_t>, Watch> watches_;  // by deadline
  std::map<uint64_t, Clock::time_point> ends_;
  uint64_t last_number_ = 0;
  bool has_thread_ = false;
};

// Removes its watch when destroyed.
class HeldWatch {
 public:
  static constexpr char kTypeName[] = "tf_embed::HeldWatch";

  explicit HeldWatch(uint64_t number) : number_(number) {}
  HeldWatch(const HeldWatch&) = delete;
  HeldWatch& operator=(const HeldWatch&) = delete;
  ~HeldWatch() { End(); }

  void End() { Watchdog::Get()->Remove(number_); }

 private:
  const uint64_t number_;
};

class StartWatchOp final : public tf::OpKernel {
 public:
  explicit StartWatchOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("what", &what_));
  }

  void Compute(tf::OpKernelContext* context) override {
    float seconds;
    OP_REQUIRES_OK(context, ReadScalar(context->input(0), "seconds", &seconds));
    OP_REQUIRES(context, seconds > 0 && seconds <= kMostSeconds,
                InvalidArgumentError("`seconds` must be above 0 and at most ", kMostSeconds,
                                     ". Received: ", seconds, "."));
    tf::Tensor* watch;
    tf::Tensor* watches;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &watch));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &watches));
    tf::CollectiveExecutor* const executor = context->collective_executor();
    watches->scalar<bool>()() = executor != nullptr;
    // The watch output stays an empty variant, which EndWatch ignores.
    if (executor == nullptr) return;
    const uint64_t number = Watchdog::Get()->Add(
        executor, seconds,
        "Another worker did not take part in " + what_ + " within " +
            std::to_string(static_cast<int64_t>(seconds)) +
            " s (`timeout_seconds`). Collective has timed out: restart all workers from the last "
            "checkpoint.");
    watch->scalar<tf::Variant>()() = SharedVariant<HeldWatch>(std::make_shared<HeldWatch>(number));
  }

  bool IsExpensive() override { return false; }

 private:
  std::string what_;
};

class EndWatchOp final : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    if (HeldWatch* const watch = SharedVariant<HeldWatch>::In(context->input(0))) watch->End();
    context->set_output(0, context->input(1));
  }

  bool IsExpensive() override { return false; }
};

const Kernels<StartWatchOp> start_watch("TfEmbedStartWatch");
const Kernels<EndWatchOp> end_watch("TfEmbedEndWatch");

}  // namespace
}  // namespace tf_embed
