// SPDX-License-Identifier: Apache-2.0
// Operating system files, behind an interface that lets tests inject failures. Errors are errno
// values.
//
// Thread-safe.
#ifndef TF_EMBED_CC_TIERS_DISK_FILE_H_
#define TF_EMBED_CC_TIERS_DISK_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/core/base/status.h"

namespace tf_embed {

// An open file.
class File {
 public:
  virtual ~File() = default;

  // As pread and pwrite: the number of bytes, perhaps short, or -errno.
  virtual ssize_t Pread(void* bytes, size_t size, uint64_t offset) const = 0;
  virtual ssize_t Pwrite(const void* bytes, size_t size, uint64_t offset) = 0;

  // For reads by a ring instead of Pread. Completed receives each result, and returns the result to
  // use.
  virtual int descriptor() const = 0;
  virtual ssize_t Completed(ssize_t result, void* bytes, uint64_t offset) const {
    (void)bytes, (void)offset;
    return result;
  }

  // Reads or writes all bytes; continues after interrupted and short calls. Returns 0 or an errno.
  // A read past the end returns EIO.
  int ReadAll(void* bytes, size_t size, uint64_t offset) const;
  int WriteAll(const void* bytes, size_t size, uint64_t offset);
};

// Operations on folders.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a new file for reads and writes; `direct` bypasses the page cache. Returns 0 or an
  // errno.
  virtual int Create(const std::string& path, bool direct, std::unique_ptr<File>* file) = 0;
  virtual int Unlink(const std::string& path) = 0;
};

// The file system of this machine.
FileSystem* HostFileSystem();

// Converts a failed call to a status: kResourceExhausted if there is no space, else kUnavailable.
// `what` begins the message, such as "Can't write to '/x/y'".
Status FileFailure(const std::string& what, int error);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TIERS_DISK_FILE_H_
