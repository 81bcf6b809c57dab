// SPDX-License-Identifier: Apache-2.0
// The files of a save that a process reads, and their rows.
#ifndef TF_EMBED_CC_CORE_SAVES_SAVED_ROWS_H_
#define TF_EMBED_CC_CORE_SAVES_SAVED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/thread_annotations.h"
#include "cc/core/batch/key_set.h"
#include "cc/core/files/row_file.h"
#include "cc/core/files/row_manifest.h"
#include "cc/core/saves/save_folder.h"
#include "cc/core/saves/save_place.h"
#include "cc/core/table/table.h"

namespace tf_embed {

// Files of rows that fit a table, or of any one kind, with every byte verified. Blocks are numbered
// consecutively across all files. Thread-safe for reads.
//
// An incremental save is opened together with the chain of saves that it builds on. Newer files
// come first. An older file contributes only rows whose keys no newer save wrote or removed.
class SavedRows {
 public:
  struct File {
    explicit File(std::unique_ptr<ByteSource> opened, Allocator* allocator)
        : source(std::move(opened)), reader(source.get(), allocator) {}
    std::unique_ptr<ByteSource> source;
    RowFileReader reader;
    SavedPolicy policy;
    // Readers of the files that hold this file's linked rows; owned by `linked_`.
    std::shared_ptr<const std::vector<const RowFileReader*>> links;
    // The keys of the newer saves in the chain.
    std::vector<std::shared_ptr<const KeySet>> newer;

    // Whether a table saved the rows, in which case there is a seed. The first file of such a save
    // has policy numbers, even without a policy. A file from another source has none.
    bool has_origin() const { return !reader.header().policy.empty(); }

    // Adds the file's name to an error about its numbers.
    Status Damaged(const Status& status) const;
    // Fails if the table's row types or dim differ.
    Status CheckFits(const Table& table) const;
    // Whether the rows have every usage statistic that the table keeps.
    bool HasAllStatistics(const Table& table) const;
  };

  // Finds and reads the save in a folder. `whole`: the rows of all ranks.
  static Status Open(const SavePlace& place, bool whole, const Table& table,
                     std::shared_ptr<SavedRows>* rows);
  // As the first Open, but without the saves that an incremental save builds on.
  static Status OpenAlone(const SavePlace& place, const Table& table,
                          std::shared_ptr<SavedRows>* rows);
  // As the first Open, for no particular table. All rows have the same types and dim.
  static Status Open(const SavePlace& place, bool whole, std::shared_ptr<SavedRows>* rows);
  // As OpenAlone, for no particular table and the rows of all ranks.
  static Status OpenAlone(const SavePlace& place, std::shared_ptr<SavedRows>* rows);
  // Reads the manifests of all ranks and the header of the first file, and no rows.
  static Status Describe(const SavePlace& place, std::vector<RowManifest>* parts,
                         RowFileHeader* header);

  const std::vector<std::unique_ptr<File>>& files() const { return files_; }
  // Whether a process must select its rows by key, because another number of processes saved them.
  bool by_key() const { return by_key_; }
  // Number of processes whose parts these are.
  size_t num_parts() const { return num_parts_; }
  size_t num_blocks() const { return blocks_.size(); }
  const File& FileOf(size_t block) const { return *files_[blocks_[block].first]; }
  // The number of rows in a block, including those that a newer save of a chain replaces.
  size_t RowsIn(size_t block) const { return FileOf(block).reader.RowsIn(blocks_[block].second); }
  // Advances a table's clock for the rows that it is about to load.
  void SetClockOf(Table* table) const;
  // Counts the rows of all blocks. Reads the older saves of a chain again.
  Status CountRows(uint64_t* count) const;
  // Drops the slots of all rows. REQUIRES: no other thread uses these rows yet.
  void LeaveSlotsOut() { with_slots_ = false; }
  bool HasSlots(const File& file) const {
    return with_slots_ && file.reader.header().meta.rule.slots_per_row() > 0;
  }
  // The first file of rows with slots, or null. Rows of files without slots get initial slots.
  // Fails if slots belong to two optimizers.
  Status FindSlots(const File** file) const;
  // The last block stays in memory, so a caller may first read its keys and then its rows.
  Status ReadBlock(size_t block, std::shared_ptr<const RowBlock>* rows);

 private:
  explicit SavedRows(Allocator* allocator) : allocator_(allocator) {}

  // `table` null: rows of any kind. `alone`: without the saves that a save builds on.
  static Status Open(const SavePlace& place, bool whole, bool alone, Allocator* allocator,
                     const Table* table, std::shared_ptr<SavedRows>* rows);
  // Opens the part of a process and, unless `alone`, the saves that it builds on.
  Status OpenPart(const SavePlace& place, const RowManifest& manifest, bool alone,
                  const Table* table);
  Status OpenSave(const SaveFolder& folder, const RowManifest& manifest, const Table* table,
                  const std::vector<std::shared_ptr<const KeySet>>& newer);
  // Opens and checks the files that a save links to.
  Status OpenLinks(const SaveFolder& folder, const RowManifest& manifest,
                   std::vector<const RowFileReader*>* links);
  // The keys of the files from index `first` on.
  Status KeysOf(size_t first, std::shared_ptr<const KeySet>* keys) const;
  Status ReadNewest(size_t block, RowBlock* rows) const;

  Allocator* const allocator_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<std::unique_ptr<File>> linked_;
  std::vector<std::pair<size_t, size_t>> blocks_;
  bool by_key_ = false;
  bool with_slots_ = true;
  size_t num_parts_ = 0;

  std::mutex mutex_;
  size_t last_block_ TF_EMBED_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const RowBlock> last_rows_ TF_EMBED_GUARDED_BY(mutex_);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_SAVES_SAVED_ROWS_H_
