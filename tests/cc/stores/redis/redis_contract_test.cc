// SPDX-License-Identifier: Apache-2.0
// The kinds of stores in Redis that the suite of the contract runs on.
#include "tests/cc/stores/redis/redis_process.h"
#include "tests/cc/support/contract_stores.h"

namespace tf_embed {

std::vector<StoreKind> ContractStores() {
  static RedisProcess* const server = new RedisProcess;  // ends with the process
  const auto create = [](const StoreOptions& options) -> std::unique_ptr<Store> {
    RedisOptions redis = server->Options();
    redis.slices = 3;
    redis.keys_per_command = 300;  // so that a batch is several commands
    return OpenStore(options, redis);
  };
  return {{"Redis", create}};
}

}  // namespace tf_embed
