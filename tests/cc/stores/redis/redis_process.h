// SPDX-License-Identifier: Apache-2.0
// Redis servers that a test starts and stops, on free ports of this machine.
#ifndef TF_EMBED_TESTS_CC_STORES_REDIS_REDIS_PROCESS_H_
#define TF_EMBED_TESTS_CC_STORES_REDIS_REDIS_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/stores/redis/redis_store.h"

namespace tf_embed {

// A free port. Another process may take it before it is used.
int FreePort();

class RedisProcess {
 public:
  // Starts redis-server with `arguments`, and waits until it answers. The server ends with the
  // test.
  explicit RedisProcess(std::vector<std::string> arguments = {});
  ~RedisProcess() { Kill(); }

  int port() const { return port_; }
  // Like kill -9.
  void Kill();
  // Starts the server again on the same port, empty.
  void Restart();
  // Stops the server, or lets it continue.
  void Pause(bool paused);

  // Options of a store on this server, with a name that no other store of this process has.
  RedisOptions Options() const;

 private:
  void Start();

  const std::vector<std::string> arguments_;
  int port_ = 0;
  pid_t pid_ = 0;
};

// A store of a float type.
std::unique_ptr<RedisStore> OpenStore(const StoreOptions& options, const RedisOptions& redis);

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_STORES_REDIS_REDIS_PROCESS_H_
