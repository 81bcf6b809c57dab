// SPDX-License-Identifier: Apache-2.0
// One connection to one server. Not thread-safe.
#ifndef TF_EMBED_CC_STORES_REDIS_CLIENT_CONNECTION_H_
#define TF_EMBED_CC_STORES_REDIS_CLIENT_CONNECTION_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/stores/redis/client/redis_client.h"
#include "hiredis/hiredis.h"

namespace tf_embed {
namespace redis {

struct Address {
  std::string host;
  int port = 0;

  std::string ToString() const { return host + ":" + std::to_string(port); }
  bool operator==(const Address& other) const { return host == other.host && port == other.port; }
};

// TfEmbedRedisServer with owned strings.
struct Settings {
  explicit Settings(const TfEmbedRedisServer& server);

  Address address;
  std::string username;
  std::string password;
  int database;
  int connect_timeout_ms;
  int timeout_ms;
  bool is_cluster;
  int max_connections;
};

// An error, with a message that names the server.
struct Failure {
  TfEmbedRedisCode code = TF_EMBED_REDIS_OK;
  std::string message;
  bool timed_out = false;  // the server is silent, so a retry would only wait again

  bool ok() const { return code == TF_EMBED_REDIS_OK; }
};

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

// Makes a reader refuse an array with more elements than any reply to this client has. hiredis
// allocates the number of elements that the server announces, before it has received any.
void LimitElements(redisReader* reader);

inline std::string TextOf(const redisReply& reply) { return std::string(reply.str, reply.len); }

class Connection {
 public:
  // Connects, authenticates and selects the database.
  static Failure Open(const Settings& settings, const Address& address,
                      std::unique_ptr<Connection>* connection);

  // Whether the server has closed the connection, as far as is known without a wait. REQUIRES: no
  // reply is outstanding.
  bool IsClosed() const;

  // Queues a command for Flush.
  void Append(const TfEmbedRedisCommand& command);
  Failure Flush();
  Failure Receive(Reply* reply);

  // Sends one command and receives its reply.
  Failure Ask(const std::vector<std::string>& words, Reply* reply);

 private:
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  Connection(const Settings& settings, const Address& address)
      : timeout_ms_(settings.timeout_ms), address_(address) {}
  // Sends a command of the handshake. An error reply means that the server refuses the client.
  Failure Introduce(const std::vector<std::string>& words);
  Failure Lost() const;

  const int timeout_ms_;
  const Address address_;
  std::unique_ptr<redisContext, FreeContext> context_;
  std::vector<const char*> parts_;  // of a command, in hiredis form
  std::vector<size_t> sizes_;
};

}  // namespace redis
}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_CLIENT_CONNECTION_H_
