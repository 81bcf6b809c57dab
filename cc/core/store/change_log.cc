// SPDX-License-Identifier: Apache-2.0
#include "cc/core/store/change_log.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

namespace tf_embed {
namespace {

bool IsOlder(const std::pair<const uint64_t, uint32_t>& one,
             const std::pair<const uint64_t, uint32_t>& other) {
  return one.second < other.second;
}

Status NoMemoryForChanges() {
  return Status::ResourceExhausted(
      [] { return "No memory for the rows that changed while a snapshot was written."; });
}

}  // namespace

bool ChangeLog::AddRoom(size_t weight_bytes, size_t slot_bytes, size_t num_statistics,
                        Allocator* allocator) {
  if (!failure_.ok()) return false;
  try {
    given_.emplace_back(allocator);
    failure_ = given_.back().Resize(kTogether, weight_bytes, slot_bytes, num_statistics);
  } catch (const std::bad_alloc&) {
    failure_ = NoMemoryForChanges();
  }
  if (failure_.ok()) return true;
  WantNothing();
  return false;
}

void ChangeLog::WantNothing() {
  given_.clear();
  snapshot_.store(0, std::memory_order_relaxed);
}

void ChangeLog::Give(WholeRows rows) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (rows.size == 0 || !failure_.ok() || until_.load(std::memory_order_relaxed) == 0) return;
  try {
    // Before the last, in which single rows are collected.
    given_.insert(given_.empty() ? given_.end() : std::prev(given_.end()), std::move(rows));
  } catch (const std::bad_alloc&) {
    failure_ = NoMemoryForChanges();
    WantNothing();
  }
}

void ChangeLog::Fail(Status failure) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (!failure_.ok() || until_.load(std::memory_order_relaxed) == 0) return;
  failure_ = std::move(failure);
  WantNothing();
}

void ChangeLog::NoteLeft(int64_t key) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (marks_.empty() && until_.load(std::memory_order_relaxed) == 0) return;  // no snapshot yet
  if (num_left_ < max_left_) {
    try {
      left_[period()].push_back(key);
      ++num_left_;
      return;
    } catch (const std::bad_alloc&) {  // as if there were too many, below
    }
  }
  ForgetPeriods();
  // The keys of the snapshot in progress are lost as well, unless it is a full snapshot.
  if (since_.load(std::memory_order_relaxed) > 0) {
    failure_ = Status::ResourceExhausted([&] {
      return "More keys left table '" + store_ + "' than are remembered for a snapshot of changes.";
    });
  }
}

void ChangeLog::ForgetPeriods() {
  marks_.clear();
  left_.clear();
  num_left_ = 0;
  forgot_ = true;
}

void ChangeLog::Forget(const char* why) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  ForgetPeriods();
  if (until_.load(std::memory_order_relaxed) == 0) return;
  failure_ = Status::FailedPrecondition("Table '" + store_ + "' " + why +
                                        " while a snapshot of it was written.");
  WantNothing();
}

Status ChangeLog::Begin(uint64_t since) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (until_.load(std::memory_order_relaxed) != 0) {
    return Status::FailedPrecondition("A snapshot of table '" + store_ + "' is under way.");
  }
  uint32_t first = 0;
  if (since != 0) {
    const auto mark = marks_.find(since);
    if (mark == marks_.end()) {
      return Status::FailedPrecondition(
          "Table '" + store_ +
          "' does not know what changed since that snapshot: save a whole one.");
    }
    first = mark->second;
  }
  failure_ = Status();
  forgot_ = false;
  given_.clear();
  const uint32_t last = period();
  since_.store(first, std::memory_order_relaxed);
  until_.store(last, std::memory_order_relaxed);
  snapshot_.store(++last_snapshot_, std::memory_order_relaxed);
  period_.store(last + 1, std::memory_order_relaxed);
  return Status();
}

Status ChangeLog::Check() const {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  return failure_;
}

bool ChangeLog::TakeGiven(WholeRows* rows) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (given_.empty()) return false;
  *rows = std::move(given_.back());
  given_.pop_back();
  return true;
}

Status ChangeLog::KeysThatLeft(Buffer<int64_t>* keys, size_t* count) const {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  *count = 0;
  const uint32_t since = since_.load(std::memory_order_relaxed);
  if (since == 0) return failure_;
  const auto begin = left_.upper_bound(since);
  const auto end = left_.upper_bound(until_.load(std::memory_order_relaxed));
  size_t sum = 0;
  for (auto some = begin; some != end; ++some) sum += some->second.size();
  TF_EMBED_RETURN_IF_ERROR(keys->Resize(sum));
  for (auto some = begin; some != end; ++some) {
    std::copy(some->second.begin(), some->second.end(), keys->data() + *count);
    *count += some->second.size();
  }
  return failure_;
}

void ChangeLog::AddMark(uint64_t save, uint32_t period) {
  try {
    marks_[save] = period;
  } catch (const std::bad_alloc&) {
    return;  // a later snapshot must be full
  }
  if (marks_.size() > kMaxMarks) {
    marks_.erase(std::min_element(marks_.begin(), marks_.end(), IsOlder));
  }
  DropLeft();
}

void ChangeLog::DropLeft() {
  if (marks_.empty() && until_.load(std::memory_order_relaxed) == 0) {
    left_.clear();
    num_left_ = 0;
    return;
  }
  uint32_t oldest = period() - 1;
  // A snapshot of changes in progress has yet to tell which keys left.
  if (const uint32_t since = since_.load(std::memory_order_relaxed); since != 0) oldest = since;
  if (!marks_.empty()) {
    oldest = std::min(oldest, std::min_element(marks_.begin(), marks_.end(), IsOlder)->second);
  }
  while (!left_.empty() && left_.begin()->first <= oldest) {
    num_left_ -= left_.begin()->second.size();
    left_.erase(left_.begin());
  }
}

void ChangeLog::Drop(uint64_t save) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (marks_.erase(save) > 0) DropLeft();
}

void ChangeLog::End(uint64_t save) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (until_.load(std::memory_order_relaxed) == 0) return;
  if (save != 0 && failure_.ok() && !forgot_) AddMark(save, until_.load(std::memory_order_relaxed));
  given_.clear();
  snapshot_.store(0, std::memory_order_relaxed);
  until_.store(0, std::memory_order_relaxed);
  since_.store(0, std::memory_order_relaxed);
  DropLeft();
}

void ChangeLog::NoteLoaded(uint64_t save) {
  const std::lock_guard<OrderedMutex> lock(mutex_);
  if (until_.load(std::memory_order_relaxed) != 0) return;
  ForgetPeriods();
  AddMark(save, period());
  period_.store(period() + 1, std::memory_order_relaxed);
}

}  // namespace tf_embed
