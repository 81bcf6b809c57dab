// SPDX-License-Identifier: Apache-2.0
// Files of this machine that fail on demand: any call by its number, writes for lack of space, and
// reads by a flipped bit. Thread-safe.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_FAULTY_FILES_H_
#define TF_EMBED_TESTS_CC_SUPPORT_FAULTY_FILES_H_

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cc/tiers/disk/file.h"

namespace tf_embed {

class FaultyFiles final : public FileSystem {
 public:
  // The faults of one kind of call.
  struct Faults {
    std::atomic<int64_t> passes{INT64_MAX};  // calls before the failing call
    std::atomic<bool> for_good{false};       // whether all later calls fail too
    std::atomic<int> error{EIO};
    std::atomic<int64_t> calls{0};

    void FailAfter(int64_t count, int with, bool for_ever = false) {
      error = with;
      for_good = for_ever;
      passes = count;
    }
    void NeverFail() { passes = INT64_MAX; }
    // Counts a call. Returns 0 or its errno.
    int Next() {
      ++calls;
      const int64_t left = passes.fetch_sub(1);
      return left == 0 || (left < 0 && for_good) ? error.load() : 0;
    }
  };
  Faults reads, writes, creates;
  std::atomic<bool> short_writes{false};  // at most half of the bytes, in whole pages
  std::atomic<int64_t> flips{0};          // reads that get a flipped bit

  int Create(const std::string& path, bool direct, std::unique_ptr<File>* file) override {
    if (const int error = creates.Next()) return error;
    std::unique_ptr<File> inner;
    if (const int error = HostFileSystem()->Create(path, direct, &inner)) return error;
    *file = std::make_unique<FaultyFile>(this, std::move(inner));
    return 0;
  }
  int Unlink(const std::string& path) override { return HostFileSystem()->Unlink(path); }

 private:
  class FaultyFile final : public File {
   public:
    FaultyFile(FaultyFiles* files, std::unique_ptr<File> inner)
        : files_(files), inner_(std::move(inner)) {}

    ssize_t Pread(void* bytes, size_t size, uint64_t offset) const override {
      return Completed(inner_->Pread(bytes, size, offset), bytes, offset);
    }
    ssize_t Pwrite(const void* bytes, size_t size, uint64_t offset) override {
      if (const int error = files_->writes.Next()) {
        // Some of the bytes are written, as if the disk became full.
        if (size > kPage) (void)inner_->Pwrite(bytes, kPage, offset);
        return -error;
      }
      if (files_->short_writes && size > kPage) size = (size / 2 + kPage - 1) / kPage * kPage;
      return inner_->Pwrite(bytes, size, offset);
    }
    int descriptor() const override { return inner_->descriptor(); }
    ssize_t Completed(ssize_t result, void* bytes, uint64_t offset) const override {
      if (const int error = files_->reads.Next()) return -error;
      if (result > 0 && files_->flips.load() > 0 && files_->flips.fetch_sub(1) > 0) {
        char* const byte = static_cast<char*>(bytes) + (offset * 31 + 17) % 3000;
        *byte = static_cast<char>(*byte ^ 4);
      }
      return result;
    }

   private:
    static constexpr size_t kPage = 4096;
    FaultyFiles* const files_;
    const std::unique_ptr<File> inner_;
  };
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_FAULTY_FILES_H_
