// SPDX-License-Identifier: Apache-2.0
// Block reads by io_uring. A read takes a ring from a pool, keeps it full of requests, and returns
// it. If a ring fails, it is abandoned and its reads continue by pread.
#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>

#include "cc/core/base/thread_annotations.h"
#include "cc/tiers/disk/aligned_buffer.h"
#include "cc/tiers/disk/block_reader.h"
#include "cc/tiers/disk/io_uring.h"

namespace tf_embed {
namespace {

constexpr uint32_t kMostEntries = 256;
constexpr uint32_t kLeastEntries = 8;
// Bytes that one ring reads at a time.
constexpr size_t kMostBytes = size_t{8} << 20;
constexpr size_t kKeptRings = 4;

class IoUringReader final : public BlockReader {
 public:
  explicit IoUringReader(Allocator* allocator) : allocator_(allocator) {}

  Status Read(const BlockRead* reads, size_t count, size_t most_bytes, Visitor* visitor) override {
    std::unique_ptr<Ring> ring = TakeRing();
    if (ring == nullptr) {
      return Status::ResourceExhausted([] { return "No memory to read rows."; });
    }
    uint32_t depth = kMostEntries;
    while (depth > kLeastEntries && depth * most_bytes > kMostBytes) depth /= 2;
    if (ring->opened) depth = std::min(depth, ring->uring.entries());
    depth = static_cast<uint32_t>(std::min<size_t>(depth, count));
    Status status = ring->buffer.Resize(depth * most_bytes);
    bool refused = false;
    if (status.ok())
      status = ReadBy(ring.get(), reads, count, depth, most_bytes, visitor, &refused);
    if (refused) {
      (void)ring.release();  // the kernel may still write to it
    } else {
      GiveBack(std::move(ring));
    }
    return status;
  }

  // Whether rings can be created and can read.
  bool Works() {
    std::unique_ptr<Ring> ring = TakeRing();
    const bool works = ring != nullptr && ring->opened;
    if (works) GiveBack(std::move(ring));
    return works;
  }

 private:
  struct Ring {
    explicit Ring(Allocator* allocator) : buffer(allocator) {}
    IoUring uring;
    bool opened = false;
    AlignedBuffer buffer;
    // The read in each part of the buffer, and the free parts.
    uint32_t read_of[kMostEntries];
    uint32_t free_parts[kMostEntries];
    std::unique_ptr<Ring> next;
  };

  std::unique_ptr<Ring> TakeRing() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (rings_ != nullptr) {
        std::unique_ptr<Ring> ring = std::move(rings_);
        rings_ = std::move(ring->next);
        --num_rings_;
        return ring;
      }
    }
    std::unique_ptr<Ring> ring(new (std::nothrow) Ring(allocator_));
    if (ring != nullptr) ring->opened = ring->uring.Open(kMostEntries) == 0;
    return ring;
  }

  void GiveBack(std::unique_ptr<Ring> ring) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (num_rings_ == kKeptRings || !ring->opened) return;
    ring->next = std::move(rings_);
    rings_ = std::move(ring);
    ++num_rings_;
  }

  // Handles a completed request. Repeats a short read, and a request that this kernel does not
  // support.
  static void Finish(const BlockRead& read, char* bytes, ssize_t result, Visitor* visitor,
                     size_t i) {
    result = read.file->Completed(result, bytes, read.offset);
    int error = 0;
    if (result == -EINTR || result == -EAGAIN || result == -EINVAL || result == -EOPNOTSUPP) {
      error = read.file->ReadAll(bytes, read.bytes, read.offset);
    } else if (result < 0) {
      error = static_cast<int>(-result);
    } else if (static_cast<size_t>(result) < read.bytes) {
      error = read.file->ReadAll(bytes, read.bytes, read.offset);
    }
    visitor->Visit(i, bytes, error);
  }

  static void ReadOne(const BlockRead& read, char* bytes, Visitor* visitor, size_t i) {
    visitor->Visit(i, bytes, read.file->ReadAll(bytes, read.bytes, read.offset));
  }

  // Sets `refused` if the kernel rejects the ring. Reads in flight may then still write to its
  // buffer, so ring and buffer are never reused or freed.
  Status ReadBy(Ring* ring, const BlockRead* reads, size_t count, uint32_t depth, size_t most_bytes,
                Visitor* visitor, bool* refused) {
    char* const buffer = ring->buffer.data();
    size_t next = 0;
    if (!ring->opened) {
      for (; next < count; ++next) ReadOne(reads[next], buffer, visitor, next);
      return Status();
    }
    uint32_t num_free = 0;
    for (uint32_t part = depth; part-- > 0;) ring->free_parts[num_free++] = part;
    while (next < count || num_free < depth) {
      for (; next < count && num_free > 0; ++next) {
        const uint32_t part = ring->free_parts[--num_free];
        ring->read_of[part] = static_cast<uint32_t>(next);
        const BlockRead& read = reads[next];
        ring->uring.QueueRead(read.file->descriptor(), buffer + part * most_bytes, read.bytes,
                              read.offset, part);
      }
      const uint32_t under_way = depth - num_free;
      NoteDepth(under_way);
      // Wait for several completions, which saves calls while the queue stays nearly full.
      const uint32_t least = std::max<uint32_t>(1, next < count ? under_way / 8 : under_way / 2);
      const int error = ring->uring.Enter(least);
      const uint32_t free_before = num_free;
      uint64_t part;
      int32_t result;
      while (ring->uring.Take(&part, &result)) {
        const uint32_t i = ring->read_of[part];
        Finish(reads[i], buffer + part * most_bytes, result, visitor, i);
        ring->free_parts[num_free++] = static_cast<uint32_t>(part);
      }
      const bool go_on = error == 0 || error == EINTR || error == EAGAIN || error == EBUSY;
      if (go_on || num_free > free_before) continue;
      *refused = true;
      return ReadWithout(*ring, reads, count, next, depth, num_free, most_bytes, visitor);
    }
    return Status();
  }

  // Reads the blocks in flight, and all blocks from `next` on, into other memory.
  Status ReadWithout(const Ring& ring, const BlockRead* reads, size_t count, size_t next,
                     uint32_t depth, uint32_t num_free, size_t most_bytes, Visitor* visitor) {
    AlignedBuffer buffer(allocator_);
    TF_EMBED_RETURN_IF_ERROR(buffer.Resize(most_bytes));
    bool is_free[kMostEntries] = {};
    for (uint32_t i = 0; i < num_free; ++i) is_free[ring.free_parts[i]] = true;
    for (uint32_t part = 0; part < depth; ++part) {
      const uint32_t i = ring.read_of[part];
      if (!is_free[part]) ReadOne(reads[i], buffer.data(), visitor, i);
    }
    for (; next < count; ++next) ReadOne(reads[next], buffer.data(), visitor, next);
    return Status();
  }

  Allocator* const allocator_;
  std::mutex mutex_;
  std::unique_ptr<Ring> rings_ TF_EMBED_GUARDED_BY(mutex_);
  size_t num_rings_ TF_EMBED_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<BlockReader> NewIoUringReader(Allocator* allocator) {
  std::unique_ptr<IoUringReader> reader(new (std::nothrow) IoUringReader(allocator));
  if (reader == nullptr || !reader->Works()) return nullptr;
  return reader;
}

}  // namespace tf_embed
