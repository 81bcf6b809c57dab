// SPDX-License-Identifier: Apache-2.0
// A block of a tier on disk is read as other bytes than were written: as they are, and with a
// correct checksum. Rows of other blocks must stay correct.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "cc/tiers/disk/disk_tier.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

constexpr size_t kPage = PaddedBlocks::kPage;
constexpr int64_t kRows = 1000;

// Files in memory. Reads of the first block of the first segment return `other` unless it is empty.
class Files final : public FileSystem {
 public:
  std::string other;    // a page, or nothing
  std::string written;  // the previous content of the page

  int Create(const std::string&, bool, std::unique_ptr<File>* file) override {
    *file = std::make_unique<Content>(this);
    return 0;
  }
  int Unlink(const std::string&) override { return 0; }

 private:
  class Content final : public File {
   public:
    explicit Content(Files* files) : files_(files) {}

    ssize_t Pread(void* bytes, size_t size, uint64_t offset) const override {
      if (offset > bytes_.size()) return 0;
      size = std::min<size_t>(size, bytes_.size() - offset);
      std::memcpy(bytes, bytes_.data() + offset, size);
      if (is_first_ && !files_->other.empty() && offset <= kPage && offset + size >= 2 * kPage) {
        std::memcpy(static_cast<char*>(bytes) + (kPage - offset), files_->other.data(), kPage);
      }
      return static_cast<ssize_t>(size);
    }
    ssize_t Pwrite(const void* bytes, size_t size, uint64_t offset) override {
      bytes_.resize(std::max<size_t>(bytes_.size(), offset + size));
      std::memcpy(bytes_.data() + offset, bytes, size);
      if (files_->written.empty() && bytes_.size() >= 2 * kPage) {
        files_->written = bytes_.substr(kPage, kPage);
        is_first_ = true;
      }
      return static_cast<ssize_t>(size);
    }
    int descriptor() const override { return -1; }

   private:
    Files* const files_;
    std::string bytes_;
    bool is_first_ = false;
  };
};

// A tier, and the expected content.
class Rows {
 public:
  Rows() {
    std::string folder = (std::filesystem::temp_directory_path() / "segment_XXXXXX").string();
    Require(mkdtemp(folder.data()) != nullptr, "a folder can be made");
    folder_ = folder;
    DiskTierOptions options;
    options.path = folder;
    options.name = "items-0";
    options.dim = 20;
    options.buffer_bytes = 2 * kPage;
    options.use_io_uring = options.use_direct_io = false;
    options.files = &files_;
    Require(DiskTier::Open(options, &tier_).ok(), "a store is opened");
    const size_t row_bytes = options.dim * sizeof(float);
    WholeRows rows(HostAllocator());
    Require(rows.Resize(kRows, row_bytes, 0, 0).ok(), "there is memory");
    rows.size = kRows;
    for (int64_t key = 0; key < kRows; ++key) {
      rows.keys[static_cast<size_t>(key)] = key;
      const auto at = static_cast<size_t>(key) * row_bytes;
      std::fill_n(rows.weights.data() + at, row_bytes, static_cast<char>(key));
      expected_[key] = std::string(row_bytes, static_cast<char>(key));
      keys_.push_back(key);
    }
    Require(tier_->Put(ExecContext::Serial(), rows).ok(), "rows are put");
    Require(files_.written.size() == kPage, "the first block is in the file");
  }
  ~Rows() {
    tier_.reset();
    std::filesystem::remove_all(folder_);
  }

  const std::string& block() const { return files_.written; }

  // Reads all rows, with `bytes` as the first block. Returns whether the tier accepts them.
  bool Read(std::string_view bytes, bool repair) {
    files_.other = std::string(bytes.substr(0, kPage));
    files_.other.resize(kPage);
    if (repair) {
      StoreAt(ExtendCrc32c(0, files_.other.data(), kPage - 4), kPage - 4, &files_.other);
    }
    WholeRows rows(HostAllocator());
    const bool got =
        tier_
            ->Get(ExecContext::Serial(), keys_.data(), keys_.size(), LowerTier::After::kCold, &rows)
            .ok();
    if (got) {
      Require(rows.size == keys_.size(), "each row is given, or none");
      Check(rows, repair);
    }
    for (ExportCursor cursor; !cursor.done;) {
      if (!tier_->Scan(100, &cursor, &rows).ok()) break;
      Check(rows, repair);
    }
    files_.other.clear();
    // Without the wrong bytes, the block is correct again.
    Require(tier_->Get(ExecContext::Serial(), keys_.data(), 1, LowerTier::After::kCold, &rows).ok(),
            "a block that is whole again is read");
    return got;
  }

 private:
  // A block with a correct checksum may change its own rows, but no other rows.
  void Check(const WholeRows& rows, bool repaired) const {
    const size_t row_bytes = expected_.begin()->second.size();
    for (size_t i = 0; i < rows.size; ++i) {
      const auto found = expected_.find(rows.keys[i]);
      Require(found != expected_.end(), "no key comes that was not put");
      const bool same =
          found->second == std::string_view(rows.weights.data() + i * row_bytes, row_bytes);
      Require(same || (repaired && found->first < kRows / 2), "no row is a wrong one");
    }
  }

  Files files_;
  std::filesystem::path folder_;
  std::unique_ptr<DiskTier> tier_;
  std::map<int64_t, std::string> expected_;
  std::vector<int64_t> keys_;
};

Rows& TheRows() {
  static Rows rows;
  return rows;
}

}  // namespace

bool Read(std::string_view bytes) {
  const bool taken = TheRows().Read(bytes, false);
  (void)TheRows().Read(bytes, true);
  return taken;
}

std::vector<std::string> Seeds() { return {TheRows().block()}; }

}  // namespace tf_embed::fuzz
