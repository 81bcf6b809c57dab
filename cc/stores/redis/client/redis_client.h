// SPDX-License-Identifier: Apache-2.0
// A C interface to a client of a Redis server or cluster: pipelined commands over a pool of
// connections, with reconnects.
//
// A library of its own, because it links hiredis. The op library opens it on first use, isolated
// from TensorFlow's symbols (redis_library.h). So it does not depend on the engine, and its
// interface passes plain memory. No exception leaves it.
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
  // of these, `version` a number that is another one if slots have moved or a server was restarted.
  // Keys move before their slot, so LOST if slots are moving. A server that refuses INFO does not
  // tell that it was restarted. Thread-safe.
  TfEmbedRedisCode (*learn_servers)(TfEmbedRedisClient* client, size_t* servers, uint64_t* version,
                                    char* error);

  // The cluster slot of a key: the CRC16 of the key, or of the text in its first braces.
  int32_t (*slot_of)(const char* key, size_t size);
} TfEmbedRedisApi;

// The only exported symbol.
__attribute__((visibility("default"))) const TfEmbedRedisApi* TfEmbedRedisGetApi(void);

#if defined(__cplusplus)
}
#endif

#endif  // TF_EMBED_CC_STORES_REDIS_CLIENT_REDIS_CLIENT_H_
