// SPDX-License-Identifier: Apache-2.0
// Where a table in Redis is, and how it is reached.
#ifndef TF_EMBED_CC_REDIS_REDIS_OPTIONS_H_
#define TF_EMBED_CC_REDIS_REDIS_OPTIONS_H_

#include <cstdint>
#include <string>

namespace tf_embed {

struct RedisOptions {
  static constexpr uint32_t kMaxSlices = 4096;

  std::string host;  // "": the table is not in Redis
  int32_t port = 6379;
  std::string username;  // "": the default user
  std::string password;  // "": none is asked for
  int32_t database = 0;
  bool is_cluster = false;
  int32_t connect_timeout_ms = 1000;
  int32_t timeout_ms = 1000;  // of each write to the server and each read from it
  int32_t max_connections = 20;

  // Begins each key of the table, and of no other one.
  std::string prefix;
  // Into how many parts the table is cut. A part is on one server of a cluster.
  uint32_t slices = 1;
  uint32_t keys_per_command = 1024;
  // A row that was not used for so long is dropped by the server. 0: never.
  uint64_t ttl_milliseconds = 0;

  // The client library. "": the one beside the library that this is in.
  std::string library;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_REDIS_REDIS_OPTIONS_H_
