// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace tf_embed {
namespace {

constexpr ssize_t kPage = 4096;

class HostFile final : public File {
 public:
  explicit HostFile(int descriptor) : descriptor_(descriptor) {}
  // The file is scratch space, which a crash may lose, so a write error reported by close harms no
  // row.
  ~HostFile() override { close(descriptor_); }

  ssize_t Pread(void* bytes, size_t size, uint64_t offset) const override {
    const ssize_t done = pread(descriptor_, bytes, size, static_cast<off_t>(offset));
    return done < 0 ? -errno : done;
  }
  ssize_t Pwrite(const void* bytes, size_t size, uint64_t offset) override {
    const ssize_t done = pwrite(descriptor_, bytes, size, static_cast<off_t>(offset));
    return done < 0 ? -errno : done;
  }
  int descriptor() const override { return descriptor_; }

 private:
  const int descriptor_;
};

class HostFiles final : public FileSystem {
 public:
  int Create(const std::string& path, bool direct, std::unique_ptr<File>* file) override {
    const int descriptor =
        open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | (direct ? O_DIRECT : 0), 0600);
    if (descriptor < 0) return errno;
    file->reset(new (std::nothrow) HostFile(descriptor));
    if (*file != nullptr) return 0;
    // The caller gets ENOMEM. If unlink fails, the empty file is removed with its folder.
    close(descriptor);
    unlink(path.c_str());
    return ENOMEM;
  }
  int Unlink(const std::string& path) override { return unlink(path.c_str()) == 0 ? 0 : errno; }
};

}  // namespace

int File::ReadAll(void* bytes, size_t size, uint64_t offset) const {
  for (char* at = static_cast<char*>(bytes); size > 0;) {
    const ssize_t done = Pread(at, size, offset);
    if (done == -EINTR) continue;
    if (done < 0) return static_cast<int>(-done);
    if (done == 0) return EIO;
    at += done;
    size -= static_cast<size_t>(done);
    offset += static_cast<uint64_t>(done);
  }
  return 0;
}

int File::WriteAll(const void* bytes, size_t size, uint64_t offset) {
  for (const char* at = static_cast<const char*>(bytes); size > 0;) {
    ssize_t done = Pwrite(at, size, offset);
    if (done == -EINTR) continue;
    if (done < 0) return static_cast<int>(-done);
    if (done == 0) return ENOSPC;
    // Direct I/O can only continue at a page boundary.
    if (done > kPage && static_cast<size_t>(done) < size) done -= done % kPage;
    at += done;
    size -= static_cast<size_t>(done);
    offset += static_cast<uint64_t>(done);
  }
  return 0;
}

FileSystem* HostFileSystem() {
  static HostFiles* const files = new HostFiles;  // never destroyed: used at exit
  return files;
}

Status FileFailure(const std::string& what, int error) {
  const auto describe = [&] { return what + ": " + std::generic_category().message(error) + "."; };
  if (error == ENOSPC || error == EDQUOT || error == ENOMEM || error == EFBIG) {
    return Status::ResourceExhausted(describe);
  }
  return Status::Unavailable(describe());
}

}  // namespace tf_embed
