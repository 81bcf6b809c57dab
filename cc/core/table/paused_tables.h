// SPDX-License-Identifier: Apache-2.0
// The two sides of a pause: callers that keep the writers of tables out, and callers that write to
// several shards or tables and must not be paused in between.
#ifndef TF_EMBED_CC_CORE_TABLE_PAUSED_TABLES_H_
#define TF_EMBED_CC_CORE_TABLE_PAUSED_TABLES_H_

#include <mutex>
#include <shared_mutex>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/status.h"
#include "cc/core/store/store_locks.h"

namespace tf_embed {

class Table;

// Keeps writers out of all shards of tables while it lives. Verbs of their stores run in its thread
// with Held::kPaused.
class PausedTables {
 public:
  explicit PausedTables(Allocator* allocator) : stores_(allocator) {}

  // REQUIRES: nothing is held; the tables are distinct.
  Status Take(std::vector<const Table*> tables);
  // Takes one table. If a step has set its rule on some shards only, first waits for it to reach
  // the others, at most a second.
  Status Take(const Table& table);
  void Release();

 private:
  std::vector<std::unique_lock<FairSharedMutex>> tables_;
  HeldStores stores_;
};

// Keeps pauses out of tables, possibly repeated, while it lives: for a caller that writes by verbs
// of their stores. Verbs of a table keep pauses out themselves, unless it is held (HeldTables).
// REQUIRES: the thread calls no such verb of these tables meanwhile, because a lock that a pause
// waits for can't be shared twice.
class WritingTables {
 public:
  explicit WritingTables(std::vector<const Table*> tables);

 private:
  std::vector<std::shared_lock<FairSharedMutex>> locks_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_PAUSED_TABLES_H_
