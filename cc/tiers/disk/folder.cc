// SPDX-License-Identifier: Apache-2.0
#include "cc/tiers/disk/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "cc/tiers/disk/aligned_buffer.h"

namespace tf_embed {
namespace {

constexpr char kLockName[] = "LOCK";
constexpr char kContent[] = "A store of rows of tf_embed. The files beside this one are its own.\n";
constexpr size_t kContentBytes = sizeof(kContent) - 1;
constexpr char kKept[] = ".kept";          // suffix of a kept folder's name, before a number
constexpr uint64_t kProbe = ~uint64_t{0};  // a serial number that no row file has

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

// The names in a folder, except "." and "..". Returns 0 or an errno.
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

// Removes a number at the end, with the character before it. Other names are returned unchanged.
std::string WithoutNumber(const std::string& name, char before) {
  const size_t last = name.find_last_not_of("0123456789");
  const bool has = last != std::string::npos && last + 1 < name.size() && name[last] == before;
  return has ? name.substr(0, last) : name;
}

// The label of a folder "<label>-<shard>" or "<label>-<shard>.<n>". False for other names.
bool LabelOf(const std::string& name, std::string* label) {
  const std::string shard = WithoutNumber(name, '.');
  *label = WithoutNumber(shard, '-');
  return label->size() < shard.size();
}

// An open and locked LOCK file.
struct Lock {
  int descriptor = -1;
  bool ours = false;   // its content marks the folder as ours, left by a process
  bool empty = false;  // no content yet

  Lock() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (descriptor < 0) return;
    // A child of fork() may still have the descriptor open. Neither call can fail: the file is
    // open, and nothing is left to write.
    flock(descriptor, LOCK_UN);
    close(descriptor);
  }
};

enum class Taken : uint8_t {
  kYes,
  kInUse,  // another process or tier has the lock
  kGone,   // the folder or the file was removed or moved
};

// Locks a folder's LOCK file. Creates it if missing and `make` is set.
Status TakeLock(const std::string& path, bool make, Lock* lock, Taken* taken) {
  const std::string name = path + "/" + kLockName;
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT : 0);
  const int descriptor = open(name.c_str(), flags, S_IRUSR | S_IWUSR);
  if (descriptor < 0 && errno == ENOENT) {
    *taken = Taken::kGone;
    return Status();
  }
  if (descriptor < 0 && errno == ENOTDIR) {
    return Status::InvalidArgument("A tier on disk needs a folder '" + path +
                                   "', which is a file.");
  }
  if (descriptor < 0) return FileFailure("Can't open '" + name + "'", errno);
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    close(descriptor);  // nothing was written
    if (error != EWOULDBLOCK) return FileFailure("Can't lock '" + name + "'", error);
    *taken = Taken::kInUse;
    return Status();
  }
  lock->descriptor = descriptor;
  // The file may have been removed, or moved with its folder, after it was opened here. Then the
  // lock protects nothing.
  struct stat opened, there;
  if (fstat(descriptor, &opened) != 0 || stat(name.c_str(), &there) != 0 ||
      opened.st_ino != there.st_ino || opened.st_dev != there.st_dev) {
    *taken = Taken::kGone;
    return Status();
  }
  char content[kContentBytes];
  lock->ours =
      pread(descriptor, content, kContentBytes, 0) == static_cast<ssize_t>(kContentBytes) &&
      std::memcmp(content, kContent, kContentBytes) == 0;
  lock->empty = opened.st_size == 0;
  *taken = Taken::kYes;
  return Status();
}

// The content of a locked folder.
struct Content {
  std::vector<std::string> rows;  // names of files of rows
  bool has_others = false;        // other files, except LOCK

  bool has_rows() const { return !rows.empty(); }
  // Whether the folder is ours. A process may have died before it marked the LOCK file.
  bool IsOf(const Lock& lock) const {
    return lock.ours || (lock.empty && !has_rows() && !has_others);
  }
};

// Returns 0 or an errno.
int Look(const std::string& path, Content* content) {
  std::vector<std::string> names;
  if (const int error = List(path, &names)) return error;
  for (const std::string& name : names) {
    if (IsOurs(name.c_str())) {
      content->rows.push_back(name);
    } else if (name != kLockName) {
      content->has_others = true;
    }
  }
  return 0;
}

// Removes the row files.
Status RemoveRows(const std::string& path, const Content& content, FileSystem* files) {
  for (const std::string& name : content.rows) {
    const std::string file = path + "/" + name;
    if (const int error = files->Unlink(file)) {
      return FileFailure("Can't remove '" + file + "', which a process left behind", error);
    }
  }
  return Status();
}

// Moves the folder of a dead process aside.
Status MoveAside(const std::string& path) {
  for (uint64_t n = 1;; ++n) {
    const std::string kept = path + kKept + "-" + std::to_string(n);
    // rename replaces an empty folder that was created here, but no other folder.
    if (mkdir(kept.c_str(), S_IRWXU) != 0) {
      if (errno == EEXIST) continue;
      return FileFailure("Can't make the folder '" + kept + "'", errno);
    }
    if (rename(path.c_str(), kept.c_str()) == 0) return Status();
    const int error = errno;
    rmdir(kept.c_str());  // the error is in the status below; an empty folder may stay
    return FileFailure("Can't move the folder '" + path + "' to '" + kept + "'", error);
  }
}

// Flushes a file, or the entries of a folder. Returns 0 or an errno.
int Sync(int descriptor) {
  // EINVAL: a special file, which can't be flushed.
  return fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
}
int SyncNames(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = Sync(descriptor);
  close(descriptor);  // fsync has reported all write errors
  return error;
}

// Marks the folder's LOCK as ours, after clearing leftovers of another process.
Status Prepare(const std::string& path, bool keep_leftovers, FileSystem* files, const Lock& lock,
               bool* moved) {
  Content content;
  if (const int error = Look(path, &content)) {
    return FileFailure("Can't list the folder '" + path + "'", error);
  }
  if (!content.IsOf(lock)) {
    if (lock.empty) unlink((path + "/" + kLockName).c_str());  // created by TakeLock
    return Status::FailedPrecondition("The folder '" + path +
                                      "' has files that are not of a tier on disk. Name another "
                                      "folder, or remove it.");
  }
  if (content.has_rows() && keep_leftovers) {
    *moved = true;
    return MoveAside(path);
  }
  TF_EMBED_RETURN_IF_ERROR(RemoveRows(path, content, files));
  if (!lock.ours &&
      pwrite(lock.descriptor, kContent, kContentBytes, 0) != static_cast<ssize_t>(kContentBytes)) {
    const Status status = FileFailure("Can't write to '" + path + "/" + kLockName + "'", errno);
    // The first error is returned. A folder that stays is empty except for its lock, and the next
    // tier takes it.
    unlink((path + "/" + kLockName).c_str());
    rmdir(path.c_str());
    return status;
  }
  if (lock.ours) return Status();
  // A machine crash must not leave row files without the mark that they are ours.
  int error = Sync(lock.descriptor);
  if (error == 0) error = SyncNames(path);
  return error == 0 ? Status() : FileFailure("Can't bring '" + path + "' to the disk", error);
}

// Renames a folder to another name of the same shard, which no tier opens. Removal takes long, and
// a tier may want the folder meanwhile. If this process dies, other processes find the new name.
// Returns 0 or an errno.
int Rename(std::string* path) {
  constexpr uint64_t kFirst = 1000000;
  const size_t slash = path->rfind('/') + 1;
  const std::string shard = path->substr(0, slash) + WithoutNumber(path->substr(slash), '.');
  for (uint64_t n = kFirst;; ++n) {
    std::string renamed = shard + "." + std::to_string(n);
    if (renamed == *path) return 0;
    if (rename(path->c_str(), renamed.c_str()) == 0) {
      *path = std::move(renamed);
      return 0;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) return errno;
  }
}

// Removes a folder, or moves it aside, if it is ours and not in use. On failure it stays, and a
// tier that opens a folder of this name reports the reason.
void RemoveLeftover(std::string path, bool keep_leftovers, FileSystem* files) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) return;
  Lock lock;
  Taken taken = Taken::kGone;
  if (!TakeLock(path, /*make=*/false, &lock, &taken).ok() || taken != Taken::kYes) return;
  Content content;
  if (Look(path, &content) != 0 || !content.IsOf(lock)) return;
  if (content.has_rows() && keep_leftovers) {
    (void)MoveAside(path);  // if it fails, the folder stays
    return;
  }
  // A folder with other files stays, and stays ours.
  if (!content.has_others && Rename(&path) != 0) return;
  if (!RemoveRows(path, content, files).ok() || content.has_others) return;
  if (SyncNames(path) != 0) return;
  // If they fail, the folder stays a leftover, which the next tier removes.
  unlink((path + "/" + kLockName).c_str());
  rmdir(path.c_str());
}

// Removes leftovers of dead processes for other shards of the table, or for copies of it.
void RemoveLeftoversBeside(const std::string& parent, const std::string& name, bool keep_leftovers,
                           FileSystem* files) {
  std::string label, other_label;
  if (!LabelOf(name, &label)) return;
  // Names of kept folders look like shards of a table with this label.
  const size_t kept_bytes = sizeof(kKept) - 1;
  if (label.size() >= kept_bytes && label.substr(label.size() - kept_bytes) == kKept) return;
  std::vector<std::string> names;
  if (List(parent, &names) != 0) return;
  for (const std::string& other : names) {
    if (other == name || !LabelOf(other, &other_label) || other_label != label) continue;
    RemoveLeftover(parent + "/" + other, keep_leftovers, files);
  }
}

}  // namespace

Status Folder::Open(const std::string& parent, const std::string& name, bool keep_leftovers,
                    FileSystem* files, std::unique_ptr<Folder>* folder) {
  // Another process may remove the folder before it is locked here, if it owned it or is removing a
  // leftover. The remover of a leftover holds the lock briefly.
  constexpr int kMostGone = 100;
  constexpr int kMostWaits = 20;
  constexpr auto kWait = std::chrono::milliseconds(10);
  const std::string path = parent + "/" + name;
  for (int gone = 0, waits = 0;;) {
    if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      return FileFailure("Can't make the folder '" + path + "'", errno);
    }
    Lock lock;
    Taken taken = Taken::kGone;
    TF_EMBED_RETURN_IF_ERROR(TakeLock(path, /*make=*/true, &lock, &taken));
    if (taken == Taken::kInUse) {
      if (++waits > kMostWaits) {
        return Status::FailedPrecondition(
            "The folder '" + path +
            "' is in use by another tier on disk. Give each table and each process a folder of "
            "its own.");
      }
      std::this_thread::sleep_for(kWait);
      continue;
    }
    if (taken == Taken::kGone) {
      if (++gone > kMostGone) {
        return FileFailure("Can't open '" + path + "/" + kLockName + "'", ENOENT);
      }
      continue;
    }
    bool moved = false;
    TF_EMBED_RETURN_IF_ERROR(Prepare(path, keep_leftovers, files, lock, &moved));
    if (moved) continue;
    folder->reset(new (std::nothrow) Folder(path, files, lock.descriptor, getpid()));
    if (*folder == nullptr) {
      return Status::ResourceExhausted([] { return "No memory for a tier on disk."; });
    }
    lock.descriptor = -1;
    RemoveLeftoversBeside(parent, name, keep_leftovers, files);
    return Status();
  }
}

Folder::~Folder() {
  if (Owned()) {
    (void)SyncNames(path_);  // row files go first, even in a machine crash
    // rmdir fails if there are files that are not ours. A folder that stays is a leftover, which
    // the next tier removes.
    unlink((path_ + "/" + kLockName).c_str());
    rmdir(path_.c_str());
    flock(lock_, LOCK_UN);  // a child of fork() may still have the descriptor open
  }
  close(lock_);  // its only write was synchronized
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
