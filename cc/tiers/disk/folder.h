// SPDX-License-Identifier: Apache-2.0
// The folder of one tier: scratch space of one process.
//
//     LOCK                    locked while the process lives; its content says whose folder it is
//     rows-<16 digits>.seg    files of rows
//
// A folder in use is refused. A leftover of a dead process is emptied and reused, or moved aside to
// "<folder>.kept-<n>" if it is to be kept. Files with other names are never touched. So a folder
// without our LOCK must be empty, and a folder with other files is not removed.
//
// A table's folders are named "<label>-<shard>" or "<label>-<shard>.<n>". Open also removes, or
// moves aside, leftovers with exactly the same label, because the table may have had more shards
// before.
//
// A child of fork() does not own the folder: Owned() is false there, and nothing is removed.
//
// Thread-safe.
#ifndef TF_EMBED_CC_TIERS_DISK_FOLDER_H_
#define TF_EMBED_CC_TIERS_DISK_FOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/status.h"
#include "cc/tiers/disk/file.h"

namespace tf_embed {

class Folder {
 public:
  // `path` exists; its subfolder `name` is created.
  static Status Open(const std::string& path, const std::string& name, bool keep_leftovers,
                     FileSystem* files, std::unique_ptr<Folder>* folder);
  // Removes the folder. REQUIRES: its row files are gone. Does nothing in a child of fork().
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  bool Owned() const;

  // The path of the row file with a serial number.
  std::string FileOf(uint64_t serial) const;
  // Creates this file, for direct I/O if `direct` and supported. Returns 0 or an errno.
  int Create(uint64_t serial, std::unique_ptr<File>* file);
  // Removes this file.
  void Remove(uint64_t serial);

  // Checks whether files can be created here, and whether direct I/O works.
  Status Probe(bool direct);
  bool direct() const { return direct_; }

 private:
  Folder(std::string path, FileSystem* files, int lock, pid_t owner)
      : path_(std::move(path)), files_(files), lock_(lock), owner_(owner) {}

  const std::string path_;
  FileSystem* const files_;
  const int lock_;
  const pid_t owner_;
  bool direct_ = false;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_FOLDER_H_
