// SPDX-License-Identifier: Apache-2.0
#include "cc/disk/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "cc/disk/aligned_buffer.h"

namespace tf_embed {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr char kContent[] = "A store of rows of tf_embed. The files beside this one are its own.\n";
constexpr size_t kContentBytes = sizeof(kContent) - 1;
constexpr uint64_t kProbe = ~uint64_t{0};  // a number that no file of rows has

std::string NameOf(uint64_t serial) {
  char name[32];
  std::snprintf(name, sizeof(name), "rows-%016" PRIx64 ".seg", serial);
  return name;
}

bool IsOurs(const char* name) {
  constexpr size_t kPrefix = sizeof("rows-") - 1;
  constexpr size_t kDigits = 16;
  return std::strlen(name) == kPrefix + kDigits + 4 && std::strncmp(name, "rows-", kPrefix) == 0 &&
         std::strspn(name + kPrefix, "0123456789abcdef") == kDigits &&
         std::strcmp(name + kPrefix + kDigits, ".seg") == 0;
}

// The names in a folder, except "." and "..". 0 or errno.
int List(const std::string& path, std::vector<std::string>* names) {
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return errno;
  errno = 0;
  while (const dirent* const entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names->push_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(folder);
  return error;
}

// An open LOCK file, locked.
struct Lock {
  int descriptor = -1;
  bool ours = false;  // it says that the folder is ours: a process left it behind

  ~Lock() {
    if (descriptor >= 0) close(descriptor);
  }
};

// Locks the LOCK file of a folder, which is made if it is not there.
Status TakeLock(const std::string& path, Lock* lock) {
  const std::string name = path + "/" + kLockName;
  for (;;) {
    const int descriptor =
        open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (descriptor < 0) return FileFailure("Can't open '" + name + "'", errno);
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(descriptor);
      if (error == EWOULDBLOCK) {
        return Status::FailedPrecondition(
            "The folder '" + path +
            "' is in use by another store of rows. Give each table and each process a folder of "
            "its own.");
      }
      return FileFailure("Can't lock '" + name + "'", error);
    }
    // Its owner may have removed the file after it was opened here: then it locks nothing.
    struct stat opened, there;
    if (fstat(descriptor, &opened) != 0 || stat(name.c_str(), &there) != 0 ||
        opened.st_ino != there.st_ino || opened.st_dev != there.st_dev) {
      close(descriptor);
      continue;
    }
    char content[kContentBytes];
    lock->descriptor = descriptor;
    lock->ours =
        pread(descriptor, content, kContentBytes, 0) == static_cast<ssize_t>(kContentBytes) &&
        std::memcmp(content, kContent, kContentBytes) == 0;
    return Status();
  }
}

// Moves the folder of a dead process aside.
Status MoveAside(const std::string& path) {
  for (uint64_t n = 1;; ++n) {
    const std::string kept = path + ".kept-" + std::to_string(n);
    // A folder that is made here and is empty is replaced by rename, another one is not.
    if (mkdir(kept.c_str(), S_IRWXU) != 0) {
      if (errno == EEXIST) continue;
      return FileFailure("Can't make the folder '" + kept + "'", errno);
    }
    if (rename(path.c_str(), kept.c_str()) == 0) return Status();
    const int error = errno;
    rmdir(kept.c_str());
    return FileFailure("Can't move the folder '" + path + "' to '" + kept + "'", error);
  }
}

// Makes the folder's LOCK ours, once what another process left is away.
Status Prepare(const std::string& path, bool keep_leftovers, FileSystem* files, Lock* lock,
               bool* moved) {
  std::vector<std::string> names;
  if (const int error = List(path, &names)) {
    return FileFailure("Can't list the folder '" + path + "'", error);
  }
  if (!lock->ours) {
    struct stat found;
    const bool empty_lock = fstat(lock->descriptor, &found) == 0 && found.st_size == 0;
    // A process may have ended before it wrote who it was.
    if (names.size() == 1 && empty_lock) return Status();
    if (empty_lock) unlink((path + "/" + kLockName).c_str());
    return Status::FailedPrecondition("The folder '" + path +
                                      "' has files that are not of a store of rows. Name another "
                                      "folder, or remove it.");
  }
  bool has_rows = false;
  for (const std::string& name : names) has_rows = has_rows || IsOurs(name.c_str());
  if (has_rows && keep_leftovers) {
    *moved = true;
    return MoveAside(path);
  }
  for (const std::string& name : names) {
    if (!IsOurs(name.c_str())) continue;
    const std::string file = path + "/" + name;
    if (const int error = files->Unlink(file)) {
      return FileFailure("Can't remove '" + file + "', which a process left behind", error);
    }
  }
  return Status();
}

}  // namespace

Status Folder::Open(const std::string& parent, const std::string& name, bool keep_leftovers,
                    FileSystem* files, std::unique_ptr<Folder>* folder) {
  const std::string path = parent + "/" + name;
  for (;;) {
    if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      return FileFailure("Can't make the folder '" + path + "'", errno);
    }
    Lock lock;
    TF_EMBED_RETURN_IF_ERROR(TakeLock(path, &lock));
    bool moved = false;
    TF_EMBED_RETURN_IF_ERROR(Prepare(path, keep_leftovers, files, &lock, &moved));
    if (moved) continue;
    if (!lock.ours && pwrite(lock.descriptor, kContent, kContentBytes, 0) !=
                          static_cast<ssize_t>(kContentBytes)) {
      const Status status = FileFailure("Can't write to '" + path + "/" + kLockName + "'", errno);
      unlink((path + "/" + kLockName).c_str());
      rmdir(path.c_str());
      return status;
    }
    folder->reset(new (std::nothrow) Folder(path, files, lock.descriptor, getpid()));
    if (*folder == nullptr) {
      return Status::ResourceExhausted([] { return "No memory for a store of rows."; });
    }
    lock.descriptor = -1;
    return Status();
  }
}

Folder::~Folder() {
  if (Owned()) {
    unlink((path_ + "/" + kLockName).c_str());
    rmdir(path_.c_str());   // fails if there are files that are not ours
    flock(lock_, LOCK_UN);  // a child of fork() may have the descriptor open still
  }
  close(lock_);
}

bool Folder::Owned() const { return getpid() == owner_; }

std::string Folder::FileOf(uint64_t serial) const { return path_ + "/" + NameOf(serial); }

int Folder::Create(uint64_t serial, std::unique_ptr<File>* file) {
  return files_->Create(FileOf(serial), direct_, file);
}

void Folder::Remove(uint64_t serial) {
  if (Owned()) files_->Unlink(FileOf(serial));
}

Status Folder::Probe(bool direct) {
  constexpr size_t kBytes = AlignedBuffer::kPage;
  alignas(kBytes) static const char kZeros[kBytes] = {};
  for (const bool try_direct : {true, false}) {
    if (try_direct && !direct) continue;
    direct_ = try_direct;
    std::unique_ptr<File> file;
    int error = Create(kProbe, &file);
    if (error == 0) error = file->WriteAll(kZeros, kBytes, 0);
    file.reset();
    if (error != EEXIST) Remove(kProbe);
    if (error == 0) return Status();
    if (!try_direct || (error != EINVAL && error != EOPNOTSUPP)) {
      return FileFailure("Can't write to the folder '" + path_ + "'", error);
    }
  }
  return Status();
}

}  // namespace tf_embed
