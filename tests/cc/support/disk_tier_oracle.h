// SPDX-License-Identifier: Apache-2.0
// A tier on disk, with a map of its expected content (tier_oracle.h).
#ifndef TF_EMBED_TESTS_CC_SUPPORT_DISK_TIER_ORACLE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_DISK_TIER_ORACLE_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/files/row_file.h"
#include "cc/tiers/disk/disk_tier.h"
#include "gtest/gtest.h"
#include "tests/cc/support/tier_oracle.h"

namespace tf_embed {

// A folder for a test, which is removed at its end.
class TempFolder {
 public:
  explicit TempFolder(const std::string& parent = testing::TempDir()) {
    std::string pattern = (std::filesystem::path(parent) / "tf_embed_disk_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::vector<std::string> Names(const std::string& folder = "") const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_ + "/" + folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

inline std::unique_ptr<DiskTier> OpenDiskTier(const DiskTierOptions& options) {
  std::unique_ptr<DiskTier> tier;
  const Status status = DiskTier::Open(options, &tier);
  EXPECT_TRUE(status.ok()) << status.message();
  return tier;
}

class DiskTierOracle : public TierOracle {
 public:
  explicit DiskTierOracle(const DiskTierOptions& options)
      : TierOracle(OpenDiskTier(options), options.value_type, options.dim), options_(options) {}

  DiskTier* tier() { return static_cast<DiskTier*>(TierOracle::tier()); }

  // Reads the sealed segments as row files: all segments, except perhaps the last. Returns their
  // number.
  size_t VerifySealed() {
    size_t sealed = 0;
    const std::string folder = options_.path + "/" + options_.name;
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".seg") names.push_back(entry.path().string());
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const FileBytes bytes(name);
      RowFileReader reader(&bytes, HostAllocator());
      const Status status = reader.Verify();
      EXPECT_TRUE(status.ok() || name == names.back()) << status.message();
      if (!status.ok()) continue;
      ++sealed;
      EXPECT_TRUE(reader.header().padded);
      EXPECT_EQ(options_.dim, reader.header().meta.dim);
      EXPECT_GT(reader.rows(), 0u);
    }
    return sealed;
  }

 private:
  const DiskTierOptions options_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_DISK_TIER_ORACLE_H_
