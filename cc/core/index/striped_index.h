// SPDX-License-Identifier: Apache-2.0
// The index of a store in host memory: key -> row id (the number of its row).
//
//   hash = | stripe : 8 | ... 24 unused ... | place : 32 |
//
//   directory   256 x {buckets, number of buckets}, 4 KiB: it stays in the first cache
//   buckets     home of a key = place * count >> 32; a full bucket overflows into the next
//
// A find of a key in its home bucket reads one cache line of the index, which has the key, the row
// id and the version. At the highest load, 0.8, 87% of random keys are in their home bucket; at
// 0.5, 97%. The others are in the next lines; a find reads 1.26 lines on average at the highest
// load.
//
// The map from place to bucket is monotonic. So a stripe grows by any factor (1.5 here) in one pass
// over the old buckets, which writes the new buckets in order as well. Each stripe has its own
// sizes, such that growths are spread evenly: no key pays for more than 1/256 of the index, and no
// batch for much more than its own keys. Growth moves no rows.
//
// Keys whose places collide without end (by an attack, never by chance) make chains over adjacent
// buckets. Spare buckets at the end of a stripe take the keys that overflow there. Growth for such
// chains stops at a load of 1/4; from there on chains lengthen.
//
// An erased key leaves an empty lane, and the mark that keys of its bucket may lie further on. If
// keys were inserted and erased without end, all buckets would be marked at last, and a find of an
// absent key would read many. So a stripe is rebuilt after as many erasures as it has lanes.
//
// Thread safety: Find takes no lock. Insert and Erase: REQUIRE the stripe's mutex held. Arrays that
// were outgrown are kept, because a reader may still be in them, until DropRetired. That REQUIRES
// that no other thread is in the index; if every Find holds a stripe's mutex too, it may be called
// at any time.
#ifndef TF_EMBED_CC_CORE_INDEX_STRIPED_INDEX_H_
#define TF_EMBED_CC_CORE_INDEX_STRIPED_INDEX_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/platform.h"
#include "cc/core/index/bucket.h"
#include "cc/core/index/region_arena.h"

namespace tf_embed {

class StripedIndex {
 public:
  static constexpr int kStripeBits = 8;
  static constexpr size_t kStripes = size_t{1} << kStripeBits;

  static TF_EMBED_INLINE size_t StripeOf(uint64_t hash) { return hash >> (64 - kStripeBits); }

  // The highest share of lanes that hold keys. A lower share takes more memory, and leaves fewer
  // keys away from their home buckets.
  static constexpr double kMaxLoad = 0.8;

  // The approximate bytes of an index for each key, at a load of 0.8: one bucket for four keys.
  static constexpr size_t kBytesPerKey = sizeof(Bucket) / 4;

  // The position of a key that was found: its bucket, the bucket's word at that time (unlocked),
  // and its row id.
  struct Entry {
    Bucket* bucket = nullptr;
    uint32_t word = 0;
    uint32_t row_id = kNoRowId;

    bool found() const { return row_id != kNoRowId; }
  };

  // `size_hint`: keys to make room for, at the first Insert in each stripe.
  StripedIndex(Allocator* allocator, size_t size_hint, double max_load = kMaxLoad);
  ~StripedIndex();
  StripedIndex(const StripedIndex&) = delete;
  StripedIndex& operator=(const StripedIndex&) = delete;

  // The home bucket of a key, to prefetch and to search; nullptr if the stripe has no buckets yet.
  TF_EMBED_INLINE const Bucket* HomeOf(uint64_t hash) const {
    const DirectoryEntry& entry = directory_[StripeOf(hash)];
    const uint32_t sequence = entry.sequence.load(std::memory_order_acquire);
    Bucket* const buckets = entry.buckets.load(std::memory_order_relaxed);
    const uint32_t home_buckets = entry.home_buckets.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (__builtin_expect(
            (sequence & 1) != 0 || entry.sequence.load(std::memory_order_relaxed) != sequence, 0)) {
      return WaitForHome(hash);
    }
    return buckets == nullptr ? nullptr : Home(buckets, home_buckets, hash);
  }

  Entry Find(int64_t key, uint64_t hash) const;

  OrderedMutex& StripeMutex(size_t stripe) const { return stripes_[stripe].mutex; }

  // Adds an absent key. On failure nothing has changed. The stripe's mutex is held.
  Status Insert(int64_t key, uint64_t hash, uint32_t row_id);

  // Gives a present key another row id. `entry` is its entry; the stripe's mutex has been held
  // since it was found.
  void Replace(const Entry& entry, int64_t key, uint32_t row_id);

  // Removes a key and returns its row id, kNoRowId if absent. The stripe's mutex is held.
  uint32_t Erase(int64_t key, uint64_t hash);

  // Removes all keys of a stripe. The stripe's mutex is held.
  void EraseStripe(size_t stripe);

  // Frees memory that the keys of a stripe do not need, if it is half or more. On failure nothing
  // has changed. The stripe's mutex is held.
  Status Shrink(size_t stripe);

  // Calls visit(bucket, key, row id) for each key. The stripe's mutex is held.
  template <typename Visit>
  void ForEach(size_t stripe, const Visit& visit) const;

  // A position in a pass over all keys, which may take any time while the index changes.
  struct Cursor {
    size_t stripe = 0;
    uint32_t place = 0;
  };
  // Calls visit(bucket, key, row id) for the keys of about `buckets` buckets from the cursor on,
  // and moves the cursor past them. Goes around all stripes at most once: with enough buckets,
  // visits each key once. Takes the stripes' mutexes.
  template <typename Visit>
  void ForSome(size_t buckets, Cursor* cursor, const Visit& visit) const;

  // Number of keys; somewhat stale unless the stripe's mutex is held.
  size_t StripeSize(size_t stripe) const {
    return stripes_[stripe].size.load(std::memory_order_relaxed);
  }

  // Number of home buckets. The stripe's mutex is held.
  size_t StripeBuckets(size_t stripe) const {
    const Array* const array = stripes_[stripe].array;
    return array == nullptr ? 0 : array->home_buckets;
  }

  // Counts some keys, and the buckets that a find of each of them reads.
  void SampleProbes(uint64_t* keys, uint64_t* buckets) const;

  // Number of keys in all stripes, somewhat stale while others write.
  size_t size() const {
    size_t sum = 0;
    for (size_t stripe = 0; stripe < kStripes; ++stripe) sum += StripeSize(stripe);
    return sum;
  }

  // The memory of all arrays, including outgrown arrays.
  size_t bytes() const { return arena_.bytes_out(); }

  // Frees outgrown arrays. REQUIRES: no other thread is in the index, or each thread in it holds
  // the mutex of its stripe.
  void DropRetired();
  bool has_retired() const { return retired_.load(std::memory_order_relaxed) != nullptr; }

 private:
  // An array of buckets; `spare` of them lie after the last home bucket. The header takes the first
  // cache line of its memory.
  struct Array {
    size_t home_buckets;
    size_t spare_buckets;
    Array* next_retired;
    RegionArena::Region* region;

    size_t buckets() const { return home_buckets + spare_buckets; }
    Bucket* begin() { return reinterpret_cast<Bucket*>(this) + 1; }
    Bucket* end() { return begin() + buckets(); }
    const Bucket* begin() const { return reinterpret_cast<const Bucket*>(this) + 1; }
    const Bucket* end() const { return begin() + buckets(); }
  };

  // The part of a stripe that Find reads: a pair under a sequence number, in one cache line.
  struct DirectoryEntry {
    std::atomic<Bucket*> buckets{nullptr};
    std::atomic<uint32_t> home_buckets{0};
    std::atomic<uint32_t> sequence{0};
  };

  struct Stripe {
    mutable OrderedMutex mutex{LockRank::kStripe};
    Array* array = nullptr;
    std::atomic<size_t> size{0};
    size_t erased = 0;  // since the array was filled
  };

  static TF_EMBED_INLINE Bucket* Home(Bucket* buckets, size_t home_buckets, uint64_t hash) {
    return buckets + ((static_cast<uint64_t>(static_cast<uint32_t>(hash)) * home_buckets) >> 32);
  }

  // HomeOf, while a stripe's array is being replaced.
  const Bucket* WaitForHome(uint64_t hash) const;

  // An array whose buckets are still raw memory.
  Array* NewArray(size_t home_buckets, size_t spare_buckets);
  void FreeArray(Array* array);

  // Puts a key in the first free lane from its home on; false if there is no room.
  static bool Place(Array* array, size_t longest_chain, int64_t key, uint64_t hash,
                    uint32_t row_id);

  // Makes the raw buckets of a new array hold the keys of the old array, if there is one. False if
  // they do not fit. REQUIRES: no thread inserts into or erases from the old array.
  static bool Fill(Array* array, const Array* old);

  // Gives a stripe enough buckets for all its keys. On failure nothing has changed.
  Status Grow(size_t stripe_number);
  // Moves a stripe's keys to a new array, with more spare buckets if they need them.
  Status Refill(size_t stripe_number, size_t home_buckets, size_t spare_buckets);
  // `array` may be null: the stripe is empty.
  void Publish(size_t stripe_number, Array* array);
  void Retire(Array* array);

  RegionArena arena_;
  const size_t stripe_hint_;
  const double max_load_;
  DirectoryEntry directory_[kStripes];
  Stripe stripes_[kStripes];
  std::atomic<Array*> retired_{nullptr};
};

template <typename Visit>
void StripedIndex::ForEach(size_t stripe, const Visit& visit) const {
  Array* const array = stripes_[stripe].array;
  if (array == nullptr) return;
  for (Bucket* bucket = array->begin(); bucket != array->end(); ++bucket) {
    for (int lane = 0; lane < Bucket::kLanes; ++lane) {
      const uint32_t row_id = bucket->row_ids[lane].load(std::memory_order_relaxed);
      if (row_id != kNoRowId)
        visit(*bucket, bucket->keys[lane].load(std::memory_order_relaxed), row_id);
    }
  }
}

template <typename Visit>
void StripedIndex::ForSome(size_t buckets, Cursor* cursor, const Visit& visit) const {
  const uint32_t start = cursor->place;
  // A search that starts inside a stripe returns to it for the part before the start.
  const size_t most = kStripes + (start > 0 ? 1 : 0);
  for (size_t stripes = 0; buckets > 0 && stripes < most; ++stripes) {
    const Stripe& stripe = stripes_[cursor->stripe];
    std::lock_guard<OrderedMutex> lock(stripe.mutex);
    const Array* const array = stripe.array;
    const size_t home_buckets = array == nullptr ? 0 : array->home_buckets;
    const size_t begin = static_cast<uint64_t>(cursor->place) * home_buckets >> 32;
    // Keys that overflow past the last home bucket belong to it.
    size_t end = array == nullptr ? 0 : array->buckets();
    if (stripes == kStripes) end = static_cast<uint64_t>(start) * home_buckets >> 32;
    if (begin + buckets < std::min(end, home_buckets)) end = begin + buckets;
    for (size_t i = begin; i < end; ++i) {
      const Bucket& bucket = array->begin()[i];
      for (int lane = 0; lane < Bucket::kLanes; ++lane) {
        const uint32_t row_id = bucket.row_ids[lane].load(std::memory_order_relaxed);
        if (row_id != kNoRowId)
          visit(bucket, bucket.keys[lane].load(std::memory_order_relaxed), row_id);
      }
    }
    buckets -= std::min(buckets, end - begin);
    if (end < home_buckets) {
      // The least place whose bucket is `end`.
      cursor->place = static_cast<uint32_t>(
          ((static_cast<uint64_t>(end) << 32) + home_buckets - 1) / home_buckets);
      return;
    }
    cursor->stripe = (cursor->stripe + 1) % kStripes;
    cursor->place = 0;
  }
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_INDEX_STRIPED_INDEX_H_
