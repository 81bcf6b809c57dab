// SPDX-License-Identifier: Apache-2.0
// The folder of a save, on any file system. Its files appear atomically: complete or not at all.
#ifndef TF_EMBED_CC_CORE_SAVES_SAVE_FOLDER_H_
#define TF_EMBED_CC_CORE_SAVES_SAVE_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/files/byte_stream.h"

namespace tf_embed {

// A file that is being written.
class FileSink : public ByteSink {
 public:
  // Closes the file and flushes it to the medium, if the file system has a flush.
  virtual Status Close() = 0;
};

class SaveFolder {
 public:
  virtual ~SaveFolder() = default;

  virtual const std::string& path() const = 0;
  virtual std::string PathOf(const std::string& file) const = 0;
  // Another folder of the same parent.
  virtual std::unique_ptr<SaveFolder> Sibling(const std::string& name) const = 0;

  // Creates the folder and flushes its directory entry.
  virtual Status Create() const = 0;
  virtual Status List(std::vector<std::string>* files) const = 0;
  // Creates a file.
  virtual Status NewFile(const std::string& file, std::unique_ptr<FileSink>* sink) const = 0;
  // Opens a file. If `stays_open`, it stays readable after its removal from a local disk. Otherwise
  // each read opens it again, which keeps the number of open files small.
  virtual Status Open(const std::string& file, bool stays_open,
                      std::unique_ptr<ByteSource>* source) const = 0;
  // Reads a whole file that may be replaced concurrently; all bytes come from one version. Refuses
  // more than `most` bytes.
  virtual Status ReadWhole(const std::string& file, uint64_t most, std::string* bytes) const = 0;
  // Returns kNotFound if there is no such file.
  virtual Status CheckExists(const std::string& file) const = 0;
  // Replaces a file atomically. If the file system supports rename, writes first to
  // `file`.<16 hexadecimal digits>.aside, a name that no other process uses. An object store
  // publishes a file only once it is complete.
  virtual Status Replace(const std::string& file, const std::string& text) const = 0;
  // Removes a file. A failure is only logged, because a leftover file is harmless.
  virtual void Remove(const std::string& file) const = 0;
  // Whether local files can be hard-linked here, which requires a local folder.
  virtual bool IsLocal() const = 0;
  // Hard-links a local file into this folder and flushes it. Returns false if it can't be linked.
  virtual bool Link(const std::string& from, const std::string& file) const = 0;
  // Flushes directory entries.
  virtual Status Sync() const = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_SAVE_FOLDER_H_
