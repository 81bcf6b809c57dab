// SPDX-License-Identifier: Apache-2.0
// Block reads by threads that call pread. A read is a job: a list of blocks and the index of the
// next block. The threads and the caller take blocks until none is left.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "cc/core/base/thread_annotations.h"
#include "cc/tiers/disk/aligned_buffer.h"
#include "cc/tiers/disk/block_reader.h"

namespace tf_embed {
namespace {

constexpr size_t kThreads = 16;

class PreadReader final : public BlockReader {
 public:
  explicit PreadReader(Allocator* allocator) : allocator_(allocator) {}

  ~PreadReader() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

  Status Read(const BlockRead* reads, size_t count, size_t most_bytes,
              Visitor* visitor) override TF_EMBED_LOCKS_UNCHECKED {  // by a unique_lock
    AlignedBuffer buffer(allocator_);
    TF_EMBED_RETURN_IF_ERROR(buffer.Resize(most_bytes));
    Job job = {reads, count, most_bytes, visitor};
    const bool shared = count > 1;
    if (shared) {
      std::lock_guard<std::mutex> lock(mutex_);
      StartThreads(std::min(count - 1, kThreads));
      job.next_job = jobs_;
      jobs_ = &job;
    }
    if (shared) work_.notify_all();
    Work(&job, &buffer);
    if (shared) {
      // No thread joins the job from here on. Wait for the threads that are in it.
      std::unique_lock<std::mutex> lock(mutex_);
      Unlink(&job);
      done_.wait(lock, [&] { return job.threads == 0; });
    }
    return Status();
  }

 private:
  struct Job {
    const BlockRead* reads;
    size_t count;
    size_t most_bytes;
    Visitor* visitor;
    std::atomic<size_t> next{0};
    size_t threads = 0;  // working on it, except the caller
    Job* next_job = nullptr;

    Job(const BlockRead* reads, size_t count, size_t most_bytes, Visitor* visitor)
        : reads(reads), count(count), most_bytes(most_bytes), visitor(visitor) {}
  };

  // Too few threads is not a failure, because the caller works too.
  void StartThreads(size_t wanted) TF_EMBED_REQUIRES(mutex_) {
    for (; started_ < wanted; ++started_) {
      try {
        threads_[started_] = std::thread([this] { Serve(); });
      } catch (const std::system_error&) {  // fewer threads serve as well
        return;
      } catch (const std::bad_alloc&) {  // fewer threads serve as well
        return;
      }
    }
  }

  void Unlink(Job* job) TF_EMBED_REQUIRES(mutex_) {
    for (Job** at = &jobs_; *at != nullptr; at = &(*at)->next_job) {
      if (*at == job) {
        *at = job->next_job;
        return;
      }
    }
  }

  void Serve() TF_EMBED_LOCKS_UNCHECKED {  // by a unique_lock
    AlignedBuffer buffer(allocator_);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (!ended_ && jobs_ == nullptr) work_.wait(lock);
      if (ended_) return;
      Job* const job = jobs_;
      ++job->threads;
      lock.unlock();
      // If memory is short, the other threads do the work.
      if (buffer.Resize(job->most_bytes).ok()) Work(job, &buffer);
      lock.lock();
      Unlink(job);
      if (--job->threads == 0) done_.notify_all();
    }
  }

  void Work(Job* job, AlignedBuffer* buffer) {
    NoteDepth(depth_.fetch_add(1, std::memory_order_relaxed) + 1);
    for (size_t i; (i = job->next.fetch_add(1, std::memory_order_relaxed)) < job->count;) {
      const BlockRead& read = job->reads[i];
      const int error = read.file->ReadAll(buffer->data(), read.bytes, read.offset);
      job->visitor->Visit(i, buffer->data(), error);
    }
    depth_.fetch_sub(1, std::memory_order_relaxed);
  }

  Allocator* const allocator_;
  std::atomic<uint64_t> depth_{0};
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::thread threads_[kThreads];
  size_t started_ TF_EMBED_GUARDED_BY(mutex_) = 0;
  Job* jobs_ TF_EMBED_GUARDED_BY(mutex_) = nullptr;
  bool ended_ TF_EMBED_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<BlockReader> NewPreadReader(Allocator* allocator) {
  return std::unique_ptr<BlockReader>(new (std::nothrow) PreadReader(allocator));
}

}  // namespace tf_embed
