// SPDX-License-Identifier: Apache-2.0
// Several tables that one thread holds for verbs whose launches on a device wait for each other
// (launch_queue.h), or that run on the threads of a pool, which may wait for no lock of a table
// (lock_order.h):
//
//     HeldTables held(allocator);
//     TF_EMBED_RETURN_IF_ERROR(held.Take(tables, Held::kWriting));
//     context.parallel_for(tables.size(), cost, ...);  // Table::Apply in Holding(Held::kWriting)
#ifndef TF_EMBED_CC_CORE_TABLE_HELD_TABLES_H_
#define TF_EMBED_CC_CORE_TABLE_HELD_TABLES_H_

#include <optional>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/store/store_locks.h"
#include "cc/core/table/paused_tables.h"

namespace tf_embed {

class Table;

class HeldTables {
 public:
  explicit HeldTables(Allocator* allocator) : stores_(allocator) {}

  // Locks tables, possibly repeated, in the global order: kContent or kUsing for Find, kWriting for
  // Apply. REQUIRES: nothing is held; can_be_held() of each table.
  Status Take(const std::vector<const Table*>& tables, Held held);

 private:
  std::optional<WritingTables> writing_;  // locked before the stores
  HeldStores stores_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_HELD_TABLES_H_
