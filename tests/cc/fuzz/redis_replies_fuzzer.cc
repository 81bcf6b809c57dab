// SPDX-License-Identifier: Apache-2.0
// Replies of a Redis server. For each request of a store, the server sends the next bytes and
// closes the connection, without reading the request.
//
//     | whether rows expire : 1 | bytes of an answer : 2 | answer | ...
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cc/core/rules/rule_list.h"
#include "cc/stores/redis/redis_store.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

constexpr char kLibrary[] = "cc/stores/redis/client/libtf_embed_redis.so";
constexpr size_t kDim = 2;
constexpr size_t kMostBytes = size_t{1} << 20;

// A server of a single connection at a time. A connection gets an answer. The server ends with the
// process.
class Server {
 public:
  Server() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    Require(bind(socket_, any, size) == 0 && listen(socket_, 16) == 0 &&
                getsockname(socket_, any, &size) == 0,
            "a port is free");
    port_ = ntohs(address.sin_port);
    std::thread([this] { Serve(); }).detach();
  }

  int port() const { return port_; }
  void SetAnswers(std::string_view answers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    answers_ = std::string(answers);
  }

 private:
  std::string Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (answers_.size() < sizeof(uint16_t)) return "";
    const size_t bytes = Load<uint16_t>(answers_, 0);
    const std::string next = answers_.substr(sizeof(uint16_t), bytes);
    answers_.erase(0, sizeof(uint16_t) + bytes);
    return next;
  }

  void Serve() {
    for (;;) {
      const int client = accept(socket_, nullptr, nullptr);
      if (client < 0) continue;
      char asked[4096];
      if (recv(client, asked, sizeof(asked), 0) > 0) {
        const std::string answer = Next();
        (void)!send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
        shutdown(client, SHUT_WR);
        while (recv(client, asked, sizeof(asked), 0) > 0) {
        }
      }
      close(client);
    }
  }

  const int socket_;
  int port_ = 0;
  std::mutex mutex_;
  std::string answers_;
};

Server& TheServer() {
  static auto* const server = new Server;  // its thread never ends
  return *server;
}

const RuleSlots& TheRule() {
  static const RuleSlots rule = FusedSlots(RuleKind::kMomentum, kDim);
  return rule;
}

RedisMeta Meta(bool expires) {
  RedisMeta meta;
  meta.dim = kDim;
  meta.expires = expires;
  meta.generation = 1;
  meta.rule = meta.first_rule = TheRule();
  return meta;
}

// Runs all verbs that read replies. Returns whether all succeed.
bool UseStore(RedisStore* store) {
  const int64_t keys[] = {7, 8};
  float weights[2 * kDim] = {}, slots[2 * kDim] = {};
  bool exists[2];
  const KeyBatch batch{keys, 2, nullptr};
  const ExecContext serial = ExecContext::Serial();
  const RuleSlots rule = TheRule();
  if (!store->Find(serial, batch, DefaultRows(), weights, exists, {&rule, slots}).ok() ||
      !store->Contains(serial, batch, exists).ok() ||
      !store->InsertOrAssign(serial, batch, weights, {&rule, slots}).ok()) {
    return false;
  }
  size_t count;
  if (!store->Count(&count).ok()) return false;
  WholeRows rows(HostAllocator());
  for (ExportCursor cursor; !cursor.done;) {
    if (!store->maintenance()->ExportBatch(10, &cursor, &rows).ok()) return false;
  }
  return store->Clear(serial).ok();
}

std::string Bulk(std::string_view bytes) {
  return "$" + std::to_string(bytes.size()) + "\r\n" + std::string(bytes) + "\r\n";
}

}  // namespace

bool Read(std::string_view bytes) {
  if (bytes.empty() || bytes.size() > kMostBytes) return false;
  const bool expires = (bytes[0] & 1) != 0;
  TheServer().SetAnswers(bytes.substr(1));
  StoreOptions options;
  options.dim = kDim;
  options.policy.ttl_milliseconds = expires ? 1000 : 0;
  RedisOptions redis;
  redis.host = "127.0.0.1";
  redis.port = TheServer().port();
  redis.prefix = "p";
  redis.library = kLibrary;
  redis.connect_timeout_ms = redis.timeout_ms = 20000;
  std::unique_ptr<RedisStore> store;
  return RedisStore::Open(options, redis, &store).ok() && UseStore(store.get());
}

std::vector<std::string> Seeds() {
  const std::string nil = "$-1\r\n", none = "*0\r\n";
  std::vector<std::string> seeds;
  for (const bool expires : {false, true}) {
    const std::string meta = Bulk(Meta(expires).Encode());
    const RedisRowHeader header{5, 1, 0};
    const std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    const std::string row = Bulk(bytes + std::string(2 * kDim * sizeof(float), '\0'));
    const int64_t key = 7;
    const std::string field(reinterpret_cast<const char*>(&key), sizeof(key));
    const std::string pair = "*2\r\n" + row + nil;
    const std::string info = Bulk("run_id:1");  // before and after each scan
    const std::string found = "*2\r\n$1\r\n0\r\n", one = ":1\r\n";
    // Open, Find, Contains; InsertOrAssign, which reads and then writes.
    std::vector<std::string> answers = {meta, meta + pair, pair, meta + pair, none};
    if (expires) {
      const std::string names = found + "*1\r\n" + Bulk("{p:0}" + field);
      // Count; ExportBatch, which reads the meta again at its end; Clear.
      for (const std::string& answer : {info, names, info, meta, info, names, info, "*1\r\n" + row,
                                        meta, info, names, info, one}) {
        answers.push_back(answer);
      }
    } else {
      const std::string rows = found + "*2\r\n" + Bulk(field) + row;
      for (const std::string& answer : {one, meta, info, rows, info, meta, one}) {
        answers.push_back(answer);
      }
    }
    std::string seed(1, expires ? '\1' : '\0');
    for (const std::string& answer : answers) {
      const auto bytes = static_cast<uint16_t>(answer.size());
      seed += std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + answer;
    }
    seeds.push_back(seed);
  }
  return seeds;
}

}  // namespace tf_embed::fuzz
