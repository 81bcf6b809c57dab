// SPDX-License-Identifier: Apache-2.0
// Rows on disk: a log of segments (segment.h, row_log.h), an in-memory index of row places
// (place_index.h), compaction of garbage (compaction.h), and parallel block reads (block_reader.h).
// The folder is scratch space of this process (folder.h).
//
// Cost of a row: its bytes on disk, at most doubled by garbage. In memory, 16 to 24 bytes of index,
// and 8 bytes for each statistic, garbage included. A Get reads one block for each row, or each
// block once if it has several of the rows. Each read verifies the block's checksum and the keys of
// its rows, so damage is reported and never returned as a row.
//
// A failure leaves all rows in place. A Put that runs out of space stores some of its rows, each
// completely; later Puts work once there is space. Rows need not outlive the process, so files are
// not synced.
//
// In a child of fork(), all verbs fail or do nothing, and the parent's files stay.
//
// Thread-safe. Put, Clear, SetRule and each step of Compact exclude each other (LockRank::kRowLog).
// Get, Scan, Erase and the rest run concurrently. They pin the segments they read, then check
// whether a row has moved. No I/O runs under a stripe's mutex. REQUIRES: the caller holds no lock
// of rank kRowLog or above, such as a stripe's mutex.
#ifndef TF_EMBED_CC_TIERS_DISK_DISK_TIER_H_
#define TF_EMBED_CC_TIERS_DISK_DISK_TIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/thread_annotations.h"
#include "cc/core/store/lower_tier.h"
#include "cc/tiers/disk/block_reader.h"
#include "cc/tiers/disk/compaction.h"
#include "cc/tiers/disk/file.h"
#include "cc/tiers/disk/folder.h"
#include "cc/tiers/disk/place_index.h"
#include "cc/tiers/disk/row_log.h"
#include "cc/tiers/disk/segment.h"

namespace tf_embed {

struct DiskTierOptions {
  std::string path;  // an existing folder
  std::string name;  // the subfolder that the tier makes and removes
  DataType value_type = DataType::kFloat;
  size_t dim = 1;
  StatisticSet statistics;
  size_t init_size = 0;          // rows to reserve in the index
  uint64_t most_disk_bytes = 0;  // 0: unlimited
  size_t buffer_bytes = size_t{1} << 20;
  // Moves an earlier process's files aside instead of removing them.
  bool keep_leftovers = false;
  bool use_io_uring = true;   // if the kernel permits it
  bool use_direct_io = true;  // if the file system supports it
  FileSystem* files = HostFileSystem();
  // Held until the folder is removed, for the allocator of folder names.
  std::shared_ptr<const void> lease;
  Allocator* allocator = HostAllocator();
};

class DiskTier final : public LowerTier {
 public:
  // kFailedPrecondition if the folder is in use.
  static Status Open(const DiskTierOptions& options, std::unique_ptr<DiskTier>* tier);
  // Removes the folder.
  ~DiskTier() override;

  size_t size() const override { return index_.size(); }
  size_t shared() const override { return index_.shared(); }
  void Contains(const int64_t* keys, size_t count, bool* exists) const override;
  Status Get(const ExecContext& context, const int64_t* keys, size_t count, After after,
             WholeRows* rows) override;
  using LowerTier::Put;
  Status Put(const ExecContext& context, const WholeRows& rows, After after) override;
  void Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) override;
  void Erase(const int64_t* keys, size_t count) override;
  bool FindStatistics(int64_t key, uint64_t* statistics) const override;
  bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) override;
  bool NoteUse(int64_t key, const Moment& now) override { return index_.NoteUse(key, now); }
  bool TakeForSnapshot(int64_t key, const WantedRows& wanted) override {
    return index_.TakeForSnapshot(key, wanted);
  }
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const override {
    return index_.CollectRanks(order, one_in, low, high, ranks, below);
  }
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t num_absent,
                     RankList* expired) override {
    return index_.FindExpired(policy, now, num_absent, expired);
  }
  // Reads in log order. Reads each block at most once, and skips blocks without wanted rows.
  using LowerTier::Scan;
  Status Scan(size_t max_rows, const WantedRows& wanted, ExportCursor* cursor,
              WholeRows* rows) const override;
  Status LinkNext(const WantedRows& wanted, FileLinker* linker, ExportCursor* cursor,
                  LinkedRows* rows) override;
  Status TakeLinked(const WantedRows& wanted, ExportCursor* cursor, LinkedRows* rows) override;
  using LowerTier::SetRule;
  Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) override;
  Status Clear() override;
  Status Compact(const ExecContext& context) override;
  LowerTierStats Stats() const override;
  const std::string& name() const override { return name_; }

  // The I/O methods in use, for messages and benchmarks.
  bool uses_io_uring() const { return uses_io_uring_; }
  bool uses_direct_io() const { return folder_->direct(); }

 private:
  class BatchReader;  // disk_tier_get.cc

  DiskTier(const DiskTierOptions& options, std::unique_ptr<Folder> folder,
           std::unique_ptr<BlockReader> reader, bool uses_io_uring);

  // Fails in a child of fork().
  Status CheckOwned() const;
  std::shared_ptr<const TierRule> rule() const;
  Status PutSome(const TierRule& rule, const WholeRows& rows, After after, size_t* taken);
  // Compacts in proportion to the rows added and removed.
  void CompactSome(const TierRule& rule, size_t rows) TF_EMBED_REQUIRES(writers_);
  // Frees space below the bound. Returns false if there is no space to free.
  bool MakeSpace(const TierRule& rule) TF_EMBED_REQUIRES(writers_);
  // A part of Scan: cold rows of the blocks from `block` on.
  Status ScanSegment(Segment* segment, const TierRule& rule, size_t most_rows,
                     const WantedRows& wanted, uint32_t* block, bool* ended, WholeRows* rows) const;
  // Whether a row of a segment is cold and wanted by the snapshot. Without a snapshot, all rows are
  // wanted.
  bool IsWanted(const Segment& segment, size_t row, const WantedRows& wanted) const;
  RowChange::Word* ChangeOf(const Segment& segment, size_t row) const;
  // Whether the snapshot wants a row of a flushed block. Without a snapshot, returns true.
  bool HasWanted(const Segment& segment, uint32_t block, const WantedRows& wanted) const;
  void ScanBlock(const Segment& segment, const TierRule& rule, uint32_t block,
                 const RowBlock& found, WholeRows* rows) const;

  const DiskTierOptions options_;
  const std::string name_;
  const size_t weight_bytes_;
  const std::unique_ptr<Folder> folder_;
  mutable SegmentList segments_;
  PlaceIndex index_;
  RowLog log_;
  mutable OrderedMutex writers_{LockRank::kRowLog};
  Compaction compaction_;  // guarded by writers_, but for its counts of bytes
  int64_t compaction_credit_ TF_EMBED_GUARDED_BY(writers_) = 0;  // rows that it may examine now
  std::unique_ptr<BlockReader> reader_;
  const bool uses_io_uring_;

  mutable std::mutex rule_mutex_;  // no other lock is taken under it
  std::shared_ptr<const TierRule> rule_ TF_EMBED_GUARDED_BY(rule_mutex_);

  std::atomic<uint64_t> erased_{0};  // since the last Put
  std::atomic<uint64_t> rows_read_{0};
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> read_requests_{0};
  std::atomic<uint64_t> rows_written_{0};
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_DISK_TIER_H_
