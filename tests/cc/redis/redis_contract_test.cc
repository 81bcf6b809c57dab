// SPDX-License-Identifier: Apache-2.0
// The kinds of tables in Redis that the suite of the contract runs on.
#include "tests/cc/redis/redis_process.h"
#include "tests/cc/support/contract_tables.h"

namespace tf_embed {

std::vector<TableKind> ContractTables() {
  static RedisProcess* const server = new RedisProcess;  // ends with the process
  const auto kind = [](const char* name, uint32_t slices, uint64_t ttl_milliseconds) {
    return TableKind{name, [=](const TableOptions& given) -> std::unique_ptr<Table> {
                       TableOptions options = given;
                       options.policy.ttl_milliseconds = ttl_milliseconds;
                       RedisOptions redis = server->Options();
                       redis.slices = slices;
                       redis.keys_per_command = slices == 1 ? 1024 : 300;
                       return OpenTable(options, redis);
                     }};
  };
  return {kind("Redis", 1, 0), kind("RedisSlices", 3, 0)};
}

}  // namespace tf_embed
