// SPDX-License-Identifier: Apache-2.0
// The size of a store's parts, and counts of the events since it was made.
#ifndef TF_EMBED_CC_CORE_STORE_STORE_STATS_H_
#define TF_EMBED_CC_CORE_STORE_STORE_STATS_H_

#include <cstdint>

// STAT(name, meaning): one line for each number, in the order in which the op gives them. Numbers
// of shards are added up. To add a number, add a line here and count it in the store.
#define TF_EMBED_TABLE_STATS(STAT)                                                          \
  STAT(rows, "rows")                                                                        \
  STAT(payload_bytes, "bytes of weights, slots and statistics of all rows")                 \
  STAT(index_bytes, "bytes of the index")                                                   \
  STAT(slack_bytes, "bytes of rows that are freed, or not used yet")                        \
  STAT(admission_bytes, "bytes of what counts the keys that wait for a row")                \
  STAT(undrained, "evicted rows that wait for TfEmbedDrainEvicted")                         \
  STAT(index_places, "keys that the index has places for")                                  \
  STAT(probed_keys, "keys of a sample")                                                     \
  STAT(probed_buckets, "buckets that a find of all keys of the sample reads")               \
  STAT(admitted, "rows that came by a policy")                                              \
  STAT(held_back, "times that a key got no row, as it had not come often enough")           \
  STAT(refused, "times that a key got no row for want of room")                             \
  STAT(evicted, "rows that left for others, or by a restriction")                           \
  STAT(expired, "rows that left because they were not used")                                \
  STAT(hits, "keys that finds found")                                                       \
  STAT(misses, "keys that finds did not find")                                              \
  STAT(pinned_bytes, "bytes of payload and slack of a table on a GPU that are on the host") \
  STAT(cache_rows, "rows in the first tier of a table with several")                        \
  STAT(cache_hits, "keys that finds found in the first tier")                               \
  STAT(cache_misses, "keys that finds found in a lower tier")                               \
  STAT(promoted, "rows that came up from a lower tier")                                     \
  STAT(demoted, "rows that went down to a lower tier")                                      \
  STAT(demoted_unwritten, "of these, rows that the lower tier had already")                 \
  STAT(host_rows, "rows in host memory below a cache, those in the cache as well included") \
  STAT(host_bytes, "bytes of these rows")                                                   \
  STAT(disk_rows, "rows on disk, those in the first tier as well included")                 \
  STAT(disk_live_bytes, "bytes of these rows")                                              \
  STAT(disk_bytes, "bytes of files")                                                        \
  STAT(disk_rows_read, "rows that were read from disk")                                     \
  STAT(disk_read_bytes, "bytes that were read from disk for them")                          \
  STAT(disk_read_requests, "blocks that were asked of the disk for them")                   \
  STAT(disk_rows_written, "rows that were written to disk")                                 \
  STAT(disk_written_bytes, "bytes that were written to disk for them")                      \
  STAT(disk_compacted_bytes, "bytes that compaction read and wrote")                        \
  STAT(disk_queue_depth, "requests to disk that were under way at once, at most")

namespace tf_embed {

struct StoreStats {
#define TF_EMBED_STAT(name, meaning) uint64_t name = 0;
  TF_EMBED_TABLE_STATS(TF_EMBED_STAT)
#undef TF_EMBED_STAT

  void Add(const StoreStats& other) {
#define TF_EMBED_STAT(name, meaning) name += other.name;
    TF_EMBED_TABLE_STATS(TF_EMBED_STAT)
#undef TF_EMBED_STAT
  }
};

struct StoreStat {
  const char* name;
  const char* meaning;
  uint64_t StoreStats::*number;
};
inline constexpr StoreStat kStoreStats[] = {
#define TF_EMBED_STAT(name, meaning) {#name, meaning, &StoreStats::name},
    TF_EMBED_TABLE_STATS(TF_EMBED_STAT)
#undef TF_EMBED_STAT
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_STORE_STORE_STATS_H_
