// SPDX-License-Identifier: Apache-2.0
// A save of rows under way: files that take the place of an earlier save at once, or not at all.
//
// Files of rows have names that no other save has. When all of them are there, and on the disk, the
// manifest is put in place of the old one, by which the new save takes over from the old; then the
// files of the old one are removed. So a crash at any moment leaves one of the two, whole, and
// perhaps files that no manifest names, which the next save removes.
#ifndef TF_EMBED_CC_TF_PENDING_SAVE_H_
#define TF_EMBED_CC_TF_PENDING_SAVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/files/row_file.h"
#include "cc/core/files/row_manifest.h"
#include "cc/tf/file_system.h"
#include "cc/tf/saved_rows.h"

namespace tf_embed {

// Not thread-safe. One save of a place at a time: the first to finish removes the files of others,
// which then fail.
class PendingSave {
 public:
  // `kind`: the types and the dim of the rows.
  PendingSave(SavePlace place, const RowManifest& kind);
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;
  ~PendingSave() { GiveUp(); }

  // A number that all files of this save have.
  uint64_t number() const { return manifest_.save; }
  // Whether the files are a part of a save, by several processes with as many shards each.
  bool is_part() const { return is_part_; }
  // The number of a shard among those of the save, and how many there are.
  uint32_t ShardOf(size_t shard, uint32_t num_shards) const;
  uint32_t NumShards(uint32_t num_shards) const;

  // In this order; files one after the other, in the order of their shards.
  absl::Status Begin();
  absl::Status NewFile(uint32_t num_shards, FileSink** sink);  // of this process
  // Gives a file of this machine a name among those of the save, by a number. False if it can't.
  bool LinkFile(const std::string& path, uint64_t bytes, uint32_t checksum, uint32_t* number);
  // Whether that may be possible. Linked files are numbered in a save, whose parts are written at
  // one time, so a part has none.
  bool can_link() const { return !is_part_ && folder_->IsLocal(); }
  // Says that `writer` has finished the last file.
  void EndFile(const RowFileWriter& writer);
  absl::Status Commit();
  // Removes the files, unless the save was committed. Nothing follows.
  void GiveUp();

 private:
  std::string Aside() const;
  // The names of all files of rows.
  std::vector<std::string> FileNames() const;
  absl::Status PutManifest();
  uint64_t LastTimeOf(const SavedRanks::value_type& ranks) const;
  void RemoveOlder() const;
  template <typename Wanted>
  void RemoveRows(const std::vector<std::string>& files, const Wanted& wanted) const;

  const std::unique_ptr<Folder> folder_;
  const RowFileNames names_;
  const bool is_part_;
  RowManifest manifest_;
  std::vector<std::unique_ptr<FileSink>> sinks_;
  bool begun_ = false;
  bool committed_ = false;
};

// Makes one save of the parts that `place.processes` processes have written in its folder, as if
// one process had written the shards of all, and removes their manifests. Gives its number.
absl::Status JoinSaves(const SavePlace& place, uint64_t* save);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_PENDING_SAVE_H_
