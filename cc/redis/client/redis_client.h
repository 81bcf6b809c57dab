// SPDX-License-Identifier: Apache-2.0
// A client of a Redis server or cluster, by C functions: pipelines of commands over a pool of
// connections, which are made again when they are lost.
//
// It is a library of its own, because it links hiredis. The op library opens it on first use, apart
// from all symbols of TensorFlow (redis_library.h). So it knows nothing of the engine, and what
// goes through here is plain memory. No exception comes through.
#ifndef TF_EMBED_CC_REDIS_CLIENT_REDIS_CLIENT_H_
#define TF_EMBED_CC_REDIS_CLIENT_REDIS_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

enum { TF_EMBED_REDIS_VERSION = 1, TF_EMBED_REDIS_MAX_ERROR = 512 };

typedef struct TfEmbedRedisClient TfEmbedRedisClient;

// Where the server is. Strings are copied.
typedef struct {
  const char* host;
  int32_t port;
  const char* username;  // "": the default user
  const char* password;  // "": none is asked for
  int32_t database;      // 0 in a cluster
  int32_t connect_timeout_ms;
  int32_t timeout_ms;       // of each write and each read
  int32_t is_cluster;       // whether slots of keys are spread over several servers
  int32_t max_connections;  // to each server, at once; further callers wait
} TfEmbedRedisServer;

typedef struct {
  const char* data;
  size_t size;
} TfEmbedRedisBytes;

// A command and its arguments. In a cluster it goes to the server of `slot`, or with ~n to server n
// (num_servers).
typedef struct {
  const TfEmbedRedisBytes* parts;
  size_t num_parts;
  int32_t slot;
} TfEmbedRedisCommand;

typedef enum {
  TF_EMBED_REDIS_NIL = 0,
  TF_EMBED_REDIS_INTEGER = 1,
  TF_EMBED_REDIS_BYTES = 2,
  TF_EMBED_REDIS_ERROR = 3,  // the server's words are in `bytes`
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
  TF_EMBED_REDIS_LOST = 1,    // the server can't be reached, or is silent
  TF_EMBED_REDIS_REFUSED = 2  // it is there, and does not let the client in
} TfEmbedRedisCode;

// Takes the reply of command `index`. The reply lives until it returns.
typedef void (*TfEmbedRedisReceive)(void* receiver, size_t index, const TfEmbedRedisReply* reply);

// `error` has room for TF_EMBED_REDIS_MAX_ERROR bytes and gets a sentence, unless the code is OK.
typedef struct {
  int32_t version;

  // Makes a connection, so that a wrong address or password is told at once.
  TfEmbedRedisCode (*open)(const TfEmbedRedisServer* server, TfEmbedRedisClient** client,
                           char* error);
  // REQUIRES: no other call is under way.
  void (*close)(TfEmbedRedisClient* client);

  // Sends all commands, many at a time, and hands on a reply of each, in any order. If a connection
  // breaks, commands without a reply are sent once more; so each command must do the same when it
  // runs twice. Many threads may call at once.
  TfEmbedRedisCode (*run)(TfEmbedRedisClient* client, const TfEmbedRedisCommand* commands,
                          size_t count, void* receiver, TfEmbedRedisReceive receive, char* error);

  // Servers that have slots; 1 without a cluster.
  size_t (*num_servers)(TfEmbedRedisClient* client);

  // The slot of a key in a cluster: CRC16 of it, or of what is between its first braces.
  int32_t (*slot_of)(const char* key, size_t size);
} TfEmbedRedisApi;

// The only symbol that is looked up.
__attribute__((visibility("default"))) const TfEmbedRedisApi* TfEmbedRedisGetApi(void);

#if defined(__cplusplus)
}
#endif

#endif  // TF_EMBED_CC_REDIS_CLIENT_REDIS_CLIENT_H_
