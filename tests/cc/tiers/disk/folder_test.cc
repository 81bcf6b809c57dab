// SPDX-License-Identifier: Apache-2.0
// Ownership of a folder: locks, leftovers of dead processes, children of fork().
#include "cc/tiers/disk/folder.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/support/disk_tier_oracle.h"

namespace tf_embed {
namespace {

DiskTierOptions Small(const TempFolder& folder) {
  DiskTierOptions options;
  options.path = folder.path();
  options.name = "items-0";
  options.dim = 100;
  options.buffer_bytes = 32 << 10;
  options.use_io_uring = false;  // its threads do not exist in a child
  return options;
}

std::vector<int64_t> Range(int64_t count) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < count; ++key) keys.push_back(key);
  return keys;
}

// Runs `child` in a child of fork(). Returns its return value.
template <typename Child>
int InChild(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs a process that ends in the middle of its work, without destroying its tier.
void LeaveBehind(const DiskTierOptions& options) {
  EXPECT_EQ(0, InChild([&] {
              DiskTierOracle* const oracle = new DiskTierOracle(options);
              return oracle->Put(Range(1000)).ok() ? 0 : 1;
            }));
}

TEST(Folder, IsRefusedWhileItIsInUse) {
  TempFolder folder;
  std::unique_ptr<DiskTier> tier, other;
  ASSERT_TRUE(DiskTier::Open(Small(folder), &tier).ok());
  const Status status = DiskTier::Open(Small(folder), &other);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'" + folder.path() + "/items-0' is in use"))
      << status.message();
  EXPECT_EQ(0, InChild([&] {
              std::unique_ptr<DiskTier> third;
              const Status refused = DiskTier::Open(Small(folder), &third);
              return refused.code() == StatusCode::kFailedPrecondition ? 0 : 1;
            }));
  tier.reset();
  EXPECT_TRUE(DiskTier::Open(Small(folder), &other).ok());
}

TEST(Folder, OfADeadProcessIsEmptied) {
  TempFolder folder;
  LeaveBehind(Small(folder));
  ASSERT_GT(folder.Names("items-0").size(), 2u);
  DiskTierOracle oracle(Small(folder));
  EXPECT_EQ(std::vector<std::string>({"LOCK"}), folder.Names("items-0"));
  EXPECT_EQ(0u, oracle.tier()->size());
  ASSERT_TRUE(oracle.Put(Range(1000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST(Folder, OfADeadProcessIsKeptIfItShallBe) {
  TempFolder folder;
  DiskTierOptions options = Small(folder);
  options.keep_leftovers = true;
  LeaveBehind(options);
  const std::vector<std::string> left = folder.Names("items-0");
  LeaveBehind(options);
  {
    DiskTierOracle oracle(options);
    EXPECT_EQ(std::vector<std::string>({"items-0", "items-0.kept-1", "items-0.kept-2"}),
              folder.Names());
    EXPECT_EQ(left, folder.Names("items-0.kept-1"));
  }
  EXPECT_EQ(std::vector<std::string>({"items-0.kept-1", "items-0.kept-2"}), folder.Names());
}

TEST(Folder, KeepsFilesThatAreNotItsOwn) {
  TempFolder folder;
  LeaveBehind(Small(folder));
  std::ofstream(folder.path() + "/items-0/notes.txt") << "mine";
  std::ofstream(folder.path() + "/items-0/rows-1.seg") << "mine too";
  { DiskTierOracle oracle(Small(folder)); }
  EXPECT_EQ(std::vector<std::string>({"notes.txt", "rows-1.seg"}), folder.Names("items-0"));
  // A folder of another owner, with or without a LOCK.
  std::unique_ptr<DiskTier> tier;
  const Status status = DiskTier::Open(Small(folder), &tier);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find(folder.path() + "/items-0"));
  EXPECT_EQ(std::vector<std::string>({"notes.txt", "rows-1.seg"}), folder.Names("items-0"));
  std::ofstream(folder.path() + "/items-0/LOCK") << "of another program";
  EXPECT_EQ(StatusCode::kFailedPrecondition, DiskTier::Open(Small(folder), &tier).code());
  EXPECT_EQ(std::vector<std::string>({"LOCK", "notes.txt", "rows-1.seg"}), folder.Names("items-0"));
}

DiskTierOptions Named(const TempFolder& folder, const std::string& name) {
  DiskTierOptions options = Small(folder);
  options.name = name;
  return options;
}

TEST(Folder, RemovesLeftoversOfOtherShardsOfItsLabelOnly) {
  TempFolder folder;
  const std::vector<std::string> others = {"item-0",   "items",      "items-1-0", "items-x",
                                           "items.2",  "items-1.x",  "items-",    "xitems-1",
                                           "items-.2", "items-1.2.3"};
  for (const std::string& name : others) LeaveBehind(Named(folder, name));
  LeaveBehind(Named(folder, "items-0.kept-1"));  // as if it had been kept
  std::vector<std::string> left = folder.Names();
  // Folders of the label are made under another label, because making each would remove the earlier
  // folders.
  for (const char* const name : {"items-1", "items-10", "items-0.2", "items-1.1000000"}) {
    std::filesystem::rename(folder.path() + "/items-x", folder.path() + "/" + name);
    LeaveBehind(Named(folder, "items-x"));
  }
  std::filesystem::create_directory(folder.path() + "/items-2");
  std::ofstream(folder.path() + "/items-2/LOCK");  // its process ended before it wrote the mark
  left.push_back("items-0");
  std::sort(left.begin(), left.end());
  DiskTierOracle oracle(Small(folder));
  EXPECT_EQ(left, folder.Names());
  ASSERT_TRUE(oracle.Put(Range(1000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST(Folder, KeepsLeftoversOfOtherShardsIfItShall) {
  TempFolder folder;
  LeaveBehind(Named(folder, "items-1"));
  const std::vector<std::string> left = folder.Names("items-1");
  DiskTierOptions options = Small(folder);
  options.keep_leftovers = true;
  { DiskTierOracle oracle(options); }
  EXPECT_EQ(std::vector<std::string>({"items-1.kept-1"}), folder.Names());
  EXPECT_EQ(left, folder.Names("items-1.kept-1"));
  // A tier with such a name does not remove the kept folder either.
  { DiskTierOracle oracle(Named(folder, "items-1.kept-0")); }
  { DiskTierOracle oracle(Small(folder)); }
  EXPECT_EQ(left, folder.Names("items-1.kept-1"));
}

TEST(Folder, LeavesOtherShardsThatAreInUse) {
  TempFolder folder;
  DiskTierOracle mine(Named(folder, "items-1"));
  ASSERT_TRUE(mine.Put(Range(1000)).ok());
  int ready[2], ended[2];
  ASSERT_EQ(0, pipe(ready));
  ASSERT_EQ(0, pipe(ended));
  const pid_t child = fork();
  if (child == 0) {
    char byte = 1;
    close(ended[1]);
    DiskTierOracle its(Named(folder, "items-2"));
    if (!its.Put(Range(1000)).ok() || write(ready[1], &byte, 1) != 1) _exit(1);
    _exit(read(ended[0], &byte, 1) == 0 && its.Check().ok() ? 0 : 2);
  }
  char byte;
  ASSERT_EQ(1, read(ready[0], &byte, 1));
  {
    DiskTierOracle oracle(Small(folder));
    EXPECT_EQ(std::vector<std::string>({"items-0", "items-1", "items-2"}), folder.Names());
  }
  ASSERT_TRUE(mine.Check().ok());
  close(ended[1]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
  DiskTierOracle oracle(Small(folder));  // the child ended without running destructors
  EXPECT_EQ(std::vector<std::string>({"items-0", "items-1"}), folder.Names());
}

TEST(Folder, LeavesFilesOfOthersBesideIt) {
  TempFolder folder, elsewhere;
  LeaveBehind(Named(elsewhere, "items-7"));
  const std::string path = folder.path();
  for (const char* const name : {"/items-1", "/items-2", "/items-3", "/items-6"}) {
    std::filesystem::create_directory(path + name);
  }
  std::ofstream(path + "/items-1/rows-0000000000000001.seg") << "without a LOCK";
  std::ofstream(path + "/items-2/LOCK") << "of another program";
  std::ofstream(path + "/items-3/LOCK");
  std::ofstream(path + "/items-3/notes.txt") << "mine";
  std::ofstream(path + "/items-4") << "a file";
  std::filesystem::create_symlink(elsewhere.path() + "/items-7", path + "/items-5");
  LeaveBehind(Named(elsewhere, "things-1"));
  std::filesystem::rename(elsewhere.path() + "/things-1", path + "/items-9");
  std::ofstream(path + "/items-9/notes.txt") << "mine";
  const std::vector<std::string> linked = elsewhere.Names("items-7");
  for (int round = 0; round < 2; ++round) {
    { DiskTierOracle oracle(Small(folder)); }
    EXPECT_EQ(std::vector<std::string>(
                  {"items-1", "items-2", "items-3", "items-4", "items-5", "items-6", "items-9"}),
              folder.Names());
    EXPECT_EQ(std::vector<std::string>({"rows-0000000000000001.seg"}), folder.Names("items-1"));
    EXPECT_EQ(std::vector<std::string>({"LOCK"}), folder.Names("items-2"));
    EXPECT_EQ(std::vector<std::string>({"LOCK", "notes.txt"}), folder.Names("items-3"));
    EXPECT_EQ(linked, elsewhere.Names("items-7"));
    EXPECT_EQ(std::vector<std::string>({"LOCK", "notes.txt"}), folder.Names("items-9"));
  }
}

TEST(Folder, MayBeTakenWhileItsOwnerRemovesIt) {
  TempFolder folder;
  const auto take_and_drop = [&](const char* name, int times) {
    for (int i = 0; i < times; ++i) {
      std::unique_ptr<Folder> taken;
      const Status status = Folder::Open(folder.path(), name, false, HostFileSystem(), &taken);
      // Open waits if the other process has the folder for a moment. It fails if that process takes
      // the folder again and again.
      if (!status.ok() && status.code() != StatusCode::kFailedPrecondition) {
        ADD_FAILURE() << status.message();
        return 1;
      }
      std::unique_ptr<File> file;
      if (status.ok() && taken->Create(1, &file) != 0) return 2;  // the folder was removed
      if (status.ok()) taken->Remove(1);
    }
    return 0;
  };
  // The third child looks for leftovers beside its folder, so it often locks the others' folder.
  std::vector<pid_t> children;
  for (const char* const name : {"items-0", "items-0", "items-1"}) {
    children.push_back(fork());
    if (children.back() == 0) _exit(take_and_drop(name, 3000));
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(0, status);
  }
  EXPECT_TRUE(folder.Names().empty());
}

TEST(Folder, MayBeTakenWhileAnotherShardRemovesWhatIsLeftInIt) {
  TempFolder folder;
  int ended[2];
  ASSERT_EQ(0, pipe(ended));
  const pid_t cleaner = fork();
  if (cleaner == 0) {
    fcntl(ended[0], F_SETFL, O_NONBLOCK);
    close(ended[1]);
    char byte;
    while (read(ended[0], &byte, 1) < 0) {
      std::unique_ptr<Folder> taken;
      if (!Folder::Open(folder.path(), "items-0", false, HostFileSystem(), &taken).ok()) _exit(1);
    }
    _exit(0);
  }
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(0, InChild([&] {
                std::unique_ptr<Folder> taken;
                const Status status =
                    Folder::Open(folder.path(), "items-1", false, HostFileSystem(), &taken);
                if (!status.ok()) return 1;
                for (uint64_t serial = 1; serial < 20; ++serial) {
                  std::unique_ptr<File> file;
                  if (taken->Create(serial, &file) != 0) return 2;
                }
                (void)taken.release();
                return 0;
              }));
  }
  close(ended[1]);
  int status = 0;
  waitpid(cleaner, &status, 0);
  EXPECT_EQ(0, status);
  { DiskTierOracle oracle(Small(folder)); }
  EXPECT_TRUE(folder.Names().empty());
}

TEST(Folder, IsNoFile) {
  TempFolder folder;
  std::ofstream(folder.path() + "/items-0") << "mine";
  std::unique_ptr<DiskTier> tier;
  const Status status = DiskTier::Open(Small(folder), &tier);
  EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'" + folder.path() + "/items-0', which is"))
      << status.message();
}

TEST(Folder, IsNotAChilds) {
  TempFolder folder;
  auto oracle = std::make_unique<DiskTierOracle>(Small(folder));
  ASSERT_TRUE(oracle->Put(Range(2000)).ok());
  ASSERT_TRUE(oracle->Check().ok());  // its threads run
  const std::vector<std::string> names = folder.Names("items-0");
  EXPECT_EQ(0, InChild([&] {
              const int64_t key = 1;
              WholeRows rows(HostAllocator());
              ExportCursor cursor;
              DiskTier* const tier = oracle->tier();
              const bool refused =
                  !tier->Get(ExecContext::Serial(), &key, 1, LowerTier::After::kCold, &rows).ok() &&
                  !tier->Put(ExecContext::Serial(), rows).ok() && !tier->Clear().ok() &&
                  !tier->Scan(1, &cursor, &rows).ok() &&
                  !tier->Compact(ExecContext::Serial()).ok() && !tier->SetRule(RuleSlots()).ok();
              tier->Erase(&key, 1);
              tier->Unshare(&key, 1, nullptr);
              oracle.reset();
              return refused ? 0 : 1;
            }));
  EXPECT_EQ(names, folder.Names("items-0"));
  ASSERT_TRUE(oracle->Check().ok());
  oracle.reset();
  EXPECT_TRUE(folder.Names().empty());
}

TEST(Folder, IsFreeOnceItsOwnerIsGoneThoughAChildLives) {
  TempFolder folder;
  auto oracle = std::make_unique<DiskTierOracle>(Small(folder));
  int pipe_ends[2];
  ASSERT_EQ(0, pipe(pipe_ends));
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(pipe_ends[1]);
    _exit(read(pipe_ends[0], &byte, 1) == 0 ? 0 : 1);  // until the parent has closed its end
  }
  oracle.reset();
  std::unique_ptr<DiskTier> tier;
  EXPECT_TRUE(DiskTier::Open(Small(folder), &tier).ok());
  close(pipe_ends[1]);
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace tf_embed
