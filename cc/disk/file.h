// SPDX-License-Identifier: Apache-2.0
// Files of the operating system, as this room uses them: a seam for tests, which put files that
// fail behind it. Failures are numbers of <errno.h>.
//
// Thread safety: any thread may call any method at any time.
#ifndef TF_EMBED_CC_DISK_FILE_H_
#define TF_EMBED_CC_DISK_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/status.h"

namespace tf_embed {

// An open file.
class File {
 public:
  virtual ~File() = default;

  // As pread and pwrite: the number of bytes, perhaps fewer than asked for, or -errno.
  virtual ssize_t Pread(void* bytes, size_t size, uint64_t offset) const = 0;
  virtual ssize_t Pwrite(const void* bytes, size_t size, uint64_t offset) = 0;

  // For reads that a ring does in place of Pread. Completed is called with the result of each, and
  // returns the one that counts.
  virtual int descriptor() const = 0;
  virtual ssize_t Completed(ssize_t result, void* bytes, uint64_t offset) const {
    (void)bytes, (void)offset;
    return result;
  }

  // All of it. Interrupted calls and short ones are gone on with; 0, or the errno of the failure.
  // EIO if the file ends before.
  int ReadAll(void* bytes, size_t size, uint64_t offset) const;
  int WriteAll(const void* bytes, size_t size, uint64_t offset);
};

// The calls that change folders.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Makes a new file to read and to write; without the page cache if `direct`. 0 or errno.
  virtual int Create(const std::string& path, bool direct, std::unique_ptr<File>* file) = 0;
  virtual int Unlink(const std::string& path) = 0;
};

// The file system of this machine.
FileSystem* HostFileSystem();

// The failure of a call as a status: kResourceExhausted if there is no space, else kUnavailable.
// `what` is a sentence up to what failed, such as "Can't write to '/x/y'".
Status FileFailure(const std::string& what, int error);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_DISK_FILE_H_
