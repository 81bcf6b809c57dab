// SPDX-License-Identifier: Apache-2.0
// A save of a variable: its location, the files that a process reads, and their rows.
#ifndef TF_EMBED_CC_TF_SAVED_ROWS_H_
#define TF_EMBED_CC_TF_SAVED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/batch/key_set.h"
#include "cc/core/files/row_file.h"
#include "cc/core/files/row_manifest.h"
#include "cc/tf/file_system.h"
#include "cc/tf/shared_variant.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// Limit on the processes of one save.
inline constexpr int64_t kMaxParts = RowManifest::kMaxFiles;

StoredType StoredTypeOf(tensorflow::DataType type);

// The location of a save, and this process's part in it.
struct SavePlace {
  std::unique_ptr<Folder> folder;
  std::string file_name;
  uint32_t rank = 0;  // this process's rank
  uint32_t processes = 1;
  // The number of the save that JoinSaves makes of all processes' files; 0: each process has its
  // own save.
  uint64_t joint_save = 0;
};

// Reads two inputs of an op: `folder`, followed by `file_name`.
absl::Status ReadPlace(tensorflow::OpKernelContext* context, int input, SavePlace* place);
// Reads three inputs of an op that writes a part of a save: `save`, `rank` and `processes`.
absl::Status ReadPart(tensorflow::OpKernelContext* context, int input, SavePlace* place);

// Attributes shared by the save and load ops.
class SaveAttributes {
 public:
  absl::Status Read(tensorflow::OpKernelConstruction* construction);
  // Reads the inputs `folder`, which the environment may override, and `file_name`.
  absl::Status PlaceOf(tensorflow::OpKernelContext* context, SavePlace* place) const;

 private:
  std::string folder_variable_;  // environment variable that overrides the folder
  uint32_t rank_ = 0;
  uint32_t processes_ = 1;
};

// Ranks with a manifest in a folder, by the number of processes.
using SavedRanks = std::map<uint32_t, std::vector<uint32_t>>;
SavedRanks RanksIn(const RowFileNames& names, const std::vector<std::string>& files);
bool IsComplete(const SavedRanks::value_type& ranks);

absl::Status ReadManifest(const Folder& folder, const RowFileNames& names, uint32_t rank,
                          uint32_t processes, RowManifest* manifest);

// Files of rows that fit a table, or of any one kind, with every byte verified. Blocks are numbered
// consecutively across all files. Thread-safe for reads.
//
// An incremental save is opened together with the chain of saves that it builds on. Newer files
// come first. An older file contributes only rows whose keys no newer save wrote or removed.
class SavedRows {
 public:
  static constexpr char kTypeName[] = "tf_embed::SavedRows";

  struct File {
    explicit File(std::unique_ptr<FileSource> opened, Allocator* allocator)
        : source(std::move(opened)), reader(source.get(), allocator) {}
    std::unique_ptr<FileSource> source;
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
    absl::Status Damaged(const absl::Status& status) const;
    // Fails if the table's row types or dim differ.
    absl::Status CheckFits(const TableResource& table) const;
    // Whether the rows have every usage statistic that the table keeps.
    bool HasAllStatistics(const TableResource& table) const;
  };

  // Finds and reads the save in a folder. `whole`: the rows of all ranks.
  static absl::Status Open(const SavePlace& place, bool whole, const TableResource& table,
                           std::shared_ptr<SavedRows>* rows);
  // As the first Open, but without the saves that an incremental save builds on.
  static absl::Status OpenAlone(const SavePlace& place, const TableResource& table,
                                std::shared_ptr<SavedRows>* rows);
  // As the first Open, for no particular table. All rows have the same types and dim.
  static absl::Status Open(const SavePlace& place, bool whole, std::shared_ptr<SavedRows>* rows);

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
  void SetClockOf(TableResource* table) const;
  // Counts the rows of all blocks. Reads the older saves of a chain again.
  absl::Status CountRows(uint64_t* count) const;
  // Drops the slots of all rows. REQUIRES: no other thread uses these rows yet.
  void LeaveSlotsOut() { with_slots_ = false; }
  bool HasSlots(const File& file) const {
    return with_slots_ && file.reader.header().meta.rule.slots_per_row() > 0;
  }
  // The first file of rows with slots, or null. Rows of files without slots get initial slots.
  // Fails if slots belong to two optimizers.
  absl::Status FindSlots(const File** file) const;
  // The last block stays in memory, so a caller may first read its keys and then its rows.
  absl::Status ReadBlock(size_t block, std::shared_ptr<const RowBlock>* rows);

 private:
  explicit SavedRows(Allocator* allocator) : allocator_(allocator) {}

  // `table` null: rows of any kind. `alone`: without the saves that a save builds on.
  static absl::Status Open(const SavePlace& place, bool whole, bool alone, Allocator* allocator,
                           const TableResource* table, std::shared_ptr<SavedRows>* rows);
  // Opens the part of a process and, unless `alone`, the saves that it builds on.
  absl::Status OpenPart(const SavePlace& place, const RowManifest& manifest, bool alone,
                        const TableResource* table);
  absl::Status OpenSave(const Folder& folder, const RowManifest& manifest,
                        const TableResource* table,
                        const std::vector<std::shared_ptr<const KeySet>>& newer);
  // Opens and checks the files that a save links to.
  absl::Status OpenLinks(const Folder& folder, const RowManifest& manifest,
                         std::vector<const RowFileReader*>* links);
  // The keys of the files from index `first` on.
  absl::Status KeysOf(size_t first, std::shared_ptr<const KeySet>* keys) const;
  absl::Status ReadNewest(size_t block, RowBlock* rows) const;

  Allocator* const allocator_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<std::unique_ptr<File>> linked_;
  std::vector<std::pair<size_t, size_t>> blocks_;
  bool by_key_ = false;
  bool with_slots_ = true;
  size_t num_parts_ = 0;

  std::mutex mutex_;
  size_t last_block_ = 0;
  std::shared_ptr<const RowBlock> last_rows_;
};

using SavedRowsVariant = SharedVariant<SavedRows>;

// Reads the input `rows` of an op, followed by a block number.
absl::Status ReadBlockInput(tensorflow::OpKernelContext* context, int input, SavedRows** rows,
                            size_t* block);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SAVED_ROWS_H_
