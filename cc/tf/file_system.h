// SPDX-License-Identifier: Apache-2.0
// TensorFlow's file systems behind the core's streams. Paths are local, or have a scheme that
// TensorFlow supports, such as gs://, or s3:// once tensorflow-io is imported.
#ifndef TF_EMBED_CC_TF_FILE_SYSTEM_H_
#define TF_EMBED_CC_TF_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/files/byte_stream.h"
#include "tensorflow/core/platform/env.h"

namespace tf_embed {

// A number that no process has twice, and no two processes have in common.
uint64_t RandomNumber();

class FileSink final : public ByteSink {
 public:
  static absl::Status Create(const std::string& path, std::unique_ptr<FileSink>* sink);

  Status Append(const void* bytes, size_t size) override;
  // Closes the file and flushes it to disk, if the file system has a flush.
  absl::Status Close();

 private:
  FileSink(const std::string& path, std::unique_ptr<tensorflow::WritableFile> file)
      : path_(path), file_(std::move(file)) {}

  const std::string path_;
  const std::unique_ptr<tensorflow::WritableFile> file_;
};

class FileSource final : public ByteSource {
 public:
  // If `stays_open`, the file stays readable after its removal from a local disk. Otherwise each
  // read opens it again, which keeps the number of open files small.
  static absl::Status Open(const std::string& path, bool stays_open,
                           std::unique_ptr<FileSource>* source);

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  Status Read(uint64_t offset, size_t size, void* bytes) const override;

 private:
  FileSource(const std::string& path, std::unique_ptr<tensorflow::RandomAccessFile> file,
             uint64_t size)
      : path_(path), file_(std::move(file)), size_(size) {}

  const std::string path_;
  const std::unique_ptr<tensorflow::RandomAccessFile> file_;  // null: opened for each read
  const uint64_t size_;
};

// Reads a whole file that may be replaced concurrently; all bytes come from one version. Refuses
// more than `most` bytes.
absl::Status ReadWholeFile(const std::string& path, uint64_t most, std::string* bytes);

// A folder whose files appear atomically: complete or not at all.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& file) const;

  // Creates the folder and flushes its directory entry.
  absl::Status Create() const;
  absl::Status List(std::vector<std::string>* files) const;
  // Replaces a file atomically. If the file system supports rename, writes first to
  // `file`.<16 hexadecimal digits>.aside, a name that no other process uses. An object store
  // publishes a file only once it is complete.
  absl::Status Replace(const std::string& file, const std::string& text) const;
  // Removes a file. A failure is only logged, because a leftover file is harmless.
  void Remove(const std::string& file) const;
  // Whether local files can be hard-linked here, which requires a local folder.
  bool IsLocal() const;
  // Hard-links a local file into this folder and flushes it. Returns false if it can't be linked.
  bool Link(const std::string& from, const std::string& file) const;
  // Flushes directory entries.
  absl::Status Sync() const;

 private:
  const std::string path_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_FILE_SYSTEM_H_
