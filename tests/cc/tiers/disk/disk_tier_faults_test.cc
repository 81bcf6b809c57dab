// SPDX-License-Identifier: Apache-2.0
// A tier on disk with failing files. No row is lost or wrong, and the tier works again afterwards.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "cc/tiers/disk/disk_tier.h"
#include "gtest/gtest.h"
#include "tests/cc/support/disk_tier_oracle.h"
#include "tests/cc/support/failing_allocator.h"
#include "tests/cc/support/faulty_files.h"

namespace tf_embed {
namespace {

using After = LowerTier::After;

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

DiskTierOptions Small(const TempFolder& folder, FileSystem* files, bool io_uring) {
  DiskTierOptions options;
  options.path = folder.path();
  options.name = "items-0";
  options.dim = 190;
  options.buffer_bytes = 32 << 10;
  options.files = files;
  options.use_io_uring = io_uring;
  return options;
}

bool Names(const Status& status, const std::string& part) {
  return status.message().find(part) != std::string::npos;
}

class Faults : public testing::TestWithParam<bool> {
 protected:
  DiskTierOptions Options() { return Small(folder_, &files_, GetParam()); }
  TempFolder folder_;
  FaultyFiles files_;
};
INSTANTIATE_TEST_SUITE_P(Readers, Faults, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "IoUring" : "Pread");
});

// Fails the n-th write, or all writes from the n-th until the end of the step, for each n.
TEST_P(Faults, EachWriteInTurnMayFail) {
  for (const bool for_good : {false, true}) {
    for (const int error : {ENOSPC, EIO}) {
      bool failed = true;
      for (int64_t n = 0; failed; ++n) {
        ASSERT_LT(n, 1000);
        DiskTierOracle oracle(Options());
        ASSERT_TRUE(oracle.Put(Range(0, 300)).ok());
        files_.writes.FailAfter(n, error, for_good);
        failed = false;
        for (int64_t round = 0; round < 4; ++round) {
          const Status status = oracle.Put(Range(100 * round, 100 * round + 300));
          if (!status.ok()) {
            failed = true;
            EXPECT_EQ(error == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
                      status.code());
            EXPECT_TRUE(Names(status, folder_.path() + "/items-0")) << status.message();
            EXPECT_TRUE(Names(status, "bytes")) << status.message();
            EXPECT_TRUE(Names(status, " stay in memory.")) << status.message();
          }
          ASSERT_TRUE(oracle.Check().ok());
        }
        if (!oracle.tier()->Compact(ExecContext::Serial()).ok()) failed = true;
        ASSERT_TRUE(oracle.Check().ok());
        failed = failed || files_.writes.passes < 0;  // compaction within a Put reports no error
        files_.writes.NeverFail();
        // Now there is space again.
        ASSERT_TRUE(oracle.Put(Range(0, 500)).ok());
        ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
        ASSERT_TRUE(oracle.Check().ok());
        oracle.VerifySealed();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Faults, EachNewFileMayFail) {
  for (int64_t n = 0; n < 12; ++n) {
    DiskTierOracle oracle(Options());
    files_.creates.FailAfter(n, ENOSPC, true);
    (void)oracle.Put(Range(0, 600));
    ASSERT_TRUE(oracle.Check().ok());
    files_.creates.NeverFail();
    ASSERT_TRUE(oracle.Put(Range(0, 600)).ok());
    ASSERT_TRUE(oracle.Check().ok());
    if (HasFailure()) return;
  }
}

TEST_P(Faults, ShortWritesAreGoneOnWith) {
  files_.short_writes = true;
  DiskTierOracle oracle(Options());
  for (int round = 0; round < 5; ++round) ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
  EXPECT_GT(oracle.VerifySealed(), 0u);
}

TEST_P(Faults, EachReadInTurnMayFail) {
  DiskTierOracle oracle(Options());
  ASSERT_TRUE(oracle.Put(Range(0, 400)).ok());
  for (int64_t n = 0; n < 60; n += 7) {
    files_.reads.FailAfter(n, EIO);
    const Status status = oracle.Get(Range(0, 400), After::kShared);
    EXPECT_EQ(StatusCode::kUnavailable, status.code());
    EXPECT_TRUE(Names(status, "Can't read rows from '")) << status.message();
    EXPECT_TRUE(Names(status, ".seg'")) << status.message();
    EXPECT_TRUE(Names(status, "of 400")) << status.message();
    files_.reads.NeverFail();
    EXPECT_EQ(0u, oracle.tier()->shared());
    ASSERT_TRUE(oracle.Check().ok());
  }
  {
    WholeRows rows(HostAllocator());
    ExportCursor cursor;
    files_.reads.FailAfter(0, EIO);
    const Status status = oracle.tier()->Scan(1000, &cursor, &rows);
    EXPECT_EQ(StatusCode::kUnavailable, status.code());
    EXPECT_TRUE(Names(status, ".seg', which has the rows of ")) << status.message();
    files_.reads.NeverFail();
  }
  // If compaction can't read a segment, the segment stays as it is.
  int failed = 0;
  for (int64_t n = 0; n < 30; ++n) {
    oracle.Erase({3 * n});
    files_.reads.FailAfter(n, EIO);
    const Status status = oracle.tier()->Compact(ExecContext::Serial());
    if (!status.ok()) {
      ++failed;
      EXPECT_TRUE(Names(status, ".seg' to compact it, with ")) << status.message();
    }
    files_.reads.NeverFail();
    ASSERT_TRUE(oracle.Check().ok());
  }
  EXPECT_GT(failed, 0);
  ASSERT_TRUE(oracle.tier()->Compact(ExecContext::Serial()).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST_P(Faults, AFlippedBitIsAnErrorAndNeverARow) {
  DiskTierOracle oracle(Options());
  ASSERT_TRUE(oracle.Put(Range(0, 400)).ok());
  files_.flips = 3;
  const Status status = oracle.Get(Range(0, 400), After::kShared);
  EXPECT_EQ(StatusCode::kDataLoss, status.code());
  EXPECT_TRUE(Names(status, ".seg' is damaged")) << status.message();
  EXPECT_TRUE(Names(status, "15 of 400")) << status.message();  // five rows a block
  EXPECT_EQ(0u, oracle.tier()->shared());
  files_.flips = 0;
  ASSERT_TRUE(oracle.Check().ok());
  files_.flips = 1;
  WholeRows rows(HostAllocator());
  ExportCursor cursor;
  EXPECT_EQ(StatusCode::kDataLoss, oracle.tier()->Scan(1000, &cursor, &rows).code());
}

// Damages bytes all over a file on the disk.
TEST_P(Faults, DamageOnTheDiskIsFound) {
  DiskTierOracle oracle(Options());
  ASSERT_TRUE(oracle.Put(Range(0, 200)).ok());
  const std::string path = folder_.path() + "/items-0/rows-0000000000000001.seg";
  const int file = open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  for (off_t at = 4096; at < 4096 * 9; at += 977) {
    char byte;
    ASSERT_EQ(1, pread(file, &byte, 1, at));
    byte = static_cast<char>(byte ^ 16);
    ASSERT_EQ(1, pwrite(file, &byte, 1, at));
    EXPECT_EQ(StatusCode::kDataLoss, oracle.Get(Range(0, 200)).code()) << at;
    byte = static_cast<char>(byte ^ 16);
    ASSERT_EQ(1, pwrite(file, &byte, 1, at));
    ASSERT_TRUE(oracle.Get(Range(0, 200)).ok());
  }
  // A block with a correct checksum at the place of another block.
  std::vector<char> block(4096);
  ASSERT_EQ(4096, pread(file, block.data(), 4096, 2 * 4096));
  ASSERT_EQ(4096, pwrite(file, block.data(), 4096, 3 * 4096));
  const Status status = oracle.Get(Range(0, 200));
  EXPECT_EQ(StatusCode::kDataLoss, status.code());
  EXPECT_TRUE(Names(status, "is damaged: it has another row in place of one")) << status.message();
  EXPECT_TRUE(Names(status, "5 of 200")) << status.message();
  close(file);
}

TEST_P(Faults, AFileThatWasCutIsAnError) {
  DiskTierOracle oracle(Options());
  ASSERT_TRUE(oracle.Put(Range(0, 200)).ok());
  const std::string path = folder_.path() + "/items-0/rows-0000000000000001.seg";
  ASSERT_EQ(0, truncate(path.c_str(), 4096 * 3));
  EXPECT_EQ(StatusCode::kUnavailable, oracle.Get(Range(0, 200)).code());
  ASSERT_TRUE(oracle.Get(Range(0, 5)).ok());  // the block before
}

TEST_P(Faults, ABoundOfBytesHolds) {
  DiskTierOptions options = Options();
  options.most_disk_bytes = 1 << 20;
  DiskTierOracle oracle(options);
  int64_t next = 0;
  Status status;
  for (; status.ok() && next < 5000; next += 50) {
    status = oracle.Put(Range(next, next + 50));
    EXPECT_LE(oracle.tier()->Stats().disk_bytes, options.most_disk_bytes);
  }
  EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
  EXPECT_TRUE(Names(status, folder_.path() + "/items-0")) << status.message();
  EXPECT_TRUE(Names(status, "1048576")) << status.message();
  EXPECT_TRUE(Names(status, "bytes are kept free for compaction")) << status.message();
  ASSERT_TRUE(oracle.Check().ok());
  EXPECT_GT(oracle.size(), 600u);  // without a reserve, 1280 would fit
  // The tier stays full, and keeps its rows.
  EXPECT_EQ(StatusCode::kResourceExhausted, oracle.Put(Range(next, next + 300)).code());
  ASSERT_TRUE(oracle.Check().ok());
  // Erases two of five rows. No file becomes empty, so compaction must free the space.
  std::vector<int64_t> some;
  for (const int64_t key : oracle.Keys()) {
    if (key % 5 < 2) some.push_back(key);
  }
  oracle.Erase(some);
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> keys = oracle.Keys();
    std::shuffle(keys.begin(), keys.end(), random);
    keys.resize(100);
    ASSERT_TRUE(oracle.Put(keys).ok());
    EXPECT_LE(oracle.tier()->Stats().disk_bytes, options.most_disk_bytes);
  }
  ASSERT_TRUE(oracle.Check().ok());
}

TEST_P(Faults, EachAllocationMayFail) {
  FailingAllocator allocator;
  DiskTierOptions options = Options();
  options.allocator = &allocator;
  bool failed = true;
  for (int64_t n = 0; failed; n += 1 + n / 16) {  // the index has an array for each of 256 stripes
    ASSERT_LT(n, 2000);
    DiskTierOracle oracle(options);
    ASSERT_TRUE(oracle.SetRule(FusedSlots(RuleKind::kAdagrad, 190)).ok());
    allocator.FailAfter(n);
    failed = false;
    const auto expect = [&](const Status& status) {
      if (status.ok()) return;
      failed = true;
      EXPECT_EQ(StatusCode::kResourceExhausted, status.code()) << status.message();
    };
    expect(oracle.Put(Range(0, 500)));
    expect(oracle.Get(Range(0, 500)));
    expect(oracle.Get(Range(100, 200), After::kShared));
    expect(oracle.SetRule(FusedSlots(RuleKind::kAdam, 190)));
    expect(oracle.tier()->Compact(ExecContext::Serial()));
    allocator.NeverFail();
    ASSERT_TRUE(oracle.Check().ok());
    ASSERT_TRUE(oracle.Put(Range(0, 500)).ok());
    ASSERT_TRUE(oracle.Check().ok());
    if (HasFailure()) return;
  }
}

TEST(DiskTier, AFolderThatVanishesIsAnErrorAndNoCrash) {
  TempFolder folder;
  DiskTierOracle oracle(Small(folder, HostFileSystem(), true));
  ASSERT_TRUE(oracle.Put(Range(0, 400)).ok());
  std::filesystem::remove_all(folder.path() + "/items-0");
  const Status status = oracle.Put(Range(400, 4000));
  EXPECT_EQ(StatusCode::kUnavailable, status.code());
  EXPECT_TRUE(Names(status, folder.path() + "/items-0")) << status.message();
  ASSERT_TRUE(oracle.Check().ok());  // its open files still exist
}

TEST(DiskTier, AFolderThatCannotBeMadeIsAnError) {
  TempFolder folder;
  DiskTierOptions options = Small(folder, HostFileSystem(), true);
  std::unique_ptr<DiskTier> tier;
  options.path = folder.path() + "/missing";
  const Status missing = DiskTier::Open(options, &tier);
  EXPECT_EQ(StatusCode::kUnavailable, missing.code());
  EXPECT_TRUE(Names(missing, options.path)) << missing.message();
  options.path = "/proc/self";  // no folders can be made here
  EXPECT_EQ(StatusCode::kUnavailable, DiskTier::Open(options, &tier).code());
  FaultyFiles files;
  options = Small(folder, &files, true);
  files.creates.FailAfter(0, EROFS, true);
  const Status read_only = DiskTier::Open(options, &tier);
  EXPECT_EQ(StatusCode::kUnavailable, read_only.code());
  EXPECT_TRUE(Names(read_only, "Can't write to the folder '")) << read_only.message();
  EXPECT_TRUE(Names(read_only, "Read-only")) << read_only.message();
  EXPECT_TRUE(folder.Names().empty());
}

TEST(DiskTier, WithoutDirectIoItGoesThroughThePageCache) {
  TempFolder folder;
  FaultyFiles files;
  files.creates.FailAfter(0, EINVAL);  // as file systems without direct I/O do
  DiskTierOracle oracle(Small(folder, &files, true));
  EXPECT_FALSE(oracle.tier()->uses_direct_io());
  ASSERT_TRUE(oracle.Put(Range(0, 1000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

}  // namespace
}  // namespace tf_embed
