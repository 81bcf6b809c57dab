// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/segment.h"

#include <algorithm>
#include <mutex>
#include <new>

namespace tf_embed {

SegmentList::~SegmentList() {
  for (uint32_t number = 0; number < end_; ++number) delete At(number);
  for (std::atomic<std::atomic<Segment*>*>& part : parts_) delete[] part.load();
}

Status SegmentList::Add(std::unique_ptr<Segment> segment) {
  std::lock_guard<OrderedMutex> lock(mutex_);
  uint32_t number = first_;
  while (number < end_ && At(number) != nullptr) ++number;
  // The last place is reserved for kNoPlace.
  if (number >= std::min(kMost, kNoPlace / stride())) {
    return Status::ResourceExhausted([&] {
      return "The folder '" + segment->folder->path() + "' has " + std::to_string(number) +
             " files of rows, and no more can be numbered.";
    });
  }
  std::atomic<std::atomic<Segment*>*>& part = parts_[number / kPart];
  if (part.load() == nullptr) {
    std::atomic<Segment*>* const made = new (std::nothrow) std::atomic<Segment*>[kPart];
    if (made == nullptr) {
      return Status::ResourceExhausted([] { return "No memory for a list of files of rows."; });
    }
    for (uint32_t i = 0; i < kPart; ++i) made[i].store(nullptr, std::memory_order_relaxed);
    part.store(made, std::memory_order_release);
  }
  segment->number = number;
  part.load()[number % kPart].store(segment.release(), std::memory_order_release);
  first_ = number + 1;
  end_ = std::max(end_, number + 1);
  return Status();
}

Segment* SegmentList::Pin(uint32_t number) {
  std::lock_guard<OrderedMutex> lock(mutex_);
  Segment* const segment = number < end_ ? At(number) : nullptr;
  if (segment == nullptr || segment->retired) return nullptr;
  ++segment->pins;
  return segment;
}

void SegmentList::Unpin(Segment* segment) {
  std::unique_ptr<Segment> gone;
  std::lock_guard<OrderedMutex> lock(mutex_);
  --segment->pins;
  gone = TakeOut(segment);
}

void SegmentList::RetireIfEmpty(uint32_t number) {
  std::unique_ptr<Segment> gone;
  std::lock_guard<OrderedMutex> lock(mutex_);
  Segment* const segment = number < end_ ? At(number) : nullptr;
  if (segment == nullptr || !segment->sealed.load() || segment->live.load() > 0) return;
  segment->retired = true;
  gone = TakeOut(segment);
}

void SegmentList::Retire(Segment* segment) {
  std::unique_ptr<Segment> gone;
  std::lock_guard<OrderedMutex> lock(mutex_);
  segment->retired = true;
  gone = TakeOut(segment);
}

std::unique_ptr<Segment> SegmentList::TakeOut(Segment* segment) {
  if (!segment->retired || segment->pins > 0) return nullptr;
  parts_[segment->number / kPart].load()[segment->number % kPart].store(nullptr,
                                                                        std::memory_order_release);
  first_ = std::min(first_, segment->number);
  while (end_ > 0 && At(end_ - 1) == nullptr) --end_;
  return std::unique_ptr<Segment>(segment);
}

}  // namespace tf_embed
