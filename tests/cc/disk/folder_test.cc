// SPDX-License-Identifier: Apache-2.0
// Whose a folder is: locks, what a dead process left, children of fork().
#include "cc/disk/folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/support/disk_store_oracle.h"

namespace tf_embed {
namespace {

DiskStoreOptions Small(const TempFolder& folder) {
  DiskStoreOptions options;
  options.path = folder.path();
  options.name = "items-0";
  options.dim = 100;
  options.buffer_bytes = 32 << 10;
  options.use_io_uring = false;  // threads, which a child does not have
  return options;
}

std::vector<int64_t> Range(int64_t count) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key < count; ++key) keys.push_back(key);
  return keys;
}

// Runs `child` in a child of fork() and returns what it returns.
template <typename Child>
int InChild(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A process that ends in the middle of its work: the store is never destroyed.
void LeaveBehind(const DiskStoreOptions& options) {
  EXPECT_EQ(0, InChild([&] {
              DiskStoreOracle* const oracle = new DiskStoreOracle(options);
              return oracle->Put(Range(1000)).ok() ? 0 : 1;
            }));
}

TEST(Folder, IsRefusedWhileItIsInUse) {
  TempFolder folder;
  std::unique_ptr<DiskStore> store, other;
  ASSERT_TRUE(DiskStore::Open(Small(folder), &store).ok());
  const Status status = DiskStore::Open(Small(folder), &other);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find("'" + folder.path() + "/items-0' is in use"))
      << status.message();
  EXPECT_EQ(0, InChild([&] {
              std::unique_ptr<DiskStore> third;
              const Status refused = DiskStore::Open(Small(folder), &third);
              return refused.code() == StatusCode::kFailedPrecondition ? 0 : 1;
            }));
  store.reset();
  EXPECT_TRUE(DiskStore::Open(Small(folder), &other).ok());
}

TEST(Folder, OfADeadProcessIsEmptied) {
  TempFolder folder;
  LeaveBehind(Small(folder));
  ASSERT_GT(folder.Names("items-0").size(), 2u);
  DiskStoreOracle oracle(Small(folder));
  EXPECT_EQ(std::vector<std::string>({"LOCK"}), folder.Names("items-0"));
  EXPECT_EQ(0u, oracle.store()->size());
  ASSERT_TRUE(oracle.Put(Range(1000)).ok());
  ASSERT_TRUE(oracle.Check().ok());
}

TEST(Folder, OfADeadProcessIsKeptIfItShallBe) {
  TempFolder folder;
  DiskStoreOptions options = Small(folder);
  options.keep_leftovers = true;
  LeaveBehind(options);
  const std::vector<std::string> left = folder.Names("items-0");
  LeaveBehind(options);
  {
    DiskStoreOracle oracle(options);
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
  { DiskStoreOracle oracle(Small(folder)); }
  EXPECT_EQ(std::vector<std::string>({"notes.txt", "rows-1.seg"}), folder.Names("items-0"));
  // A folder of someone else, with or without a LOCK.
  std::unique_ptr<DiskStore> store;
  const Status status = DiskStore::Open(Small(folder), &store);
  EXPECT_EQ(StatusCode::kFailedPrecondition, status.code());
  EXPECT_NE(std::string::npos, status.message().find(folder.path() + "/items-0"));
  EXPECT_EQ(std::vector<std::string>({"notes.txt", "rows-1.seg"}), folder.Names("items-0"));
  std::ofstream(folder.path() + "/items-0/LOCK") << "of another program";
  EXPECT_EQ(StatusCode::kFailedPrecondition, DiskStore::Open(Small(folder), &store).code());
  EXPECT_EQ(std::vector<std::string>({"LOCK", "notes.txt", "rows-1.seg"}), folder.Names("items-0"));
}

TEST(Folder, IsNotAChilds) {
  TempFolder folder;
  auto oracle = std::make_unique<DiskStoreOracle>(Small(folder));
  ASSERT_TRUE(oracle->Put(Range(2000)).ok());
  ASSERT_TRUE(oracle->Check().ok());  // its threads run
  const std::vector<std::string> names = folder.Names("items-0");
  EXPECT_EQ(
      0, InChild([&] {
        const int64_t key = 1;
        WholeRows rows(HostAllocator());
        ExportCursor cursor;
        DiskStore* const store = oracle->store();
        const bool refused =
            !store->Get(ExecContext::Serial(), &key, 1, BackingStore::After::kCold, &rows).ok() &&
            !store->Put(ExecContext::Serial(), rows).ok() && !store->Clear().ok() &&
            !store->Scan(1, &cursor, &rows).ok() && !store->Compact(ExecContext::Serial()).ok() &&
            !store->SetRule(RuleSlots()).ok();
        store->Erase(&key, 1);
        store->Unshare(&key, 1, nullptr);
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
  auto oracle = std::make_unique<DiskStoreOracle>(Small(folder));
  int pipe_ends[2];
  ASSERT_EQ(0, pipe(pipe_ends));
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(pipe_ends[1]);
    _exit(read(pipe_ends[0], &byte, 1) == 0 ? 0 : 1);  // until the parent has closed its end
  }
  oracle.reset();
  std::unique_ptr<DiskStore> store;
  EXPECT_TRUE(DiskStore::Open(Small(folder), &store).ok());
  close(pipe_ends[1]);
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace tf_embed
