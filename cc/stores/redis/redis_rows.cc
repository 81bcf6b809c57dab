// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/redis/redis_rows.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "cc/core/base/hash.h"

namespace tf_embed {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows lie in the order of this machine");

constexpr size_t kKeyBytes = sizeof(int64_t);

// Rows requested by one scan command.
constexpr size_t kMostOfScan = 4096;
constexpr size_t kLeastOfScan = 16;

// ARGV: key, expected stamp, value, for each row. Returns the indices of rows not written.
constexpr char kExchangeFields[] = R"(
local lost = {}
for i = 1, #ARGV, 3 do
  local row = redis.call('HGET', KEYS[1], ARGV[i])
  local stamp = row and string.sub(row, 1, 8) or ''
  if stamp == ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  elseif stamp ~= string.sub(ARGV[i + 2], 1, 8) then
    lost[#lost + 1] = (i - 1) / 3
  end
end
return lost)";

// KEYS: rows. ARGV: the time to live, or '' to keep it; then the expected stamp and the value of
// each row.
constexpr char kExchangeKeys[] = R"(
local lost = {}
for i = 1, #KEYS do
  local stamp, value = ARGV[2 * i], ARGV[2 * i + 1]
  local present = redis.call('GETRANGE', KEYS[i], 0, 7)
  if present == stamp then
    if ARGV[1] == '' then
      redis.call('SET', KEYS[i], value, 'KEEPTTL')
    else
      redis.call('SET', KEYS[i], value, 'PX', ARGV[1])
    end
  elseif present ~= string.sub(value, 1, 8) then
    lost[#lost + 1] = i - 1
  end
end
return lost)";

constexpr char kSetMeta[] = R"(
local present = redis.call('GET', KEYS[1]) or ''
if present == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
elseif present ~= ARGV[2] then
  return 0
end
return 1)";

std::string_view BytesOf(const int64_t& key) {
  return {reinterpret_cast<const char*>(&key), kKeyBytes};
}
std::string_view StampOf(const uint64_t& stamp) {
  return stamp == 0 ? std::string_view()
                    : std::string_view(reinterpret_cast<const char*>(&stamp), sizeof(stamp));
}

// The rows of one command.
struct Piece {
  const uint32_t* numbers;
  size_t count;
};

// Escapes a name for SCAN's MATCH.
std::string Escaped(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (std::strchr("*?[]\\^", c) != nullptr && c != '\0') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace

Status RedisRows::Open(const std::string& store, const RedisOptions& options,
                       std::unique_ptr<RedisRows>* rows) {
  std::unique_ptr<RedisServer> server;
  TF_EMBED_RETURN_IF_ERROR(RedisServer::Open(store, options, &server));
  rows->reset(new RedisRows(store, options, std::move(server)));
  return Status();
}

RedisRows::RedisRows(std::string store, const RedisOptions& options,
                     std::unique_ptr<RedisServer> server)
    : store_(std::move(store)),
      options_(options),
      server_(std::move(server)),
      meta_name_(options.prefix + ":meta"),
      meta_slot_(server_->SlotOf(meta_name_)),
      ttl_(std::to_string(options.ttl_milliseconds)) {
  for (uint32_t slice = 0; slice < options.slices; ++slice) {
    slice_names_.push_back("{" + options.prefix + ":" + std::to_string(slice) + "}");
    slots_.push_back(server_->SlotOf(slice_names_.back()));
  }
  std::random_device random;
  stamp_salt_ = static_cast<uint64_t>(random()) << 32 | random();
  next_stamp_ = static_cast<uint64_t>(random()) << 32 | random();
}

uint64_t RedisRows::NewStamp() const {
  const uint64_t number = next_stamp_.fetch_add(kGolden64, std::memory_order_relaxed);
  // A child of fork() continues from the same number with the same salt.
  const uint64_t process = Mix64(static_cast<uint64_t>(getpid()));
  return Mix64(Mix64(number) ^ stamp_salt_ ^ process) | 1;  // never 0
}

size_t RedisRows::SliceOf(int64_t key) const {
  return options_.slices == 1 ? 0 : HashKey(key) % options_.slices;
}

std::string RedisRows::RowName(size_t slice, int64_t key) const {
  std::string name = slice_names_[slice];
  name += BytesOf(key);
  return name;
}

Status RedisRows::Unexpected(const char* command) const {
  return Status::DataLoss("Table '" + store_ + "' is in Redis. The server at " +
                          server_->address() + " gave an unexpected reply to " + command + ".");
}

Status RedisRows::CheckValue(int64_t key, std::string_view value) const {
  if (value.size() >= sizeof(RedisRowHeader)) return Status();
  return Status::DataLoss("Table '" + store_ + "' is in Redis, and the server at " +
                          server_->address() + " has a value of " + std::to_string(value.size()) +
                          " bytes for key " + std::to_string(key) + ", which is no row.");
}

template <typename KeyOf, typename Add>
void RedisRows::ForEachPiece(size_t count, const KeyOf& key_of, std::vector<uint32_t>* order,
                             const Add& add) const {
  std::vector<size_t> ends(options_.slices, 0);
  order->resize(count);
  for (size_t i = 0; i < count; ++i) ++ends[SliceOf(key_of(i))];
  for (size_t slice = 1; slice < ends.size(); ++slice) ends[slice] += ends[slice - 1];
  for (size_t i = count; i-- > 0;) {
    (*order)[--ends[SliceOf(key_of(i))]] = static_cast<uint32_t>(i);
  }
  for (size_t begin = 0; begin < count;) {
    const size_t slice = SliceOf(key_of((*order)[begin]));
    const size_t slice_end = slice + 1 < ends.size() ? ends[slice + 1] : count;
    const size_t end = std::min<size_t>(slice_end, begin + options_.keys_per_command);
    add(slice, order->data() + begin, end - begin);
    begin = end;
  }
}

Status RedisRows::GetMeta(std::string* meta) const {
  return Get(nullptr, 0, false, meta, [](size_t, std::string_view) { return Status(); });
}

Status RedisRows::SetMeta(const std::string& expected, const std::string& meta, bool* done) const {
  RedisCommands commands;
  commands.Begin(meta_slot_, {"EVAL", kSetMeta, "1", meta_name_, expected, meta});
  return server_->Run(commands, [&](size_t, const TfEmbedRedisReply& reply) {
    *done = reply.integer == 1;
    return Status();
  });
}

Status RedisRows::Get(const int64_t* keys, size_t count, bool uses, std::string* meta,
                      const Visit& visit) const {
  RedisCommands commands;
  std::vector<uint32_t> order;
  std::vector<std::string> names;  // names of expiring rows
  std::vector<Piece> pieces;
  if (meta != nullptr) {
    commands.Begin(meta_slot_, {"GET", meta_name_});
    pieces.push_back({nullptr, 0});
  }
  if (expires()) names.reserve(count);
  const auto key_of = [keys](size_t i) { return keys[i]; };
  ForEachPiece(count, key_of, &order, [&](size_t slice, const uint32_t* numbers, size_t size) {
    if (!expires()) {
      commands.Begin(slots_[slice], {"HMGET", slice_names_[slice]});
      for (size_t i = 0; i < size; ++i) commands.Add(BytesOf(keys[numbers[i]]));
      pieces.push_back({numbers, size});
      return;
    }
    if (!uses) {
      commands.Begin(slots_[slice], {"MGET"});
      pieces.push_back({numbers, size});
    }
    for (size_t i = 0; i < size; ++i) {
      names.push_back(RowName(slice, keys[numbers[i]]));
      if (uses) {
        commands.Begin(slots_[slice], {"GETEX", names.back(), "PX", ttl_});
        pieces.push_back({numbers + i, 1});
      } else {
        commands.Add(names.back());
      }
    }
  });
  const auto take = [&](const uint32_t number, const TfEmbedRedisReply& reply) {
    if (reply.type == TF_EMBED_REDIS_NIL) return visit(number, std::string_view());
    if (reply.type != TF_EMBED_REDIS_BYTES) return Unexpected("GET");
    TF_EMBED_RETURN_IF_ERROR(CheckValue(keys[number], ViewOf(reply.bytes)));
    return visit(number, ViewOf(reply.bytes));
  };
  return server_->Run(commands, [&](size_t index, const TfEmbedRedisReply& reply) {
    const Piece& piece = pieces[index];
    if (piece.numbers == nullptr) {
      meta->assign(ViewOf(reply.bytes));
      return Status();
    }
    if (expires() && uses) return take(piece.numbers[0], reply);
    if (reply.type != TF_EMBED_REDIS_ARRAY || reply.num_elements != piece.count) {
      return Unexpected("HMGET");
    }
    for (size_t i = 0; i < piece.count; ++i) {
      TF_EMBED_RETURN_IF_ERROR(take(piece.numbers[i], reply.elements[i]));
    }
    return Status();
  });
}

Status RedisRows::Exchange(const std::vector<Change>& changes, bool uses,
                           std::vector<uint32_t>* lost) const {
  lost->clear();
  RedisCommands commands;
  std::vector<uint32_t> order;
  std::vector<Piece> pieces;
  std::vector<std::string> names;
  std::vector<std::string> counts;
  if (expires()) names.reserve(changes.size());
  counts.reserve(changes.size());
  const auto key_of = [&](size_t i) { return changes[i].key; };
  ForEachPiece(
      changes.size(), key_of, &order, [&](size_t slice, const uint32_t* numbers, size_t size) {
        pieces.push_back({numbers, size});
        if (!expires()) {
          commands.Begin(slots_[slice], {"EVAL", kExchangeFields, "1", slice_names_[slice]});
        } else {
          counts.push_back(std::to_string(size));
          commands.Begin(slots_[slice], {"EVAL", kExchangeKeys, counts.back()});
          for (size_t i = 0; i < size; ++i) {
            names.push_back(RowName(slice, changes[numbers[i]].key));
            commands.Add(names.back());
          }
          commands.Add(uses ? std::string_view(ttl_) : std::string_view());
        }
        for (size_t i = 0; i < size; ++i) {
          const Change& change = changes[numbers[i]];
          if (!expires()) commands.Add(BytesOf(change.key));
          commands.Add({StampOf(change.expected), change.value});
        }
      });
  return server_->Run(commands, [&](size_t index, const TfEmbedRedisReply& reply) {
    if (reply.type != TF_EMBED_REDIS_ARRAY) return Unexpected("EVAL");
    const Piece& piece = pieces[index];
    for (size_t i = 0; i < reply.num_elements; ++i) {
      const TfEmbedRedisReply& number = reply.elements[i];
      if (number.type != TF_EMBED_REDIS_INTEGER || number.integer < 0 ||
          static_cast<uint64_t>(number.integer) >= piece.count) {
        return Unexpected("EVAL");
      }
      lost->push_back(piece.numbers[number.integer]);
    }
    return Status();
  });
}

Status RedisRows::Put(const std::vector<Change>& changes) const {
  RedisCommands commands;
  std::vector<uint32_t> order;
  std::vector<std::string> names;
  if (expires()) names.reserve(changes.size());
  const auto key_of = [&](size_t i) { return changes[i].key; };
  ForEachPiece(changes.size(), key_of, &order,
               [&](size_t slice, const uint32_t* numbers, size_t size) {
                 if (!expires()) commands.Begin(slots_[slice], {"HSET", slice_names_[slice]});
                 for (size_t i = 0; i < size; ++i) {
                   const Change& change = changes[numbers[i]];
                   if (!expires()) {
                     commands.Add({BytesOf(change.key), change.value});
                     continue;
                   }
                   names.push_back(RowName(slice, change.key));
                   commands.Begin(slots_[slice], {"SET", names.back(), change.value, "PX", ttl_});
                 }
               });
  return server_->Run(commands, [](size_t, const TfEmbedRedisReply&) { return Status(); });
}

Status RedisRows::Erase(const int64_t* keys, size_t count) const {
  RedisCommands commands;
  std::vector<uint32_t> order;
  std::vector<std::string> names;
  if (expires()) names.reserve(count);
  const auto key_of = [keys](size_t i) { return keys[i]; };
  ForEachPiece(count, key_of, &order, [&](size_t slice, const uint32_t* numbers, size_t size) {
    commands.Begin(slots_[slice], {expires() ? "UNLINK" : "HDEL"});
    if (!expires()) commands.Add(slice_names_[slice]);
    for (size_t i = 0; i < size; ++i) {
      const int64_t& key = keys[numbers[i]];
      if (expires()) names.push_back(RowName(slice, key));
      commands.Add(expires() ? std::string_view(names.back()) : BytesOf(key));
    }
  });
  return server_->Run(commands, [](size_t, const TfEmbedRedisReply&) { return Status(); });
}

Status RedisRows::Clear() const {
  const auto ignore = [](size_t, const TfEmbedRedisReply&) { return Status(); };
  if (!expires()) {
    RedisCommands commands;
    for (size_t slice = 0; slice < slice_names_.size(); ++slice) {
      commands.Begin(slots_[slice], {"UNLINK", slice_names_[slice]});
    }
    return server_->Run(commands, ignore);
  }
  for (Scan scan; !scan.done;) {
    std::vector<std::string> names;
    TF_EMBED_RETURN_IF_ERROR(ScanNames(kMostOfScan, &scan, &names));
    std::vector<int64_t> keys(names.size());
    for (size_t i = 0; i < names.size(); ++i) KeyOfName(names[i], &keys[i]);
    TF_EMBED_RETURN_IF_ERROR(Erase(keys.data(), keys.size()));
  }
  return Status();
}

Status RedisRows::CountFields(size_t* count) const {
  *count = 0;
  RedisCommands commands;
  for (size_t slice = 0; slice < slice_names_.size(); ++slice) {
    commands.Begin(slots_[slice], {"HLEN", slice_names_[slice]});
  }
  return server_->Run(commands, [&](size_t, const TfEmbedRedisReply& reply) {
    if (reply.type != TF_EMBED_REDIS_INTEGER) return Unexpected("HLEN");
    *count += static_cast<size_t>(reply.integer);
    return Status();
  });
}

Status RedisRows::CheckReachable() const {
  size_t fields;  // 0 if rows expire, because slices are then no hashes
  return CountFields(&fields);
}

Status RedisRows::Count(size_t* count) const {
  if (!expires()) return CountFields(count);
  *count = 0;
  for (Scan scan; !scan.done;) {
    std::vector<std::string> names;
    TF_EMBED_RETURN_IF_ERROR(ScanNames(kMostOfScan, &scan, &names));
    for (const std::string& name : names) {
      int64_t key;
      KeyOfName(name, &key);
      *count += scan.seen.insert(key).second ? 1 : 0;
    }
  }
  return Status();
}

bool RedisRows::KeyOfName(std::string_view name, int64_t* key) const {
  if (name.size() < kKeyBytes) return false;
  std::memcpy(key, name.data() + name.size() - kKeyBytes, kKeyBytes);
  return name.substr(0, name.size() - kKeyBytes) == slice_names_[SliceOf(*key)];
}

Status RedisRows::BeginScan(Scan* scan) const {
  // Servers may have joined since the count.
  return server_->LearnServers(&scan->servers, &scan->version);
}

Status RedisRows::EndScan(Scan* scan) const {
  scan->done = true;
  size_t servers;
  uint64_t version;
  TF_EMBED_RETURN_IF_ERROR(server_->LearnServers(&servers, &version));
  if (version == scan->version) return Status();
  return Status::Aborted("Table '" + store_ +
                         "' is in Redis. Slots of the cluster moved to other servers, or a server "
                         "was restarted, while all rows were read, so some may be missing. Try "
                         "again.");
}

Status RedisRows::ScanNames(size_t most, Scan* scan, std::vector<std::string>* names) const {
  if (scan->servers == 0) TF_EMBED_RETURN_IF_ERROR(BeginScan(scan));
  const std::string pattern = "{" + Escaped(options_.prefix) + ":*";
  const std::string count = std::to_string(most);
  const std::string cursor = scan->cursor;
  RedisCommands commands;
  commands.Begin(~static_cast<int32_t>(scan->part),
                 {"SCAN", cursor, "MATCH", pattern, "COUNT", count});
  TF_EMBED_RETURN_IF_ERROR(server_->Run(commands, [&](size_t, const TfEmbedRedisReply& reply) {
    if (reply.type != TF_EMBED_REDIS_ARRAY || reply.num_elements != 2) {
      return Unexpected("SCAN");
    }
    scan->cursor = ViewOf(reply.elements[0].bytes);
    const TfEmbedRedisReply& found = reply.elements[1];
    for (size_t i = 0; i < found.num_elements; ++i) {
      int64_t key;
      const std::string_view name = ViewOf(found.elements[i].bytes);
      if (KeyOfName(name, &key)) names->emplace_back(name);
    }
    return Status();
  }));
  return scan->cursor != "0" || ++scan->part < scan->servers ? Status() : EndScan(scan);
}

Status RedisRows::ScanSome(
    size_t most, Scan* scan,
    const std::function<Status(int64_t key, std::string_view value)>& visit) const {
  most = std::clamp(most, kLeastOfScan, kMostOfScan);
  if (expires()) {
    std::vector<std::string> names;
    TF_EMBED_RETURN_IF_ERROR(ScanNames(most, scan, &names));
    std::vector<int64_t> keys;
    for (const std::string& name : names) {
      int64_t key;
      KeyOfName(name, &key);
      if (scan->seen.insert(key).second) keys.push_back(key);
    }
    return Get(keys.data(), keys.size(), false, nullptr, [&](size_t i, std::string_view value) {
      return value.data() == nullptr ? Status() : visit(keys[i], value);  // it may have expired
    });
  }
  if (scan->servers == 0) TF_EMBED_RETURN_IF_ERROR(BeginScan(scan));
  const std::string cursor = scan->cursor;
  const std::string count = std::to_string(most);
  RedisCommands commands;
  commands.Begin(slots_[scan->part], {"HSCAN", slice_names_[scan->part], cursor, "COUNT", count});
  TF_EMBED_RETURN_IF_ERROR(server_->Run(commands, [&](size_t, const TfEmbedRedisReply& reply) {
    if (reply.type != TF_EMBED_REDIS_ARRAY || reply.num_elements != 2) return Unexpected("HSCAN");
    scan->cursor = ViewOf(reply.elements[0].bytes);
    const TfEmbedRedisReply& found = reply.elements[1];
    for (size_t i = 0; i + 1 < found.num_elements; i += 2) {
      int64_t key;
      const std::string_view field = ViewOf(found.elements[i].bytes);
      if (field.size() != kKeyBytes) return Unexpected("HSCAN");
      std::memcpy(&key, field.data(), kKeyBytes);
      if (!scan->seen.insert(key).second) continue;
      const std::string_view value = ViewOf(found.elements[i + 1].bytes);
      TF_EMBED_RETURN_IF_ERROR(CheckValue(key, value));
      TF_EMBED_RETURN_IF_ERROR(visit(key, value));
    }
    return Status();
  }));
  return scan->cursor != "0" || ++scan->part < slice_names_.size() ? Status() : EndScan(scan);
}

}  // namespace tf_embed
