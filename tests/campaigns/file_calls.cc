// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD that stands between a program and its file system: it logs the calls
// that change a folder, and makes some of them fail or slow. tests/campaigns/file_calls.py builds
// it, drives it and reads the log. Until it is told a folder it does nothing.
//
// Calls into the C library are seen, but not the calls that it makes itself. Streams of fopen are
// therefore rebuilt over these calls by fopencookie. Writes through a memory map are not seen.
//
// A record of the log is a Header, one path or two, and bytes. It is appended when the call has
// returned, by a single write, so a log that ends anywhere is the log of a process that was killed.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace {

// In the order of KINDS in file_calls.py.
enum Kind : uint32_t { kOpen, kWrite, kTruncate, kSync, kRename, kLink, kUnlink, kMkdir, kMark };
constexpr int kKinds = 9;

struct Header {
  uint32_t kind;
  uint32_t path_bytes;
  uint32_t other_bytes;
  uint32_t flags;   // of kOpen: 1 if it made the file or may have, 2 if it cut it to no bytes
  uint64_t handle;  // of an open file
  uint64_t offset;  // of bytes; the size of kTruncate
  uint64_t size;    // of bytes
};

// One kind of calls that is to fail.
struct Fault {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> passes{INT64_MAX};  // calls before the one that fails
  std::atomic<int> error{0};
  std::atomic<bool> for_good{false};
};

constexpr int kMostFiles = 1 << 16;

std::mutex& LogMutex() {
  static std::mutex* const mutex = new std::mutex;  // never destroyed: used at exit
  return *mutex;
}
std::string* folder = nullptr;  // null: nothing is watched
int log_file = -1;
std::atomic<uint64_t> next_handle{1};
std::atomic<uint64_t> handles[kMostFiles];  // of descriptors; 0: not watched
Fault faults[kKinds];
std::atomic<bool> short_writes{false};
std::atomic<int> microseconds{0};  // that each call takes longer

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) static const auto real = Real<decltype(::name)>(#name)

std::string Absolute(int at, const char* path) {
  std::error_code none;
  std::filesystem::path base;
  if (path[0] != '/') {
    base = at == AT_FDCWD
               ? std::filesystem::current_path(none)
               : std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(at), none);
  }
  std::string whole = (base / path).lexically_normal().string();
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

// The path below the folder; whether it is there at all.
bool IsWatched(int at, const char* path, std::string* below) {
  if (folder == nullptr || path == nullptr) return false;
  const std::string whole = Absolute(at, path);
  if (whole == *folder) {
    below->clear();
    return true;
  }
  if (whole.compare(0, folder->size(), *folder) != 0 || whole[folder->size()] != '/') return false;
  *below = whole.substr(folder->size() + 1);
  return true;
}

uint64_t HandleOf(int file) {
  return folder != nullptr && file >= 0 && file < kMostFiles ? handles[file].load() : 0;
}

void Log(Kind kind, const std::string& path, const std::string& other, uint32_t flags,
         uint64_t handle, uint64_t offset, const void* bytes, uint64_t size) {
  if (log_file < 0) return;
  const int error = errno;
  Header header{kind,
                static_cast<uint32_t>(path.size()),
                static_cast<uint32_t>(other.size()),
                flags,
                handle,
                offset,
                size};
  std::string record(reinterpret_cast<const char*>(&header), sizeof(header));
  record += path;
  record += other;
  record.append(static_cast<const char*>(bytes), size);
  REAL(write);
  {
    std::lock_guard<std::mutex> lock(LogMutex());
    for (size_t done = 0; done < record.size();) {
      const ssize_t some = real(log_file, record.data() + done, record.size() - done);
      if (some <= 0) break;
      done += static_cast<size_t>(some);
    }
  }
  errno = error;
}

void LogName(Kind kind, const std::string& path, const std::string& other = "") {
  Log(kind, path, other, 0, 0, 0, "", 0);
}

// Whether a call of that kind is to fail; sets errno.
bool Fails(Kind kind) {
  if (microseconds > 0) usleep(static_cast<useconds_t>(microseconds));
  Fault& fault = faults[kind];
  ++fault.calls;
  const int64_t left = fault.passes.fetch_sub(1);
  if (left > 0 || (left < 0 && !fault.for_good)) return false;
  errno = fault.error;
  return true;
}

uint64_t Opened(int file, const std::string& path, int flags) {
  const uint64_t handle = static_cast<uint64_t>(getpid()) << 32 | next_handle++;
  if (file < kMostFiles) handles[file] = handle;
  const uint32_t what = ((flags & O_CREAT) != 0 ? 1u : 0u) | ((flags & O_TRUNC) != 0 ? 2u : 0u);
  Log(kOpen, path, "", what, handle, 0, "", 0);
  return handle;
}

// Logs bytes that are in a file already, in whatever way they came there.
void LogWritten(int file, uint64_t handle, off_t offset, size_t size) {
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  REAL(open);
  const int reads = real(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (reads < 0) return;
  std::vector<char> bytes(size);
  const ssize_t some = pread(reads, bytes.data(), size, offset);
  if (some > 0) Log(kWrite, "", "", 0, handle, static_cast<uint64_t>(offset), bytes.data(), some);
  Real<decltype(::close)>("close")(reads);
}

size_t Shortened(size_t size) {
  if (!short_writes || size < 2) return size;
  return size > 8192 ? size / 2 / 4096 * 4096 : size > 4096 ? 4096 : (size + 1) / 2;
}

ssize_t Written(int file, uint64_t handle, const void* bytes, ssize_t done) {
  if (done > 0) {
    const off_t end = lseek(file, 0, SEEK_CUR);
    Log(kWrite, "", "", 0, handle, static_cast<uint64_t>(end - done), bytes,
        static_cast<uint64_t>(done));
  }
  return done;
}

int OpenAt(int at, const char* path, int flags, mode_t mode) {
  REAL(openat);
  std::string below;
  if (!IsWatched(at, path, &below)) return real(at, path, flags, mode);
  const bool changes = (flags & O_ACCMODE) != O_RDONLY;
  if (changes && Fails(kOpen)) return -1;
  const int file = real(at, path, flags, mode);
  if (file >= 0) Opened(file, below, flags);
  return file;
}

ssize_t StreamRead(void* cookie, char* bytes, size_t size) {
  return read(static_cast<int>(reinterpret_cast<intptr_t>(cookie)), bytes, size);
}
ssize_t StreamWrite(void* cookie, const char* bytes, size_t size) {
  size_t done = 0;
  while (done < size) {  // as streams of files do
    const int file = static_cast<int>(reinterpret_cast<intptr_t>(cookie));
    const ssize_t some = write(file, bytes + done, size - done);
    if (some <= 0) break;
    done += static_cast<size_t>(some);
  }
  return static_cast<ssize_t>(done);  // fewer are an error
}
int StreamSeek(void* cookie, off64_t* offset, int whence) {
  const off64_t at = lseek64(static_cast<int>(reinterpret_cast<intptr_t>(cookie)), *offset, whence);
  if (at < 0) return -1;
  *offset = at;
  return 0;
}
int StreamClose(void* cookie) {
  return close(static_cast<int>(reinterpret_cast<intptr_t>(cookie)));
}

// Descriptors of streams that were made here. A few are open at once.
std::mutex& StreamMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}
std::vector<std::pair<FILE*, int>>& Streams() {
  static auto* const streams = new std::vector<std::pair<FILE*, int>>;
  return *streams;
}

FILE* OpenStream(const char* path, const char* mode) {
  int flags = mode[0] == 'r' ? 0 : mode[0] == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND;
  const bool both = std::strchr(mode, '+') != nullptr;
  flags |= both ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
  if (std::strchr(mode, 'x') != nullptr) flags |= O_EXCL;
  if (std::strchr(mode, 'e') != nullptr) flags |= O_CLOEXEC;
  const int file = OpenAt(AT_FDCWD, path, flags, 0666);
  if (file < 0) return nullptr;
  FILE* const stream = fopencookie(reinterpret_cast<void*>(static_cast<intptr_t>(file)), mode,
                                   {StreamRead, StreamWrite, StreamSeek, StreamClose});
  std::lock_guard<std::mutex> lock(StreamMutex());
  Streams().emplace_back(stream, file);
  return stream;
}

}  // namespace

extern "C" {

// Watches `path`, an absolute one without links, in this process and those that it forks from now
// on. `log`: the path of the log; empty for no log.
void file_calls_begin(const char* path, const char* log) {
  for (auto& handle : handles) handle = 0;
  for (Fault& fault : faults) {
    fault.calls = 0;
    fault.passes = INT64_MAX;
  }
  if (log[0] != '\0') {
    REAL(open);
    log_file = real(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  }
  folder = new std::string(path);
}

// Puts a record of the program's own into the log.
void file_calls_mark(const char* bytes, size_t size) { Log(kMark, "", "", 0, 0, 0, bytes, size); }

// Lets `passes` calls of a kind pass and fails the next one, or all from there on.
void file_calls_fail(int kind, int64_t passes, int error, int for_good) {
  faults[kind].error = error;
  faults[kind].for_good = for_good != 0;
  faults[kind].passes = passes;
}
int64_t file_calls_count(int kind) { return faults[kind].calls; }
void file_calls_shorten(int on) { short_writes = on != 0; }
void file_calls_slow(int by) { microseconds = by; }

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return OpenAt(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return OpenAt(AT_FDCWD, path, flags, mode);
}
int openat(int at, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return OpenAt(at, path, flags, mode);
}
int openat64(int at, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return OpenAt(at, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  return OpenAt(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int close(int file) {
  REAL(close);
  if (file >= 0 && file < kMostFiles) handles[file] = 0;
  return real(file);
}

FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  std::string below;
  const bool reads = mode[0] == 'r' && std::strchr(mode, '+') == nullptr;
  return reads || !IsWatched(AT_FDCWD, path, &below) ? real(path, mode) : OpenStream(path, mode);
}
FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }
int fclose(FILE* stream) {
  REAL(fclose);
  {
    std::lock_guard<std::mutex> lock(StreamMutex());
    auto& streams = Streams();
    for (size_t i = streams.size(); i-- > 0;) {
      if (streams[i].first == stream) streams.erase(streams.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return real(stream);
}
int fileno(FILE* stream) noexcept {
  REAL(fileno);
  std::lock_guard<std::mutex> lock(StreamMutex());
  for (const auto& [one, file] : Streams()) {
    if (one == stream) return file;
  }
  return real(stream);
}

ssize_t write(int file, const void* bytes, size_t size) {
  REAL(write);
  const uint64_t handle = HandleOf(file);
  if (handle == 0) return real(file, bytes, size);
  if (Fails(kWrite)) return -1;
  return Written(file, handle, bytes, real(file, bytes, Shortened(size)));
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) {
  REAL(pwrite);
  const uint64_t handle = HandleOf(file);
  if (handle == 0) return real(file, bytes, size, offset);
  if (Fails(kWrite)) return -1;
  const ssize_t done = real(file, bytes, Shortened(size), offset);
  if (done > 0) Log(kWrite, "", "", 0, handle, static_cast<uint64_t>(offset), bytes, done);
  return done;
}
ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t offset) {
  return pwrite(file, bytes, size, offset);
}
ssize_t writev(int file, const iovec* parts, int count) {
  REAL(writev);
  const uint64_t handle = HandleOf(file);
  if (handle == 0) return real(file, parts, count);
  std::string bytes;
  for (int i = 0; i < count; ++i)
    bytes.append(static_cast<char*>(parts[i].iov_base), parts[i].iov_len);
  return write(file, bytes.data(), bytes.size());
}
ssize_t sendfile(int to, int from, off_t* offset, size_t size) noexcept {
  REAL(sendfile);
  const uint64_t handle = HandleOf(to);
  if (handle == 0) return real(to, from, offset, size);
  if (Fails(kWrite)) return -1;
  const ssize_t done = real(to, from, offset, size);
  if (done > 0) LogWritten(to, handle, lseek(to, 0, SEEK_CUR) - done, static_cast<size_t>(done));
  return done;
}
ssize_t sendfile64(int to, int from, off64_t* offset, size_t size) noexcept {
  return sendfile(to, from, offset, size);
}
ssize_t copy_file_range(int from, off64_t* from_offset, int to, off64_t* to_offset, size_t size,
                        unsigned flags) {
  REAL(copy_file_range);
  const uint64_t handle = HandleOf(to);
  if (handle == 0) return real(from, from_offset, to, to_offset, size, flags);
  if (Fails(kWrite)) return -1;
  const ssize_t done = real(from, from_offset, to, to_offset, size, flags);
  const off64_t end = to_offset != nullptr ? *to_offset : lseek(to, 0, SEEK_CUR);
  if (done > 0) LogWritten(to, handle, end - done, static_cast<size_t>(done));
  return done;
}
int ftruncate(int file, off_t size) noexcept {
  REAL(ftruncate);
  const uint64_t handle = HandleOf(file);
  if (handle != 0 && Fails(kTruncate)) return -1;
  const int result = real(file, size);
  if (handle != 0 && result == 0) {
    Log(kTruncate, "", "", 0, handle, static_cast<uint64_t>(size), "", 0);
  }
  return result;
}
int ftruncate64(int file, off64_t size) noexcept { return ftruncate(file, size); }

int fsync(int file) {
  REAL(fsync);
  const uint64_t handle = HandleOf(file);
  if (handle != 0 && Fails(kSync)) return -1;
  const int result = real(file);
  if (handle != 0 && result == 0) Log(kSync, "", "", 0, handle, 0, "", 0);
  return result;
}
int fdatasync(int file) {
  REAL(fdatasync);
  const uint64_t handle = HandleOf(file);
  if (handle != 0 && Fails(kSync)) return -1;
  const int result = real(file);
  if (handle != 0 && result == 0) Log(kSync, "", "", 0, handle, 0, "", 0);
  return result;
}

int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  REAL(renameat);
  std::string below, other;
  const bool watched = IsWatched(from_at, from, &below) && IsWatched(to_at, to, &other);
  if (watched && Fails(kRename)) return -1;
  const int result = real(from_at, from, to_at, to);
  if (watched && result == 0) LogName(kRename, below, other);
  return result;
}
int rename(const char* from, const char* to) noexcept {
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
int linkat(int from_at, const char* from, int to_at, const char* to, int flags) noexcept {
  REAL(linkat);
  std::string below, other;
  const bool watched = IsWatched(from_at, from, &below) && IsWatched(to_at, to, &other);
  if (watched && Fails(kLink)) return -1;
  const int result = real(from_at, from, to_at, to, flags);
  if (watched && result == 0) LogName(kLink, below, other);
  return result;
}
int link(const char* from, const char* to) noexcept {
  return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int unlinkat(int at, const char* path, int flags) noexcept {
  REAL(unlinkat);
  std::string below;
  const bool watched = IsWatched(at, path, &below);
  if (watched && Fails(kUnlink)) return -1;
  const int result = real(at, path, flags);
  if (watched && result == 0) LogName(kUnlink, below);
  return result;
}
int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  struct stat found;
  if (lstat(path, &found) != 0) return -1;
  return S_ISDIR(found.st_mode) ? rmdir(path) : unlink(path);
}
int mkdirat(int at, const char* path, mode_t mode) noexcept {
  REAL(mkdirat);
  std::string below;
  const bool watched = IsWatched(at, path, &below);
  if (watched && Fails(kMkdir)) return -1;
  const int result = real(at, path, mode);
  if (watched && result == 0) LogName(kMkdir, below);
  return result;
}
int mkdir(const char* path, mode_t mode) noexcept { return mkdirat(AT_FDCWD, path, mode); }

}  // extern "C"
