// SPDX-License-Identifier: Apache-2.0
// TensorFlow's file systems behind the core's streams: local folders, and whatever else has a
// scheme that TensorFlow knows, such as gs:// or, once tensorflow-io is imported, s3://.
#ifndef TF_EMBED_CC_TF_FILE_SYSTEM_H_
#define TF_EMBED_CC_TF_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/files/byte_stream.h"
#include "tensorflow/core/platform/env.h"

namespace tf_embed {

class FileSink final : public ByteSink {
 public:
  static absl::Status Create(const std::string& path, std::unique_ptr<FileSink>* sink);

  Status Append(const void* bytes, size_t size) override;
  // Ends the file, and sees to it that it survives a crash of the machine, where the file system
  // lets us.
  absl::Status Close();

 private:
  FileSink(const std::string& path, std::unique_ptr<tensorflow::WritableFile> file)
      : path_(path), file_(std::move(file)) {}

  const std::string path_;
  const std::unique_ptr<tensorflow::WritableFile> file_;
};

class FileSource final : public ByteSource {
 public:
  // `stays_open`: what is removed from a local disk meanwhile can still be read. Else the file is
  // opened for each read, as there may be more of them than a process can have open.
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
  const std::unique_ptr<tensorflow::RandomAccessFile> file_;  // null: it is opened for each read
  const uint64_t size_;
};

// Reads a whole file that others may put another one in place of: all bytes are of one of them.
// Refuses more than `most` bytes.
absl::Status ReadWholeFile(const std::string& path, uint64_t most, std::string* bytes);

// A folder of files that begin to be at once and whole, or not at all.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& file) const;

  // Makes the folder, and sees to it that its name survives a crash of the machine.
  absl::Status Create() const;
  absl::Status List(std::vector<std::string>* files) const;
  // Puts a file in place of one of that name. Where the file system can rename, it is written under
  // `aside` first; an object store shows a file when it is whole.
  absl::Status Replace(const std::string& file, const std::string& aside,
                       const std::string& text) const;
  // Removes a file. That it stays is no harm, and logged.
  void Remove(const std::string& file) const;
  // Whether files of this machine can be linked here: it is a local folder.
  bool IsLocal() const;
  // Gives a local file a second name here, and sees to it that its bytes survive a crash of the
  // machine. False if it can't be linked.
  bool Link(const std::string& from, const std::string& file) const;
  // Makes names survive a crash of the machine.
  absl::Status Sync() const;

 private:
  const std::string path_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_FILE_SYSTEM_H_
