// SPDX-License-Identifier: Apache-2.0
// A Redis server or cluster, for the engine: batches of commands and their replies.
//
// Opens the client library (client/redis_client.h) on first use, with RTLD_LOCAL and RTLD_DEEPBIND,
// so that its symbols never clash with TensorFlow's. If it is missing, all other stores still work.
#ifndef TF_EMBED_CC_STORES_REDIS_REDIS_SERVER_H_
#define TF_EMBED_CC_STORES_REDIS_REDIS_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/stores/redis/client/redis_client.h"
#include "cc/stores/redis/redis_options.h"

namespace tf_embed {

// Commands to send. REQUIRES: added strings outlive their run.
class RedisCommands {
 public:
  // Begins a command. `slot` as in TfEmbedRedisCommand.
  void Begin(int32_t slot, std::initializer_list<std::string_view> parts = {}) {
    commands_.push_back({parts_.size(), slot});
    Add(parts);
  }
  void Add(std::string_view part) { parts_.push_back({part.data(), part.size()}); }
  void Add(std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) Add(part);
  }

  size_t size() const { return commands_.size(); }

 private:
  friend class RedisServer;
  struct Command {
    size_t begin;  // index of its first part
    int32_t slot;
  };
  std::vector<Command> commands_;
  std::vector<TfEmbedRedisBytes> parts_;
};

inline std::string_view ViewOf(const TfEmbedRedisBytes& bytes) { return {bytes.data, bytes.size}; }

// Thread-safe.
class RedisServer {
 public:
  // Connects. `store` is the name used in messages.
  static Status Open(const std::string& store, const RedisOptions& options,
                     std::unique_ptr<RedisServer>* server);
  ~RedisServer();

  // Receives the reply of command `index`, never an error reply. The reply is valid during the
  // call.
  using Receive = std::function<Status(size_t index, const TfEmbedRedisReply& reply)>;

  // Sends all commands and waits for their replies. Each may run twice; see TfEmbedRedisApi::run.
  // Returns the first error of a reply or of `receive`, after all have run.
  Status Run(const RedisCommands& commands, const Receive& receive) const;

  // Asks for the number of servers with slots, and for a version, which changes if slots move
  // between servers or a server is restarted. kAborted while slots are moving. Commands with slot
  // ~n go to server n.
  Status LearnServers(size_t* servers, uint64_t* version) const;
  int32_t SlotOf(const std::string& key) const { return api_->slot_of(key.data(), key.size()); }
  const std::string& address() const { return address_; }

 private:
  RedisServer(std::string store, const RedisOptions& options, const TfEmbedRedisApi* api)
      : store_(std::move(store)),
        address_(options.host + ":" + std::to_string(options.port)),
        api_(api) {}
  Status Failed(TfEmbedRedisCode code, const char* error) const;

  const std::string store_;
  const std::string address_;
  const TfEmbedRedisApi* const api_;
  TfEmbedRedisClient* client_ = nullptr;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_REDIS_SERVER_H_
