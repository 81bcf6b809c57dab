// SPDX-License-Identifier: Apache-2.0
// The thread pool of the benchmarks of the core.
#ifndef TF_EMBED_BENCHMARKS_POOL_H_
#define TF_EMBED_BENCHMARKS_POOL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cc/core/base/exec_context.h"

namespace tf_embed {

// Threads that wait for work, beside the one that calls.
class Pool {
 public:
  explicit Pool(size_t threads) : threads_(threads) {
    for (size_t i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  ExecContext Context() {
    ExecContext context;
    context.parallel_for = [this](size_t total, size_t cost, const ExecContext::Work& work) {
      ParallelFor(total, cost, work);
    };
    return context;
  }

 private:
  // As TensorFlow's pool: less than 10 us of work wakes no thread.
  void ParallelFor(size_t total, size_t cost, const ExecContext::Work& work) {
    if (threads_ == 1 || total <= 1 || total * cost < 10000) {
      if (total > 0) work(0, total);
      return;
    }
    const size_t piece = std::max<size_t>(1, total / (4 * threads_));
    std::atomic<size_t> next{0};
    std::atomic<size_t> running{threads_ - 1};
    const auto run = [&] {
      for (size_t begin; (begin = next.fetch_add(piece)) < total;) {
        work(begin, std::min(begin + piece, total));
      }
    };
    for (size_t i = 1; i < threads_; ++i) {
      Schedule([&] {
        run();
        running.fetch_sub(1, std::memory_order_release);
      });
    }
    run();
    while (running.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_POOL_H_
