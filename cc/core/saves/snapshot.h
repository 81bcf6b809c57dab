// SPDX-License-Identifier: Apache-2.0
// A consistent snapshot of several tables, written while they change. All tables share its moment.
#ifndef TF_EMBED_CC_CORE_SAVES_SNAPSHOT_H_
#define TF_EMBED_CC_CORE_SAVES_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/saves/save_place.h"
#include "cc/core/saves/save_rows.h"
#include "cc/core/saves/shard_file.h"
#include "cc/core/store/change_log.h"
#include "cc/core/table/table.h"

namespace tf_embed {

// Fails if a table does not keep track of changes.
Status CheckTracked(const Table& table);
// Tells the shards of a tracked table that it now has the rows of a save, or that no later snapshot
// builds on a save. A table without track of changes ignores it.
Status NoteLoaded(Table* table, uint64_t save);
Status DropSnapshot(Table* table, uint64_t save);

// Thread-safe.
class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  // Ends the snapshots of tables that were not written.
  ~Snapshot();

  // Called once. `since`: for each table, the number of the save whose later changes are wanted, or
  // 0 for all rows. Pauses writers for the moment alone.
  Status Begin(std::vector<std::shared_ptr<Table>> tables, const std::vector<uint64_t>& since);

  // Writes table number `number`, and ends its snapshot. `since_name`: the folder of the save that
  // it builds on, beside its own. `save` receives the number of the new save.
  Status Write(int64_t number, SavePlace place, std::string since_name, const SaveForm& form,
               uint64_t* save);

 private:
  struct One {
    std::shared_ptr<Table> table;
    uint64_t since = 0;
    RowFileHeader header;
    size_t begun = 0;  // shards whose snapshot has begun
    bool written = false;
  };

  static ChangeLog* ChangesOf(const One& one, size_t shard);
  static void End(const One& one, uint64_t save);
  static Status WriteOne(const One& one, SavePlace place, std::string since_name,
                         const SaveForm& form, uint64_t* number);
  static Status WriteShard(const One& one, size_t number, ShardFile* file);

  std::mutex mutex_;  // guards `written`
  std::vector<One> tables_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_SNAPSHOT_H_
