// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/paused_tables.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cc/core/table/table.h"

namespace tf_embed {

Status PausedTables::Take(std::vector<const Table*> tables) {
  std::sort(tables.begin(), tables.end(), Table::IsLockedBefore);
  std::vector<const Store*> stores;
  for (const Table* const table : tables) {
    // Before the locks of the stores, so that no verb is paused between two shards.
    tables_.emplace_back(*table->shards_mutex());
    stores.insert(stores.end(), table->stores(), table->stores() + table->num_shards());
  }
  return stores_.Take(stores.data(), stores.size(), Held::kPaused);
}

Status PausedTables::Take(const Table& table) {
  constexpr int kMaxTries = 10000;
  for (int tries = 1;; ++tries) {
    TF_EMBED_RETURN_IF_ERROR(Take(std::vector<const Table*>{&table}));
    // A step that changes the rule shard by shard may be between two shards. Let it go on, and look
    // again.
    if (tries == kMaxTries || table.HasRule(table.store(0)->rule())) return Status();
    Release();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void PausedTables::Release() {
  stores_.Release();
  tables_.clear();
}

WritingTables::WritingTables(std::vector<const Table*> tables) {
  std::sort(tables.begin(), tables.end(), Table::IsLockedBefore);
  tables.erase(std::unique(tables.begin(), tables.end()), tables.end());
  for (const Table* const table : tables) locks_.emplace_back(*table->shards_mutex());
}

}  // namespace tf_embed
