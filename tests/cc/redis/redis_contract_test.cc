// SPDX-License-Identifier: Apache-2.0
// The kinds of tables in Redis that the suite of the contract runs on.
#include "tests/cc/redis/redis_process.h"
#include "tests/cc/support/contract_tables.h"

namespace tf_embed {

std::vector<TableKind> ContractTables() {
  static RedisProcess* const server = new RedisProcess;  // ends with the process
  const auto create = [](const TableOptions& options) -> std::unique_ptr<Table> {
    RedisOptions redis = server->Options();
    redis.slices = 3;
    redis.keys_per_command = 300;  // so that a batch is several commands
    return OpenTable(options, redis);
  };
  return {{"Redis", create}};
}

}  // namespace tf_embed
