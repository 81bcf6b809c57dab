// SPDX-License-Identifier: Apache-2.0
// The rows of one store in Redis: their layout, and the commands that read and write them.
//
// The value of a row:
//
//     | stamp : 8 | generation : 4 | 0 : 4 | weights | slots, of the compute type |
//
// The stamp is a random number, drawn by each write. A write succeeds only if the row still has the
// stamp that the writer read, so no process loses an update. A writer that finds its own stamp has
// already written, but lost the reply.
//
// The hash of a key selects its slice. Without expiry, a slice is one Redis hash with 8-byte keys
// as fields, so the server counts and clears rows without visiting each. Rows that expire must be
// separate keys, and a scan of the whole database then finds the store.
//
//     {prefix:slice}          field: key                         without expiry
//     {prefix:slice}key                                          with expiry
//     prefix:meta             RedisMeta
#ifndef TF_EMBED_CC_STORES_REDIS_REDIS_ROWS_H_
#define TF_EMBED_CC_STORES_REDIS_REDIS_ROWS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/stores/redis/redis_options.h"
#include "cc/stores/redis/redis_server.h"

namespace tf_embed {

// The fixed part of a row's value.
struct RedisRowHeader {
  uint64_t stamp = 0;
  uint32_t generation = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(RedisRowHeader) == 16);

// Thread-safe.
class RedisRows {
 public:
  // `store` is the name used in messages.
  static Status Open(const std::string& store, const RedisOptions& options,
                     std::unique_ptr<RedisRows>* rows);

  const RedisOptions& options() const { return options_; }
  const std::string& address() const { return server_->address(); }

  // Reads the metadata; "" if there is none.
  Status GetMeta(std::string* meta) const;
  // Replaces the metadata if it is still `expected`, "" for none. Otherwise sets `done` to false.
  Status SetMeta(const std::string& expected, const std::string& meta, bool* done) const;

  // Receives the value of key `i`; null data if it is absent. The header has been checked.
  using Visit = std::function<Status(size_t i, std::string_view value)>;

  // Reads rows, in any order. A non-null `meta` receives the metadata, before the rows. With
  // `uses`, expiring rows count as used now.
  Status Get(const int64_t* keys, size_t count, bool uses, std::string* meta,
             const Visit& visit) const;

  // A row to write. The value begins with a header that has a new stamp.
  struct Change {
    int64_t key;
    uint64_t expected;  // the stamp that was read; 0 for an absent row
    std::string_view value;
  };
  // Writes rows that still have the expected stamp, and returns the indices of the others. With
  // `uses`, expiring rows count as used now. REQUIRES: without it, all rows are expected to be
  // present.
  Status Exchange(const std::vector<Change>& changes, bool uses, std::vector<uint32_t>* lost) const;
  // Writes all rows unconditionally.
  Status Put(const std::vector<Change>& changes) const;

  Status Erase(const int64_t* keys, size_t count) const;
  Status Clear() const;
  Status Count(size_t* count) const;
  // Fails if a server with slices does not answer.
  Status CheckReachable() const;

  // The state of a scan. Rows present throughout the scan are visited once. A cursor is valid for
  // one process of one server, so a scan fails if a server is restarted or slots of a cluster move.
  struct Scan {
    size_t part = 0;       // a slice, or a server
    size_t servers = 0;    // 0 before it begins
    uint64_t version = 0;  // from LearnServers
    std::string cursor = "0";
    std::unordered_set<int64_t> seen;  // Redis returns some keys twice
    bool done = false;
  };
  // Visits about `most` rows, possibly none.
  Status ScanSome(size_t most, Scan* scan,
                  const std::function<Status(int64_t key, std::string_view value)>& visit) const;

  uint64_t NewStamp() const;

 private:
  RedisRows(std::string store, const RedisOptions& options, std::unique_ptr<RedisServer> server);

  // Calls add(slice, numbers, count) for pieces of a batch; the keys of a piece are in one slice.
  template <typename KeyOf, typename Add>
  void ForEachPiece(size_t count, const KeyOf& key_of, std::vector<uint32_t>* order,
                    const Add& add) const;
  size_t SliceOf(int64_t key) const;
  // "{prefix:slice}key".
  std::string RowName(size_t slice, int64_t key) const;
  Status CheckValue(int64_t key, std::string_view value) const;
  Status Unexpected(const char* command) const;
  // Both ask each server, so a scan calls them only in its first and last part.
  Status BeginScan(Scan* scan) const;
  Status EndScan(Scan* scan) const;
  // Adds the names of some expiring rows, possibly with repeats.
  Status ScanNames(size_t most, Scan* scan, std::vector<std::string>* names) const;
  // The number of rows that do not expire.
  Status CountFields(size_t* count) const;
  // The key in a name. Returns false if it is not a row of this store.
  bool KeyOfName(std::string_view name, int64_t* key) const;
  bool expires() const { return options_.ttl_milliseconds > 0; }

  const std::string store_;
  const RedisOptions options_;
  const std::unique_ptr<RedisServer> server_;
  const std::string meta_name_;
  const int32_t meta_slot_;
  const std::string ttl_;
  std::vector<std::string> slice_names_;
  std::vector<int32_t> slots_;  // of slices
  mutable std::atomic<uint64_t> next_stamp_;
  uint64_t stamp_salt_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_REDIS_ROWS_H_
