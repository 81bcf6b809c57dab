// SPDX-License-Identifier: Apache-2.0
// The index of a store in device memory maps keys to row numbers. It is an array of buckets, each a
// 128-byte cache line. The search for a key starts at its home bucket.
//
//     | header: 7 digests, 1 count | priority | key row hint | key row hint | ... 7 entries |
//     0                            8          16             32
//
// A digest is a byte of its key's hash, 1 to 255. 0 marks an empty lane, so every key is legal. An
// 8-byte word holds all digests of a bucket and is compared at once. A tile with a lane for each
// entry reads the whole line at the same time. A smaller tile reads only the entries whose digest
// matches, 1.03 on average. The highest byte counts the keys that found their bucket full and went
// on (255 stays); if it is 0, a search ends. The count goes down again as these keys leave. So
// searches do not get longer as keys come and go, and no lane keeps a tombstone.
//
// The high bits of its hash select a key's home. So the order of keys, which is the order of an
// export, does not depend on the size of the index.
//
// The row's number is stored beside the key, instead of being the place of the lane, for two
// reasons. An index is at most three quarters full, and rows take most of a device's memory. When
// an index is rebuilt, rows stay where they are, so growth needs no second copy of them.
//
// A hint is a lower bound of a row's rank in the eviction order, and a priority is a bound for all
// rows of a bucket. With them, the lowest row is found by reading the first 16 bytes of buckets and
// few entries and rows (victim_kernels.h).
//
// Launches: in each launch, either all tiles look keys up, or all insert new keys, or all erase
// keys, and no key occurs twice. So no tile meets a half-written entry, and there are no locks.
// Only hints and priorities are written during lookups, which do not use them.
#ifndef TF_EMBED_CC_STORES_DEVICE_DEVICE_INDEX_H_
#define TF_EMBED_CC_STORES_DEVICE_DEVICE_INDEX_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/hash.h"
#include "cc/stores/device/tile.h"

namespace tf_embed {

inline constexpr uint32_t kNoRow = 0xffffffffu;

// The keys that a tile looks up together, so that their loads are in flight at the same time. Each
// lane has a key, so a tile of few lanes takes a single key.
template <class Tile>
inline constexpr size_t kKeysOfTile = Tile::kLanes < 8 ? 1 : 4;

struct alignas(64) DeviceBucket {
  static constexpr size_t kLanes = 7;
  static constexpr int kPassedShift = 56;
  static constexpr uint64_t kMaxPassed = 255;
  static constexpr uint32_t kNoHint = 0;

  struct alignas(16) Entry {  // read by one load
    int64_t key;
    uint32_t row;
    // 1 + a score that the row had (eviction_order.h). It is at most the present score: uses only
    // raise the score, because the steps and the clock of the caller only rise. All other changes
    // of a row's statistics set kNoHint.
    uint32_t hint = kNoHint;
  };
  // Rank::Priority of a row of unknown rank.
  static constexpr uint64_t kUnknownPriority = ~uint64_t{0};

  uint64_t header;
  // At least the priority of each row, and 0 before the first. Like hints, it may be too high,
  // because rows that were used or have left do not lower it.
  uint64_t priority;
  Entry entries[kLanes];

  static TF_EMBED_DEVICE uint32_t Digest(uint64_t header, size_t lane) {
    return static_cast<uint32_t>(header >> (8 * lane)) & 255u;
  }
  static TF_EMBED_DEVICE bool HasRows(uint64_t header) {
    return header << (64 - kPassedShift) != 0;
  }
  static TF_EMBED_DEVICE uint64_t Passed(uint64_t header) { return header >> kPassedShift; }

  // The line as units of one load: the header, then the entries.
  static constexpr size_t kUnits = 1 + kLanes;
  TF_EMBED_DEVICE const Entry& Unit(size_t unit) const {
    return reinterpret_cast<const Entry*>(this)[unit];
  }
  // Scores of more than 32 bits have no hint.
  static TF_EMBED_DEVICE uint32_t HintOf(uint64_t score) {
    return score < 0xffffffffu ? static_cast<uint32_t>(score) + 1 : kNoHint;
  }
  static TF_EMBED_DEVICE uint64_t ScoreOf(uint32_t hint) { return uint64_t{hint} - 1; }
};
static_assert(sizeof(DeviceBucket) == 128, "a line of a GPU");

// The kernels' view of an index. Copied into each launch.
struct IndexView {
  DeviceBucket* buckets = nullptr;
  uint32_t bits = 0;  // 2^bits buckets, at least 2; none if `buckets` is null

  // A place: a bucket and a lane.
  static constexpr uint64_t kNoPlace = ~uint64_t{0};

  TF_EMBED_HOST_DEVICE uint64_t num_buckets() const {
    return buckets == nullptr ? 0 : uint64_t{1} << bits;
  }
  TF_EMBED_HOST_DEVICE uint64_t num_places() const { return num_buckets() * DeviceBucket::kLanes; }
  TF_EMBED_DEVICE uint64_t HomeOf(uint64_t hash) const { return hash >> (64 - bits); }
  TF_EMBED_DEVICE uint64_t After(uint64_t bucket) const {
    return (bucket + 1) & (num_buckets() - 1);
  }
  static TF_EMBED_DEVICE uint64_t DigestOf(uint64_t hash) {
    // The low bits of the hash, because the high bits choose the bucket and are nearly equal within
    // it.
    const uint64_t digest = hash & 255u;
    // 0 marks an empty lane. So digest 1 means two values, which costs some needless key
    // comparisons.
    return digest == 0 ? 1 : digest;
  }
  TF_EMBED_DEVICE DeviceBucket::Entry& EntryAt(uint64_t place) const {
    return buckets[place / DeviceBucket::kLanes].entries[place % DeviceBucket::kLanes];
  }
  template <class Tile>
  TF_EMBED_DEVICE bool Holds(uint64_t place) const {
    const uint64_t header = Tile::Load(&buckets[place / DeviceBucket::kLanes].header);
    return DeviceBucket::Digest(header, place % DeviceBucket::kLanes) != 0;
  }

  // The place of a key, or kNoPlace, and its row, or kNoRow. All lanes call it and get the same
  // result.
  template <class Tile>
  TF_EMBED_DEVICE uint64_t Find(const Tile& tile, int64_t key, uint64_t hash, uint32_t* row) const {
    return Search(tile, key, hash, row);
  }
  template <class Tile>
  TF_EMBED_DEVICE uint64_t Find(const Tile& tile, int64_t key, uint64_t hash) const {
    uint32_t row;
    return Search(tile, key, hash, &row);
  }

  // The row of a key, or kNoRow.
  template <class Tile>
  TF_EMBED_DEVICE uint32_t FindRow(const Tile& tile, int64_t key) const {
    uint32_t row;
    Search(tile, key, HashKey(key), &row);
    return row;
  }

  // The same for the keys of the first kKeysOfTile lanes; each of them gets its key's row. `has`
  // says whether a lane has a key.
  template <class Tile>
  TF_EMBED_DEVICE uint32_t FindRows(const Tile& tile, bool has, int64_t key) const {
    if constexpr (kKeysOfTile<Tile> == 1) {
      return tile.From(has, 0) ? FindRow(tile, tile.From(key, 0)) : kNoRow;
    } else {
      return SearchTogether(tile, has, key);
    }
  }

  // Inserts an absent key, with a bound of its priority. A single lane calls it. REQUIRES: the
  // index has an empty lane.
  template <class Tile>
  TF_EMBED_DEVICE void Insert(const DeviceBucket::Entry& entry, uint64_t hash,
                              uint64_t priority = DeviceBucket::kUnknownPriority) const {
    uint64_t bucket = HomeOf(hash);
    uint64_t header = Tile::Load(&buckets[bucket].header);
    for (;;) {
      size_t lane = 0;
      // The header of the last failed swap, or of this bucket: another tile may have taken the lane
      // meanwhile.
      while (lane < DeviceBucket::kLanes && DeviceBucket::Digest(header, lane) != 0) ++lane;
      if (lane < DeviceBucket::kLanes) {
        // Claim the lane by its digest, then write the entry. No lookup runs in this launch, so
        // none can see the digest without the entry.
        const uint64_t with = header | DigestOf(hash) << (8 * lane);
        if (!Tile::CompareExchange(&buckets[bucket].header, &header, with)) continue;
        buckets[bucket].entries[lane] = entry;
        Tile::Max(&buckets[bucket].priority, priority);
        return;
      }
      // The bucket is full: count the key, so that searches go on to the next bucket.
      if (DeviceBucket::Passed(header) < DeviceBucket::kMaxPassed &&
          !Tile::CompareExchange(&buckets[bucket].header, &header,
                                 header + (uint64_t{1} << DeviceBucket::kPassedShift))) {
        continue;
      }
      bucket = After(bucket);
      header = Tile::Load(&buckets[bucket].header);
    }
  }

  // Removes what is known of the rank of the row at a place. A single lane calls it.
  template <class Tile>
  TF_EMBED_DEVICE void ForgetRank(uint64_t place) const {
    EntryAt(place).hint = DeviceBucket::kNoHint;
    Tile::Exchange(&buckets[place / DeviceBucket::kLanes].priority, DeviceBucket::kUnknownPriority);
  }

  // Erases the key found at a place. Returns false if another lane has done so in this launch. A
  // single lane calls it.
  template <class Tile>
  TF_EMBED_DEVICE bool Erase(uint64_t hash, uint64_t place) const {
    const uint64_t last = place / DeviceBucket::kLanes;
    const uint64_t digest = uint64_t{255} << (8 * (place % DeviceBucket::kLanes));
    uint64_t before = Tile::Load(&buckets[last].header);
    // The digest is the claim: the first lane to clear it owns the erasure. A repeated place in the
    // launch must not count down the buckets twice.
    do {
      if ((before & digest) == 0) return false;
    } while (!Tile::CompareExchange(&buckets[last].header, &before, before & ~digest));
    // Undo the counts of the insertion. A saturated count stays, because its true value is unknown.
    for (uint64_t bucket = HomeOf(hash); bucket != last; bucket = After(bucket)) {
      Change<Tile>(bucket, [](uint64_t header) {
        return DeviceBucket::Passed(header) == DeviceBucket::kMaxPassed
                   ? header
                   : header - (uint64_t{1} << DeviceBucket::kPassedShift);
      });
    }
    return true;
  }

 private:
  // Searches a bucket. Returns 1 + the key's lane and sets its row, or returns 0. A tile with a
  // lane for each entry reads the entries together with the header, in one cache line.
  template <class Tile>
  static TF_EMBED_DEVICE uint32_t SearchBucket(const Tile& tile, const DeviceBucket& line,
                                               int64_t key, uint64_t digest, uint64_t* header,
                                               uint32_t* row) {
    uint32_t found = 0;
    if constexpr (Tile::kLanes >= DeviceBucket::kLanes) {
      const size_t lane = tile.lane();
      DeviceBucket::Entry entry = {};
      if (lane < DeviceBucket::kLanes) entry = line.entries[lane];
      *header = Tile::Load(&line.header);
      if (lane < DeviceBucket::kLanes && DeviceBucket::Digest(*header, lane) == digest &&
          entry.key == key) {
        found = static_cast<uint32_t>(lane) + 1;
      }
      // At most one lane of the index has the key, so the maximum is that lane, or 0.
      found = tile.Highest(found);
      if (found != 0) *row = tile.From(entry.row, found - 1);
    } else {
      *header = Tile::Load(&line.header);
      ForEachLane(tile, DeviceBucket::kLanes, [&](size_t lane) {
        if (DeviceBucket::Digest(*header, lane) == digest && line.entries[lane].key == key) {
          found = static_cast<uint32_t>(lane) + 1;
        }
      });
      found = tile.Highest(found);
      if (found != 0) *row = line.entries[found - 1].row;
    }
    return found;
  }

  template <class Tile>
  TF_EMBED_DEVICE uint64_t Search(const Tile& tile, int64_t key, uint64_t hash,
                                  uint32_t* row) const {
    *row = kNoRow;
    if (buckets == nullptr) return kNoPlace;
    const uint64_t digest = DigestOf(hash);
    uint64_t bucket = HomeOf(hash);
    // Bounded, because saturated counts could send the search of an absent key round forever.
    for (uint64_t searched = 0; searched <= num_buckets(); ++searched) {
      uint64_t header;
      const uint32_t found = SearchBucket(tile, buckets[bucket], key, digest, &header, row);
      if (found != 0) return bucket * DeviceBucket::kLanes + found - 1;
      // No key has gone on from this bucket, or all such keys have left.
      if (DeviceBucket::Passed(header) == 0) break;
      bucket = After(bucket);
    }
    return kNoPlace;
  }

  // Reads the home of each key first, then the next bucket of each key not found, and so on. A load
  // of a tile reads the lines of `kLines` keys, with a unit per lane.
  template <class Tile>
  TF_EMBED_DEVICE uint32_t SearchTogether(const Tile& tile, bool has, int64_t key) const {
    constexpr size_t kUnits = DeviceBucket::kUnits;
    constexpr size_t kLines = Tile::kLanes / kUnits;
    constexpr size_t kLoads = kKeysOfTile<Tile> / kLines;
    static_assert(kLoads * kLines == kKeysOfTile<Tile>, "loads are of whole lines");
    const size_t line = tile.lane() / kUnits;  // index in a load
    const size_t unit = tile.lane() % kUnits;
    const size_t own_first = tile.lane() % kLines * kUnits;  // the first lane of this key's line
    uint32_t row = kNoRow;
    if (buckets == nullptr) return row;
    const uint64_t hash = HashKey(key);
    uint64_t bucket = HomeOf(hash);
    // 0 if no key is searched for, because no key has this digest.
    uint32_t own_digest = has ? static_cast<uint32_t>(DigestOf(hash)) : 0;
    // Bounded, as in Search.
    for (uint64_t searched = 0; searched <= num_buckets(); ++searched) {
      DeviceBucket::Entry units[kLoads];
      uint32_t digests[kLoads];
      TF_EMBED_UNROLL
      for (size_t l = 0; l != kLoads; ++l) {
        digests[l] = tile.From(own_digest, l * kLines + line);
        const uint64_t at = tile.From(bucket, l * kLines + line);
        units[l] = {};
        if (digests[l] != 0) units[l] = buckets[at].Unit(unit);
      }
      bool goes_on = false;
      TF_EMBED_UNROLL
      for (size_t l = 0; l != kLoads; ++l) {
        const int64_t wanted = tile.From(key, l * kLines + line);
        const auto header = static_cast<uint64_t>(tile.From(units[l].key, line * kUnits));
        // The first unit says whether keys went on from the bucket. Each other unit says whether it
        // has the key.
        const bool says = unit == 0 ? DeviceBucket::Passed(header) != 0
                                    : DeviceBucket::Digest(header, unit - 1) == digests[l] &&
                                          units[l].key == wanted;
        const uint32_t said = tile.Where(digests[l] != 0 && says) >> own_first;
        // At most one lane of the index has the key.
        const uint32_t found = said & ((1u << kUnits) - 2);
        const size_t holder = own_first + (found == 0 ? 0 : LowestBit(found));
        const uint32_t its_row = tile.From(units[l].row, holder);
        if (tile.lane() / kLines == l) {
          if (found != 0) row = its_row;
          goes_on = found == 0 && (said & 1) != 0;
        }
      }
      if (tile.Where(goes_on) == 0) break;
      if (!goes_on) own_digest = 0;
      bucket = After(bucket);
    }
    return row;
  }

  template <class Tile, typename Next>
  TF_EMBED_DEVICE void Change(uint64_t bucket, const Next& next) const {
    uint64_t header = Tile::Load(&buckets[bucket].header);
    while (!Tile::CompareExchange(&buckets[bucket].header, &header, next(header))) {
    }
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_DEVICE_DEVICE_INDEX_H_
