// SPDX-License-Identifier: Apache-2.0
// A user's alternative to tiers: rows of fixed ids in an array that is mapped from a file, like
// numpy.memmap, with Adam's slots next to the weights. Row `id` is at id * stride.
//
// The kernel would keep the whole file in memory if there is room, so memory is limited here: after
// a step, KeepWithin writes and drops the pages that were used longest ago. It is exact LRU, which
// is more than the kernel does. Read-ahead is off, since it would read 32 pages for each row.
#ifndef TF_EMBED_BENCHMARKS_MAPPED_ARRAY_H_
#define TF_EMBED_BENCHMARKS_MAPPED_ARRAY_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/instruction_set.h"
#include "cc/core/base/status.h"
#include "cc/core/loops/table_loops.h"
#include "cc/core/rules/rule_list.h"

namespace tf_embed {

class MappedArray {
 public:
  MappedArray(size_t rows, size_t dim, size_t slots)
      : dim_(dim), stride_((dim + slots) * sizeof(float)), bytes_(rows * stride_) {}

  ~MappedArray() {
    if (data_ != nullptr) munmap(data_, bytes_);
    if (file_ >= 0) close(file_);
  }

  // The file has no name, so that it goes with the process.
  Status Open(const std::string& folder) {
    std::string path = folder + "/mapped_array.XXXXXX";
    file_ = mkstemp(path.data());
    if (file_ < 0) return Failed("make a file in " + folder);
    unlink(path.c_str());
    if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0) return Failed("make room for an array");
    void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (data == MAP_FAILED) return Failed("map an array");
    data_ = static_cast<char*>(data);
    madvise(data_, bytes_, MADV_RANDOM);
    last_use_.assign(bytes_ / kPage + 1, 0);
    return Status();
  }

  size_t bytes() const { return bytes_; }

  void Gather(const ExecContext& context, const int64_t* ids, size_t count, float* weights) const {
    context.parallel_for(count, 200, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        std::memcpy(weights + i * dim_, Row(ids[i]), dim_ * sizeof(float));
      }
    });
  }

  // Of distinct ids.
  void Step(const ExecContext& context, const int64_t* ids, size_t count, const Rule& rule,
            const float* gradients) {
    const RuleConstants<float> constants(rule);
    const StepFunction<float> step = LoopsOf(BestInstructionSet()).StepOf<float>(rule);
    context.parallel_for(count, 200, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        float* const row = reinterpret_cast<float*>(Row(ids[i]));
        step(constants, dim_, gradients + i * dim_, row, row + dim_);
      }
    });
  }

  // Notes the use of the rows, and drops old pages until `most_bytes` are left.
  void KeepWithin(size_t most_bytes, const int64_t* ids, size_t count) {
    ++now_;
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = static_cast<size_t>(ids[i]) * stride_;
      for (size_t page = begin / kPage; page <= (begin + stride_ - 1) / kPage; ++page) {
        last_use_[page] = now_;
      }
    }
    std::vector<std::pair<uint32_t, size_t>> held;
    for (size_t page = 0; page < last_use_.size(); ++page) {
      if (last_use_[page] != 0) held.emplace_back(last_use_[page], page);
    }
    const size_t most = most_bytes / kPage;
    if (held.size() <= most) return;
    const auto end = held.begin() + static_cast<std::ptrdiff_t>(held.size() - most);
    std::nth_element(held.begin(), end - 1, held.end());
    std::vector<size_t> pages;
    for (auto one = held.begin(); one != end; ++one) pages.push_back(one->second);
    std::sort(pages.begin(), pages.end());
    std::vector<std::pair<size_t, size_t>> runs;  // of pages
    for (const size_t page : pages) {
      last_use_[page] = 0;
      if (runs.empty() || runs.back().second != page) runs.emplace_back(page, page);
      ++runs.back().second;
    }
    // Unmapping moves written pages to the page cache, which drops clean pages only.
    for (const auto& run : runs) {
      madvise(data_ + run.first * kPage, Bytes(run), MADV_DONTNEED);
      sync_file_range(file_, Offset(run), static_cast<off_t>(Bytes(run)), SYNC_FILE_RANGE_WRITE);
    }
    for (const auto& run : runs) {
      sync_file_range(
          file_, Offset(run), static_cast<off_t>(Bytes(run)),
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      posix_fadvise(file_, Offset(run), static_cast<off_t>(Bytes(run)), POSIX_FADV_DONTNEED);
    }
  }

  // Its bytes in the page cache.
  size_t ResidentBytes() const {
    std::vector<unsigned char> pages((bytes_ + kPage - 1) / kPage);
    if (mincore(data_, bytes_, pages.data()) != 0) return bytes_;
    return kPage * static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                                     [](unsigned char page) { return page & 1; }));
  }

 private:
  static constexpr size_t kPage = 4096;

  static Status Failed(const std::string& what) {
    return Status::Unavailable("Can't " + what + ": " + std::strerror(errno) + ".");
  }
  static off_t Offset(const std::pair<size_t, size_t>& run) {
    return static_cast<off_t>(run.first * kPage);
  }
  size_t Bytes(const std::pair<size_t, size_t>& run) const {
    return std::min(run.second * kPage, bytes_) - run.first * kPage;
  }
  char* Row(int64_t id) const { return data_ + static_cast<size_t>(id) * stride_; }

  const size_t dim_, stride_, bytes_;
  int file_ = -1;
  char* data_ = nullptr;
  uint32_t now_ = 0;
  std::vector<uint32_t> last_use_;  // by page: the step of its last use; 0: it was dropped
};

}  // namespace tf_embed

#endif  // TF_EMBED_BENCHMARKS_MAPPED_ARRAY_H_
