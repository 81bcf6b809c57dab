// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc/core/saves/save_place.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/path.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// The status of a read or a write of bytes: whatever else went wrong, the file is unavailable.
Status StatusOfBytes(const absl::Status& status) {
  if (status.ok()) return Status();
  if (absl::IsResourceExhausted(status)) {
    return Status::ResourceExhausted([&] { return std::string(status.message()); });
  }
  return Status::Unavailable(std::string(status.message()));
}

// The path for system calls; null if the file is not local.
const char* LocalPath(const std::string& path) {
  constexpr char kScheme[] = "file://";
  if (path.rfind(kScheme, 0) == 0) return path.c_str() + sizeof(kScheme) - 1;
  return path.find("://") == std::string::npos ? path.c_str() : nullptr;
}

// The parent folder of a local path.
std::string ParentOf(const std::string& path) {
  std::string local = LocalPath(path);
  while (local.size() > 1 && local.back() == '/') local.pop_back();
  const std::string parent(tf::io::Dirname(local));
  return parent.empty() ? "." : parent;
}

// Flushes a local file to disk. TensorFlow's Sync only hands the bytes to the operating system.
absl::Status SyncLocal(const std::string& path, bool must_be_readable = true) {
  const char* const local = LocalPath(path);
  if (local == nullptr) return absl::OkStatus();
  const int file = open(local, O_RDONLY | O_CLOEXEC);
  int error = file < 0 ? errno : 0;
  if (error == EACCES && !must_be_readable) error = 0;
  if (file >= 0) {
    // EINVAL: a special file, which can't be flushed.
    if (fsync(file) != 0 && errno != EINVAL) error = errno;
    close(file);  // fsync has reported all write errors
  }
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("'", path, "' can't be brought to the disk: ", std::strerror(error), "."));
}

// Rejects pipes, sockets and devices, because reading them may never end.
absl::Status CheckRegular(const std::string& path) {
  const char* const local = LocalPath(path);
  struct stat found;
  if (local == nullptr || stat(local, &found) != 0) return absl::OkStatus();  // the read reports it
  if (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", path, "' is damaged: it is no regular file."));
}

// Removes a symbolic link. Otherwise a planted link with a predictable name could redirect the
// write to another file.
absl::Status RemoveLink(const std::string& path) {
  const char* const local = LocalPath(path);
  struct stat found;
  if (local == nullptr || lstat(local, &found) != 0 || !S_ISLNK(found.st_mode)) {
    return absl::OkStatus();
  }
  if (unlink(local) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("'", path, "' can't be removed: ", std::strerror(errno), "."));
}

class TensorFlowSink final : public FileSink {
 public:
  static absl::Status Create(const std::string& path, std::unique_ptr<FileSink>* sink) {
    std::unique_ptr<tf::WritableFile> file;
    TF_RETURN_IF_ERROR(tf::Env::Default()->NewWritableFile(path, &file));
    sink->reset(new TensorFlowSink(path, std::move(file)));
    return absl::OkStatus();
  }

  Status Append(const void* bytes, size_t size) override {
    return StatusOfBytes(file_->Append(absl::string_view(static_cast<const char*>(bytes), size)));
  }

  Status Close() override { return FromTensorFlow(CloseFile()); }

 private:
  TensorFlowSink(const std::string& path, std::unique_ptr<tf::WritableFile> file)
      : path_(path), file_(std::move(file)) {}

  absl::Status CloseFile() {
    absl::Status status = file_->Sync();
    // A file system without a flush, such as an object store, writes everything in Close.
    if (absl::IsUnimplemented(status)) status = absl::OkStatus();
    // Also after a failed flush, otherwise the file would stay open.
    const absl::Status closed = file_->Close();
    TF_RETURN_IF_ERROR(status);
    TF_RETURN_IF_ERROR(closed);
    return SyncLocal(path_);
  }

  const std::string path_;
  const std::unique_ptr<tf::WritableFile> file_;
};

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::unique_ptr<FileSink> sink;
  TF_RETURN_IF_ERROR(RemoveLink(path));
  TF_RETURN_IF_ERROR(TensorFlowSink::Create(path, &sink));
  const Status status = sink->Append(text.data(), text.size());
  const absl::Status closed = ToTensorFlow(sink->Close());
  if (!status.ok()) return absl::UnavailableError(status.message());
  return closed;
}

// Reads up to `size` bytes into `to`, or a view of the file system's own memory. The signature that
// newer versions of TensorFlow have is tried first: they deprecate the older.
template <typename File>
auto ReadSome(const File& file, uint64_t offset, char* to, size_t size, absl::string_view* read,
              int) -> decltype(file.Read(offset, *read, absl::MakeSpan(to, size))) {
  return file.Read(offset, *read, absl::MakeSpan(to, size));
}
template <typename File>
absl::Status ReadSome(const File& file, uint64_t offset, char* to, size_t size,
                      absl::string_view* read, long) {
  return file.Read(offset, size, read, to);
}

class TensorFlowSource final : public ByteSource {
 public:
  TensorFlowSource(const std::string& path, std::unique_ptr<tf::RandomAccessFile> file,
                   uint64_t size)
      : path_(path), file_(std::move(file)), size_(size) {}

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  Status Read(uint64_t offset, size_t size, void* bytes) const override;

 private:
  const std::string path_;
  const std::unique_ptr<tf::RandomAccessFile> file_;  // null: opened for each read
  const uint64_t size_;
};

Status TensorFlowSource::Read(uint64_t offset, size_t size, void* bytes) const {
  if (size == 0) return Status();
  char* const to = static_cast<char*>(bytes);
  absl::string_view read;
  const tf::RandomAccessFile* file = file_.get();
  std::unique_ptr<tf::RandomAccessFile> opened;
  if (file == nullptr) {
    const absl::Status status = tf::Env::Default()->NewRandomAccessFile(path_, &opened);
    if (!status.ok()) return StatusOfBytes(status);
    file = opened.get();
  }
  const absl::Status status = ReadSome(*file, offset, to, size, &read, 0);
  // TensorFlow reports a short read as OutOfRange. That is a truncated file, and not a failure of
  // the file system.
  if (read.size() != size || (!status.ok() && !absl::IsOutOfRange(status))) {
    if (status.ok() || absl::IsOutOfRange(status)) {
      return Status::DataLoss("'" + path_ + "' ends before byte " + std::to_string(offset + size) +
                              ".");
    }
    return StatusOfBytes(status);
  }
  // A file system may return its own memory, such as a mapping, and leave the buffer alone.
  if (read.data() != to) std::memmove(to, read.data(), size);
  return Status();
}

absl::Status OpenFile(const std::string& path, bool stays_open,
                      std::unique_ptr<ByteSource>* source) {
  uint64_t size;
  std::unique_ptr<tf::RandomAccessFile> file;
  TF_RETURN_IF_ERROR(CheckRegular(path));
  TF_RETURN_IF_ERROR(tf::Env::Default()->GetFileSize(path, &size));
  if (stays_open) TF_RETURN_IF_ERROR(tf::Env::Default()->NewRandomAccessFile(path, &file));
  *source = std::make_unique<TensorFlowSource>(path, std::move(file), size);
  return absl::OkStatus();
}

absl::Status ReadWholeFile(const std::string& path, uint64_t most, std::string* bytes) {
  // Read until the end: a size queried by name may belong to a replacement file.
  constexpr size_t kChunk = size_t{1} << 16;
  std::unique_ptr<tf::RandomAccessFile> file;
  TF_RETURN_IF_ERROR(CheckRegular(path));
  TF_RETURN_IF_ERROR(tf::Env::Default()->NewRandomAccessFile(path, &file));
  std::string chunk(kChunk, '\0');
  for (bytes->clear(); bytes->size() <= most;) {
    absl::string_view read;
    const absl::Status status = ReadSome(*file, bytes->size(), chunk.data(), kChunk, &read, 0);
    if (!status.ok() && !absl::IsOutOfRange(status)) return status;
    bytes->append(read.data(), read.size());
    if (read.size() < kChunk) return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("'", path, "' is damaged: it has more than ", most, " bytes."));
}

class TensorFlowFolder final : public SaveFolder {
 public:
  explicit TensorFlowFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const override { return path_; }
  std::string PathOf(const std::string& file) const override {
    return tf::io::JoinPath(path_, file);
  }
  std::unique_ptr<SaveFolder> Sibling(const std::string& name) const override {
    return NewSaveFolder(tf::io::JoinPath(tf::io::Dirname(path_), name));
  }

  Status Create() const override { return FromTensorFlow(CreateFolder()); }
  Status List(std::vector<std::string>* files) const override {
    return FromTensorFlow(tf::Env::Default()->GetChildren(path_, files));
  }
  Status NewFile(const std::string& file, std::unique_ptr<FileSink>* sink) const override {
    return FromTensorFlow(TensorFlowSink::Create(PathOf(file), sink));
  }
  Status Open(const std::string& file, bool stays_open,
              std::unique_ptr<ByteSource>* source) const override {
    return FromTensorFlow(OpenFile(PathOf(file), stays_open, source));
  }
  Status ReadWhole(const std::string& file, uint64_t most, std::string* bytes) const override {
    return FromTensorFlow(ReadWholeFile(PathOf(file), most, bytes));
  }
  Status CheckExists(const std::string& file) const override {
    return FromTensorFlow(tf::Env::Default()->FileExists(PathOf(file)));
  }
  Status Replace(const std::string& file, const std::string& text) const override {
    return FromTensorFlow(ReplaceFile(file, text));
  }
  void Remove(const std::string& file) const override;
  bool IsLocal() const override { return LocalPath(path_) != nullptr; }
  bool Link(const std::string& from, const std::string& file) const override;
  Status Sync() const override { return FromTensorFlow(SyncLocal(path_)); }

 private:
  absl::Status CreateFolder() const;
  absl::Status ReplaceFile(const std::string& file, const std::string& text) const;

  const std::string path_;
};

absl::Status TensorFlowFolder::CreateFolder() const {
  tf::Env* const env = tf::Env::Default();
  if (!IsLocal()) return env->RecursivelyCreateDir(path_);
  // Flush the parent folders too: the process that made them may have died before doing so.
  std::vector<std::string> parents = {ParentOf(path_)};
  while (!env->FileExists(parents.back()).ok()) {
    std::string above = ParentOf(parents.back());
    if (above == parents.back()) break;
    parents.push_back(std::move(above));
  }
  TF_RETURN_IF_ERROR(env->RecursivelyCreateDir(path_));
  for (const std::string& parent : parents) {
    TF_RETURN_IF_ERROR(SyncLocal(parent, /*must_be_readable=*/false));
  }
  return absl::OkStatus();
}

absl::Status TensorFlowFolder::ReplaceFile(const std::string& file, const std::string& text) const {
  tf::Env* const env = tf::Env::Default();
  bool can_rename = false;
  if (!env->HasAtomicMove(path_, &can_rename).ok()) can_rename = false;
  // A store without atomic moves writes an object at once when it is closed, so there the file is
  // written directly.
  if (!can_rename) {
    TF_RETURN_IF_ERROR(WriteFile(PathOf(file), text));
    return SyncLocal(path_);
  }
  // Two processes that replace the same file must not write to the same temporary file.
  const std::string aside =
      absl::StrCat(file, ".", absl::Hex(RandomNumber(), absl::kZeroPad16), ".aside");
  absl::Status status = WriteFile(PathOf(aside), text);
  // Readers see the old or the new file.
  if (status.ok()) status = env->RenameFile(PathOf(aside), PathOf(file));
  if (status.ok()) return SyncLocal(path_);
  Remove(aside);
  return status;
}

void TensorFlowFolder::Remove(const std::string& file) const {
  const absl::Status status = tf::Env::Default()->DeleteFile(PathOf(file));
  if (!status.ok() && !absl::IsNotFound(status)) {
    // The file takes disk space; no manifest names it, so no row depends on it.
    LOG(WARNING) << "'" << PathOf(file)
                 << "' is of no use any more and can't be removed: " << status.message();
  }
}

bool TensorFlowFolder::Link(const std::string& from, const std::string& file) const {
  const std::string to = PathOf(file);
  const char* const local = LocalPath(to);
  if (local == nullptr || link(from.c_str(), local) != 0) return false;
  // The linked file is another table's, which may not have flushed it.
  if (SyncLocal(to).ok()) return true;
  Remove(file);
  return false;
}

}  // namespace

std::unique_ptr<SaveFolder> NewSaveFolder(std::string path) {
  return std::make_unique<TensorFlowFolder>(std::move(path));
}

}  // namespace tf_embed
