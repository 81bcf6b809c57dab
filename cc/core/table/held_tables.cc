// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/held_tables.h"

#include "cc/core/table/table.h"

namespace tf_embed {

Status HeldTables::Take(const std::vector<const Table*>& tables, Held held) {
  if (held != Held::kContent) writing_.emplace(tables);
  std::vector<const Store*> stores;
  for (const Table* const table : tables) {
    stores.insert(stores.end(), table->stores(), table->stores() + table->num_shards());
  }
  return stores_.Take(stores.data(), stores.size(), held);
}

}  // namespace tf_embed
