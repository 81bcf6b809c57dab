// SPDX-License-Identifier: Apache-2.0
// A Redis server or cluster as the engine sees it: commands in batches, and their replies.
//
// The client library (client/redis_client.h) is opened on first use, with RTLD_LOCAL and
// RTLD_DEEPBIND: none of its symbols meet those of TensorFlow. Without it all other tables work.
#ifndef TF_EMBED_CC_REDIS_REDIS_SERVER_H_
#define TF_EMBED_CC_REDIS_REDIS_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/redis/client/redis_client.h"
#include "cc/redis/redis_options.h"

namespace tf_embed {

// Commands to send. What is added must live until they have run.
class RedisCommands {
 public:
  // Begins another one. `slot` as in TfEmbedRedisCommand.
  void Begin(int32_t slot) { commands_.push_back({parts_.size(), slot}); }
  void Add(std::string_view part) { parts_.push_back({part.data(), part.size()}); }

  size_t size() const { return commands_.size(); }

 private:
  friend class RedisServer;
  struct Command {
    size_t begin;  // of its parts
    int32_t slot;
  };
  std::vector<Command> commands_;
  std::vector<TfEmbedRedisBytes> parts_;
};

inline std::string_view ViewOf(const TfEmbedRedisBytes& bytes) { return {bytes.data, bytes.size}; }

// Thread-safe.
class RedisServer {
 public:
  // Connects. `table` is for messages.
  static Status Open(const std::string& table, const RedisOptions& options,
                     std::unique_ptr<RedisServer>* server);
  ~RedisServer();

  // Takes the reply of a command of that number. It is no error, and lives until the call returns.
  using Receive = std::function<Status(size_t index, const TfEmbedRedisReply& reply)>;

  // Sends all commands and waits for their replies. Each may run twice; see TfEmbedRedisApi::run.
  // The first error of a reply or of `receive` is returned when all have run.
  Status Run(const RedisCommands& commands, const Receive& receive) const;

  // Servers with rows; the commands of slot ~n go to server n.
  size_t num_servers() const { return api_->num_servers(client_); }
  int32_t SlotOf(const std::string& key) const { return api_->slot_of(key.data(), key.size()); }
  const std::string& address() const { return address_; }

 private:
  RedisServer(std::string table, const RedisOptions& options, const TfEmbedRedisApi* api)
      : table_(std::move(table)),
        address_(options.host + ":" + std::to_string(options.port)),
        api_(api) {}
  Status Failed(TfEmbedRedisCode code, const char* error) const;

  const std::string table_;
  const std::string address_;
  const TfEmbedRedisApi* const api_;
  TfEmbedRedisClient* client_ = nullptr;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_REDIS_REDIS_SERVER_H_
