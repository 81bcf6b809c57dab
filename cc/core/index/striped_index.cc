// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/striped_index.h"

#include <cmath>
#include <new>
#include <string>

#include "cc/core/base/hash.h"

namespace tf_embed {
namespace {

// Below this load a chain that is too long does not make a stripe grow.
constexpr double kMinLoadToGrow = 0.25;
constexpr size_t kSpareBuckets = 8;
// A key lies at most this many buckets after its home, as long as growth can help. Random keys stay
// below it: a new key goes to the end of its run of full buckets, and at the highest load there are
// runs of a few dozen in nearly every stripe.
constexpr size_t kLongestChain = 128;

size_t BucketsFor(double keys, double load) {
  return static_cast<size_t>(keys / (load * Bucket::kLanes)) + 1;
}

double Load(size_t keys, size_t home_buckets) {
  return static_cast<double>(keys) / static_cast<double>(home_buckets * Bucket::kLanes);
}

// The share of a stripe when `keys` are spread over all: the mean and three standard deviations.
size_t StripeShare(size_t keys) {
  const double mean = static_cast<double>(keys) / StripedIndex::kStripes;
  return static_cast<size_t>(mean + 3.0 * std::sqrt(mean));
}

// The next size of a stripe. Each stripe has its own sequence, 1.5^(n + phase), with phases spread
// evenly between 0 and 1. So the growths of stripes that fill alike are spread evenly over the time
// in which each grows once. A size outside of the sequence joins it by a factor of 1.25 to 1.875.
size_t NextHomeBuckets(size_t stripe, size_t home_buckets) {
  const double phase = static_cast<double>((stripe * kGolden64) >> 32) / 4294967296.0;
  const double least = std::log(1.25 * static_cast<double>(home_buckets)) / std::log(1.5);
  return static_cast<size_t>(std::pow(1.5, std::ceil(least - phase) + phase)) + 1;
}

}  // namespace

StripedIndex::StripedIndex(Allocator* allocator, size_t size_hint, double max_load)
    : arena_(allocator), stripe_hint_(StripeShare(size_hint)), max_load_(max_load) {}

StripedIndex::~StripedIndex() {
  DropRetired();
  for (Stripe& stripe : stripes_) {
    if (stripe.array != nullptr) FreeArray(stripe.array);
  }
}

const Bucket* StripedIndex::WaitForHome(uint64_t hash) const {
  const DirectoryEntry& entry = directory_[StripeOf(hash)];
  for (Backoff backoff;; backoff.Wait()) {
    const uint32_t sequence = entry.sequence.load(std::memory_order_acquire);
    Bucket* const buckets = entry.buckets.load(std::memory_order_relaxed);
    const uint32_t home_buckets = entry.home_buckets.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((sequence & 1) == 0 && entry.sequence.load(std::memory_order_relaxed) == sequence) {
      return buckets == nullptr ? nullptr : Home(buckets, home_buckets, hash);
    }
  }
}

StripedIndex::Entry StripedIndex::Find(int64_t key, uint64_t hash) const {
  Backoff backoff;
  for (;;) {
    Bucket* bucket = const_cast<Bucket*>(HomeOf(hash));
    if (bucket == nullptr) return Entry();
    for (;;) {
      const uint32_t word = bucket->WaitUnlocked();
      if (word & Bucket::kMoved) break;  // the stripe's new array is about to be published
      const int lane = bucket->FindLane(key);
      const uint32_t row_id =
          lane < 0 ? kNoRowId : bucket->row_ids[lane].load(std::memory_order_relaxed);
      if (!bucket->Unchanged(word)) continue;
      if (row_id != kNoRowId) return Entry{bucket, word, row_id};
      if (!(word & Bucket::kOverflowed)) return Entry();
      ++bucket;
    }
    backoff.Wait();
  }
}

bool StripedIndex::Place(Array* array, size_t longest_chain, int64_t key, uint64_t hash,
                         uint32_t row_id) {
  Bucket* const home = Home(array->begin(), array->home_buckets, hash);
  Bucket* bucket = home;
  int lane = -1;
  for (size_t distance = 0;; ++bucket, ++distance) {
    if (bucket == array->end() || distance > longest_chain) return false;
    for (lane = 0; lane < Bucket::kLanes; ++lane) {
      if (bucket->row_ids[lane].load(std::memory_order_relaxed) == kNoRowId) break;
    }
    if (lane < Bucket::kLanes) break;
  }
  // First the key, then the marks that lead to it: a reader in between finds either no key or a
  // complete entry.
  const uint32_t before = bucket->Lock();
  bucket->keys[lane].store(key, std::memory_order_relaxed);
  bucket->row_ids[lane].store(row_id, std::memory_order_relaxed);
  bucket->Unlock(before);
  while (bucket != home) {
    --bucket;
    if (bucket->word.load(std::memory_order_relaxed) & Bucket::kOverflowed) continue;
    bucket->Unlock(bucket->Lock(), Bucket::kOverflowed);
  }
  return true;
}

Status StripedIndex::Insert(int64_t key, uint64_t hash, uint32_t row_id) {
  const size_t number = StripeOf(hash);
  Stripe& stripe = stripes_[number];
  const size_t size = stripe.size.load(std::memory_order_relaxed);
  if (stripe.array != nullptr && stripe.erased > stripe.array->home_buckets * Bucket::kLanes) {
    // Without memory for it, finds are slower but correct.
    stripe.erased = 0;
    (void)Refill(number, stripe.array->home_buckets, stripe.array->spare_buckets);
  }
  while (stripe.array == nullptr || Load(size + 1, stripe.array->home_buckets) > max_load_ ||
         !Place(stripe.array,
                Load(size, stripe.array->home_buckets) < kMinLoadToGrow ? stripe.array->buckets()
                                                                        : kLongestChain,
                key, hash, row_id)) {
    TF_EMBED_RETURN_IF_ERROR(Grow(number));
  }
  stripe.size.store(size + 1, std::memory_order_relaxed);
  return Status();
}

void StripedIndex::Replace(const Entry& entry, int64_t key, uint32_t row_id) {
  const uint32_t before = entry.bucket->Lock();
  entry.bucket->row_ids[entry.bucket->FindLane(key)].store(row_id, std::memory_order_relaxed);
  entry.bucket->Unlock(before);
}

void StripedIndex::EraseStripe(size_t number) {
  Stripe& stripe = stripes_[number];
  Array* const old = stripe.array;
  if (old == nullptr) return;
  for (Bucket& bucket : *old) bucket.Unlock(bucket.Lock(), Bucket::kMoved);
  Publish(number, nullptr);
  stripe.size.store(0, std::memory_order_relaxed);
  stripe.erased = 0;
  Retire(old);
}

Status StripedIndex::Shrink(size_t number) {
  const Stripe& stripe = stripes_[number];
  if (stripe.array == nullptr) return Status();
  const size_t size = StripeSize(number);
  if (size == 0) {
    EraseStripe(number);
    return Status();
  }
  const size_t home_buckets = BucketsFor(static_cast<double>(size), max_load_);
  if (2 * (home_buckets + kSpareBuckets) > stripe.array->buckets()) return Status();
  return Refill(number, home_buckets, kSpareBuckets);
}

uint32_t StripedIndex::Erase(int64_t key, uint64_t hash) {
  const Entry entry = Find(key, hash);
  if (!entry.found()) return kNoRowId;
  const uint32_t before = entry.bucket->Lock();
  entry.bucket->row_ids[entry.bucket->FindLane(key)].store(kNoRowId, std::memory_order_relaxed);
  entry.bucket->Unlock(before);
  Stripe& stripe = stripes_[StripeOf(hash)];
  stripe.size.store(StripeSize(StripeOf(hash)) - 1, std::memory_order_relaxed);
  ++stripe.erased;
  return entry.row_id;
}

void StripedIndex::SampleProbes(uint64_t* keys, uint64_t* buckets) const {
  constexpr uint64_t kEnough = 4096;
  for (size_t number = 0; number < kStripes && *keys < kEnough; ++number) {
    const Stripe& stripe = stripes_[number];
    std::lock_guard<OrderedMutex> lock(stripe.mutex);
    if (stripe.array == nullptr) continue;
    Bucket* const begin = stripe.array->begin();
    for (Bucket* bucket = begin; bucket != stripe.array->end() && *keys < kEnough; ++bucket) {
      for (int lane = 0; lane < Bucket::kLanes; ++lane) {
        if (bucket->row_ids[lane].load(std::memory_order_relaxed) == kNoRowId) continue;
        const int64_t key = bucket->keys[lane].load(std::memory_order_relaxed);
        ++*keys;
        *buckets += bucket - Home(begin, stripe.array->home_buckets, HashKey(key)) + 1;
      }
    }
  }
}

StripedIndex::Array* StripedIndex::NewArray(size_t home_buckets, size_t spare_buckets) {
  const RegionArena::Block block =
      arena_.Allocate((1 + home_buckets + spare_buckets) * sizeof(Bucket));
  if (block.memory == nullptr) return nullptr;
  return new (block.memory) Array{home_buckets, spare_buckets, nullptr, block.region};
}

void StripedIndex::FreeArray(Array* array) {
  arena_.Deallocate({array, array->region}, (1 + array->buckets()) * sizeof(Bucket));
}

bool StripedIndex::Fill(Array* array, const Array* old) {
  // Old buckets hold their keys nearly in the order of their new homes, so the writes go along the
  // new array as well, and each line of both arrays passes through the cache once. Until the array
  // is published, a bucket's version is the number of its keys.
  Bucket* raw = array->begin();  // buckets from here on are not written yet
  const auto begin_buckets = [&](Bucket* end) {
    while (raw < end) (new (raw++) Bucket)->Reset();
  };
  const Bucket* const end = old == nullptr ? nullptr : old->end();
  for (const Bucket* from = old == nullptr ? nullptr : old->begin(); from != end; ++from) {
    for (int lane = 0; lane < Bucket::kLanes; ++lane) {
      const uint32_t row_id = from->row_ids[lane].load(std::memory_order_relaxed);
      if (row_id == kNoRowId) continue;
      const int64_t key = from->keys[lane].load(std::memory_order_relaxed);
      Bucket* to = Home(array->begin(), array->home_buckets, HashKey(key));
      begin_buckets(to + 1);
      uint32_t word = to->word.load(std::memory_order_relaxed);
      while (word >= Bucket::kLanes * Bucket::kVersion) {
        to->word.store(word | Bucket::kOverflowed, std::memory_order_relaxed);
        if (++to == array->end()) return false;
        begin_buckets(to + 1);
        word = to->word.load(std::memory_order_relaxed);
      }
      const uint32_t free_lane = word / Bucket::kVersion;
      to->keys[free_lane].store(key, std::memory_order_relaxed);
      to->row_ids[free_lane].store(row_id, std::memory_order_relaxed);
      to->word.store(word + Bucket::kVersion, std::memory_order_relaxed);
    }
  }
  begin_buckets(array->end());
  return true;
}

Status StripedIndex::Grow(size_t number) {
  const Array* const old = stripes_[number].array;
  if (old == nullptr) {
    return Refill(number, BucketsFor(static_cast<double>(stripe_hint_), max_load_), kSpareBuckets);
  }
  if (Load(StripeSize(number), old->home_buckets) < kMinLoadToGrow) {
    return Refill(number, old->home_buckets, 2 * old->spare_buckets);  // a chain ran over the end
  }
  return Refill(number, NextHomeBuckets(number, old->home_buckets), old->spare_buckets);
}

Status StripedIndex::Refill(size_t number, size_t home_buckets, size_t spare_buckets) {
  Stripe& stripe = stripes_[number];
  Array* const old = stripe.array;
  Array* array = nullptr;
  // A key may overflow the end of the new array as well; then takes more spare buckets.
  for (;; spare_buckets *= 2) {
    array = NewArray(home_buckets, spare_buckets);
    if (array == nullptr) {
      return Status::ResourceExhausted([&] {
        return "No memory to index more than " + std::to_string(StripeSize(number)) +
               " keys of a stripe (" + std::to_string(home_buckets * sizeof(Bucket)) + " bytes).";
      });
    }
    if (Fill(array, old)) break;
    FreeArray(array);
  }
  if (old != nullptr) {
    // From here on every thread with the old array, reader or writer of rows, is sent to the new
    // array. This waits for the last holder of each lock, so no row has writers through both arrays
    // at once.
    for (Bucket* bucket = old->begin(); bucket != old->end(); ++bucket) {
      bucket->Unlock(bucket->Lock(), Bucket::kMoved);
    }
  }
  Publish(number, array);
  stripe.erased = 0;
  if (old != nullptr) Retire(old);
  return Status();
}

void StripedIndex::Retire(Array* array) {
  Array* next = retired_.load(std::memory_order_relaxed);
  do {
    array->next_retired = next;
  } while (!retired_.compare_exchange_weak(next, array, std::memory_order_release,
                                           std::memory_order_relaxed));
}

void StripedIndex::Publish(size_t number, Array* array) {
  DirectoryEntry& entry = directory_[number];
  const uint32_t sequence = entry.sequence.load(std::memory_order_relaxed);
  entry.sequence.store(sequence + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  // The buckets were written relaxed; the release below publishes them together with the pair.
  entry.buckets.store(array == nullptr ? nullptr : array->begin(), std::memory_order_relaxed);
  entry.home_buckets.store(array == nullptr ? 0 : static_cast<uint32_t>(array->home_buckets),
                           std::memory_order_relaxed);
  entry.sequence.store(sequence + 2, std::memory_order_release);
  stripes_[number].array = array;
}

void StripedIndex::DropRetired() {
  Array* array = retired_.exchange(nullptr, std::memory_order_acquire);
  while (array != nullptr) {
    Array* const next = array->next_retired;
    FreeArray(array);
    array = next;
  }
}

}  // namespace tf_embed
