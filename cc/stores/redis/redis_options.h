// SPDX-License-Identifier: Apache-2.0
// The location of a store in Redis, and its connection settings.
#ifndef TF_EMBED_CC_STORES_REDIS_REDIS_OPTIONS_H_
#define TF_EMBED_CC_STORES_REDIS_REDIS_OPTIONS_H_

#include <cstdint>
#include <string>

namespace tf_embed {

struct RedisOptions {
  static constexpr uint32_t kMaxSlices = 4096;

  std::string host;  // "": the store is not in Redis
  int32_t port = 6379;
  std::string username;  // "": the default user
  std::string password;  // "": no password
  int32_t database = 0;
  bool is_cluster = false;
  int32_t connect_timeout_ms = 1000;
  int32_t timeout_ms = 1000;  // for each write to the server and each read from it
  int32_t max_connections = 20;

  // Unique prefix of all keys of the store.
  std::string prefix;
  // Number of slices. Each slice is on one server of a cluster.
  uint32_t slices = 1;
  uint32_t keys_per_command = 1024;
  // Time without use after which the server drops a row. 0: never.
  uint64_t ttl_milliseconds = 0;

  // Path of the client library. "": next to the library with this code.
  std::string library;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_REDIS_OPTIONS_H_
