// SPDX-License-Identifier: Apache-2.0
// The rows of one table in Redis: how they lie there, and the commands that read and write them.
//
// A row is one value:
//
//     | stamp : 8 | generation : 4 | 0 : 4 | weights | slots, of the compute type |
//
// The stamp is a random number that each write draws. A write goes through only if the row still
// has the stamp that its writer has read, so no update is lost, whichever process it came from. A
// writer that finds its own stamp has written before, and lost the answer.
//
// A key is in the slice of its hash. Without expiry a slice is one hash, with keys of 8 bytes for
// fields: the server then counts rows, and clears them, without looking at each. A row that expires
// by itself must be a key of its own, and a table is then found by a scan of the whole database.
//
//     {prefix:slice}          field: key                         without expiry
//     {prefix:slice}key                                          with expiry
//     prefix:meta             RedisMeta
#ifndef TF_EMBED_CC_REDIS_REDIS_ROWS_H_
#define TF_EMBED_CC_REDIS_REDIS_ROWS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/redis/redis_options.h"
#include "cc/redis/redis_server.h"

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
  // `table` is for messages.
  static Status Open(const std::string& table, const RedisOptions& options,
                     std::unique_ptr<RedisRows>* rows);

  const RedisOptions& options() const { return options_; }
  const std::string& address() const { return server_->address(); }

  // Reads the meta; "" if there is none.
  Status GetMeta(std::string* meta) const;
  // Replaces the meta if it is still `expected`, "" for none. False: it is another one.
  Status SetMeta(const std::string& expected, const std::string& meta, bool* done) const;

  // Takes the value of key `i`; null data: there is none. Values are checked for their header.
  using Visit = std::function<Status(size_t i, std::string_view value)>;

  // Reads rows, in any order. With `meta`, that too, before the rows. `uses`: they count as used
  // now, if rows expire.
  Status Get(const int64_t* keys, size_t count, bool uses, std::string* meta,
             const Visit& visit) const;

  // A row to write. The value begins with a header of a new stamp.
  struct Change {
    int64_t key;
    uint64_t expected;  // the stamp that was read; 0 for no row
    std::string_view value;
  };
  // Writes rows whose stamp is the expected one, and gives the numbers of the others.
  Status Exchange(const std::vector<Change>& changes, std::vector<uint32_t>* lost) const;
  // Writes all.
  Status Put(const std::vector<Change>& changes) const;

  Status Erase(const int64_t* keys, size_t count) const;
  Status Clear() const;
  Status Count(size_t* count) const;

  // A scan of all rows. Rows that are there from its begin to its end come once.
  struct Scan {
    size_t part = 0;  // a slice, or a server
    std::string cursor = "0";
    std::unordered_set<int64_t> seen;  // Redis gives some twice
    bool done = false;
  };
  // Visits about `most` rows, or none.
  Status ScanSome(size_t most, Scan* scan,
                  const std::function<Status(int64_t key, std::string_view value)>& visit) const;

  uint64_t NewStamp() const;

 private:
  RedisRows(std::string table, const RedisOptions& options, std::unique_ptr<RedisServer> server);

  // Calls add(slice, numbers, count) for pieces of a batch, each of keys of one slice.
  template <typename KeyOf, typename Add>
  void ForEachPiece(size_t count, const KeyOf& key_of, std::vector<uint32_t>* order,
                    const Add& add) const;
  size_t SliceOf(int64_t key) const;
  // "{prefix:slice}key".
  std::string RowName(size_t slice, int64_t key) const;
  Status CheckValue(int64_t key, std::string_view value) const;
  Status Unexpected(const char* command) const;
  // Adds the names of some rows that expire. Some may come twice.
  Status ScanNames(size_t most, Scan* scan, std::vector<std::string>* names) const;
  // The key in a name. False: it is not of a row of this table.
  bool KeyOfName(std::string_view name, int64_t* key) const;
  bool expires() const { return options_.ttl_milliseconds > 0; }

  const std::string table_;
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

#endif  // TF_EMBED_CC_REDIS_REDIS_ROWS_H_
