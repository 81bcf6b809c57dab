// SPDX-License-Identifier: Apache-2.0
// A save of rows in progress. Its files replace an earlier save atomically.
//
// Each save gives its row files unique names. Once all of them are on disk, the new manifest
// replaces the old one, which commits the save. Then the files of the old save are removed. A crash
// at any point leaves one complete save, and perhaps orphan files that the next save removes.
#ifndef TF_EMBED_CC_CORE_SAVES_PENDING_SAVE_H_
#define TF_EMBED_CC_CORE_SAVES_PENDING_SAVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/files/row_file.h"
#include "cc/core/files/row_manifest.h"
#include "cc/core/saves/save_folder.h"
#include "cc/core/saves/save_place.h"

namespace tf_embed {

// Not thread-safe. Concurrent saves to one place conflict: the first to finish removes the files of
// the others, which then fail.
class PendingSave {
 public:
  // `kind`: the types and the dim of the rows.
  PendingSave(SavePlace place, const RowManifest& kind);
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;
  ~PendingSave() { GiveUp(); }

  // The number shared by all files of this save.
  uint64_t number() const { return manifest_.save; }
  // A local shard's number within the save.
  uint32_t ShardOf(size_t shard, uint32_t num_shards) const;
  uint32_t NumShards(uint32_t num_shards) const;

  // Call order: Begin, then NewFile or LinkFile for each file in shard order, then Commit.
  Status Begin();
  Status NewFile(uint32_t num_shards, FileSink** sink);  // of this process
  // Links a local file into the save and returns its number. False if it can't be linked.
  bool LinkFile(const std::string& path, uint64_t bytes, uint32_t checksum, uint32_t* number);
  // Whether LinkFile may succeed. Links are numbered across a whole save, but the parts of a joint
  // save are written concurrently, so a part has no links.
  bool can_link() const { return !is_part_ && folder_->IsLocal(); }
  // Records that `writer` has finished the last file.
  void EndFile(const RowFileWriter& writer);
  Status Commit();
  // Removes the files unless the save was committed. Must be the last call.
  void GiveUp();

 private:
  // The names of all row files.
  std::vector<std::string> FileNames() const;
  Status PutManifest();
  // Whether the manifest may be on disk although PutManifest has failed: perhaps only the flush of
  // its name failed. Its files must then stay, because it has replaced the old manifest.
  bool MayBeInPlace() const;
  uint64_t LastTimeOf(const SavedRanks::value_type& ranks) const;
  void RemoveOlder() const;
  template <typename Wanted>
  void RemoveRows(const std::vector<std::string>& files, const Wanted& wanted) const;

  const std::unique_ptr<SaveFolder> folder_;
  const RowFileNames names_;
  const bool is_part_;  // of a joint save, to which all processes give equally many shards
  RowManifest manifest_;
  std::vector<std::unique_ptr<FileSink>> sinks_;
  bool begun_ = false;
  bool committed_ = false;
};

// Joins the parts written by `place.processes` processes in one folder into a single save, as if
// one process had written all shards. Removes the parts' manifests and returns the save's number.
Status JoinSaves(const SavePlace& place, uint64_t* save);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_PENDING_SAVE_H_
