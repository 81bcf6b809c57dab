// SPDX-License-Identifier: Apache-2.0
// A C interface to a client of a Redis server or cluster: pipelined commands over a pool of
// connections.
//
// Pipelines. run() sends all commands and passes on one reply each. It works in rounds, and a round
// sends each pending command once. The servers of a cluster work in parallel, each over one
// connection. Each gets a window of up to 64 commands, or about 4 MiB, before its replies are read:
// the server holds unread replies in its memory.
//
// Connections. Each server has a pool of `max_connections`; further callers wait. A caller takes
// its connections in the order of server numbers, so callers can't deadlock. A child of fork()
// makes its own connections.
//
// Clusters. The client asks for the slot map (CLUSTER SLOTS) when it opens, in learn_servers(), and
// when a connection breaks. MOVED corrects the map, and the command goes to the new server in the
// next round. ASK leaves the map as it is, and the command goes once to the server named in it,
// after ASKING.
//
// Waits. A server that answers LOADING, TRYAGAIN, CLUSTERDOWN or MASTERDOWN is asked again every
// 10 ms, until `timeout_ms` have passed since the call began. After that the call is LOST.
//
// Failures. `connect_timeout_ms` limits a connect, and `timeout_ms` each write and each read. A
// server that exceeds `timeout_ms` is LOST without a retry, which would only wait again. If a
// connection breaks otherwise, the commands without a reply are sent once more, because a pooled
// connection may have broken long ago. A second break is LOST. Other error replies of the server go
// to the caller as replies.
//
// This is a separate library, because it links hiredis. The op library opens it on first use,
// isolated from TensorFlow's symbols (redis_library.h). So it does not depend on the engine, and
// its interface passes plain memory. No exception leaves it.
#ifndef TF_EMBED_CC_STORES_REDIS_CLIENT_REDIS_CLIENT_H_
#define TF_EMBED_CC_STORES_REDIS_CLIENT_REDIS_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

enum { TF_EMBED_REDIS_VERSION = 2, TF_EMBED_REDIS_MAX_ERROR = 512 };

typedef struct TfEmbedRedisClient TfEmbedRedisClient;

// The server's address and connection settings. Strings are copied.
typedef struct {
  const char* host;
  int32_t port;
  const char* username;  // "": the default user
  const char* password;  // "": no password
  int32_t database;      // 0 in a cluster
  int32_t connect_timeout_ms;
  int32_t timeout_ms;       // for each write and each read
  int32_t is_cluster;       // whether key slots are spread over several servers
  int32_t max_connections;  // limit for each server; further callers wait
} TfEmbedRedisServer;

typedef struct {
  const char* data;
  size_t size;
} TfEmbedRedisBytes;

// A command with its arguments. In a cluster it goes to the server of `slot`, or to server n if the
// slot is ~n (learn_servers).
typedef struct {
  const TfEmbedRedisBytes* parts;
  size_t num_parts;
  int32_t slot;
} TfEmbedRedisCommand;

typedef enum {
  TF_EMBED_REDIS_NIL = 0,
  TF_EMBED_REDIS_INTEGER = 1,
  TF_EMBED_REDIS_BYTES = 2,
  TF_EMBED_REDIS_ERROR = 3,  // `bytes` has the server's message
  TF_EMBED_REDIS_ARRAY = 4
} TfEmbedRedisType;

typedef struct TfEmbedRedisReply {
  int32_t type;
  int64_t integer;
  TfEmbedRedisBytes bytes;
  const struct TfEmbedRedisReply* elements;
  size_t num_elements;
} TfEmbedRedisReply;

typedef enum {
  TF_EMBED_REDIS_OK = 0,
  TF_EMBED_REDIS_LOST = 1,      // the server is unreachable or silent
  TF_EMBED_REDIS_REFUSED = 2,   // the server rejects the client
  TF_EMBED_REDIS_NO_MEMORY = 3  // of this process
} TfEmbedRedisCode;

// Receives the reply of command `index`. The reply is valid during the call.
typedef void (*TfEmbedRedisReceive)(void* receiver, size_t index, const TfEmbedRedisReply* reply);

// `error` has room for TF_EMBED_REDIS_MAX_ERROR bytes. It receives a message unless the code is OK.
typedef struct {
  int32_t version;

  // Connects once, so that a wrong address or password fails at once.
  TfEmbedRedisCode (*open)(const TfEmbedRedisServer* server, TfEmbedRedisClient** client,
                           char* error);
  // REQUIRES: no other call is running.
  void (*close)(TfEmbedRedisClient* client);

  // Sends all commands in batches, and passes on one reply each, in any order. If a connection
  // breaks, commands without a reply are sent once more. So commands must be idempotent.
  // Thread-safe.
  TfEmbedRedisCode (*run)(TfEmbedRedisClient* client, const TfEmbedRedisCommand* commands,
                          size_t count, void* receiver, TfEmbedRedisReceive receive, char* error);

  // Asks the server, or a cluster and each of its servers with slots. `servers` receives the number
  // of servers with slots. `version` receives a number that changes if slots move or a server is
  // restarted. Fails with LOST while slots are moving, because keys move before their slot. The
  // restart of a server that refuses INFO goes unnoticed. Thread-safe.
  TfEmbedRedisCode (*learn_servers)(TfEmbedRedisClient* client, size_t* servers, uint64_t* version,
                                    char* error);

  // The cluster slot of a key: the CRC16 of the key, or of the part in its first braces.
  int32_t (*slot_of)(const char* key, size_t size);
} TfEmbedRedisApi;

// The only exported symbol.
__attribute__((visibility("default"))) const TfEmbedRedisApi* TfEmbedRedisGetApi(void);

#if defined(__cplusplus)
}
#endif

#endif  // TF_EMBED_CC_STORES_REDIS_CLIENT_REDIS_CLIENT_H_
