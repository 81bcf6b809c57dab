// SPDX-License-Identifier: Apache-2.0
// A save of a variable: where its files are, which of them a process takes, and their rows.
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

// Processes whose files are one save.
inline constexpr int64_t kMaxParts = RowManifest::kMaxFiles;

StoredType StoredTypeOf(tensorflow::DataType type);

// Where a save is, and whose.
struct SavePlace {
  std::unique_ptr<Folder> folder;
  std::string file_name;
  uint32_t rank = 0;  // of the process that asks
  uint32_t processes = 1;
  // The number of the save that the files of all processes become, by JoinSaves; 0: each process
  // has a save of its own.
  uint64_t joint_save = 0;
};

// Reads two inputs of an op: `folder`, and `file_name`, which follows.
absl::Status ReadPlace(tensorflow::OpKernelContext* context, int input, SavePlace* place);
// Reads three inputs of an op that writes a part of a save: `save`, `rank` and `processes`.
absl::Status ReadPart(tensorflow::OpKernelContext* context, int input, SavePlace* place);

// The attributes of the ops that save and load.
class SaveAttributes {
 public:
  absl::Status Read(tensorflow::OpKernelConstruction* construction);
  // With the inputs `folder`, unless the environment has another, and `file_name`.
  absl::Status PlaceOf(tensorflow::OpKernelContext* context, SavePlace* place) const;

 private:
  std::string folder_variable_;  // an environment variable; if it is set, it is the folder
  uint32_t rank_ = 0;
  uint32_t processes_ = 1;
};

// The ranks of which a folder has manifests, by their number of processes.
using SavedRanks = std::map<uint32_t, std::vector<uint32_t>>;
SavedRanks RanksIn(const RowFileNames& names, const std::vector<std::string>& files);
bool IsComplete(const SavedRanks::value_type& ranks);

absl::Status ReadManifest(const Folder& folder, const RowFileNames& names, uint32_t rank,
                          uint32_t processes, RowManifest* manifest);

// Files of rows that fit a table, or of any kind, every byte of them checked. Blocks of all files
// are numbered in a row. Any thread may read.
//
// A save of changes comes with what it is changes of, as one: files of newer saves come first, and
// of an older one come those rows whose keys are in no newer one, and did not leave there.
class SavedRows {
 public:
  static constexpr char kTypeName[] = "tf_embed::SavedRows";

  struct File {
    explicit File(std::unique_ptr<FileSource> opened, Allocator* allocator)
        : source(std::move(opened)), reader(source.get(), allocator) {}
    std::unique_ptr<FileSource> source;
    RowFileReader reader;
    SavedPolicy policy;
    // The readers of the files that rows of this one lie in; those of `linked_`.
    std::shared_ptr<const std::vector<const RowFileReader*>> links;
    // The keys of the newer saves that this is a part of.
    std::vector<std::shared_ptr<const KeySet>> newer;

    // Whether a table saved the rows, which has a seed. The first file of such a save has the
    // numbers of a policy, also if there is none; that of other rows has none.
    bool has_origin() const { return !reader.header().policy.empty(); }

    // What is wrong with numbers of the file, with its name.
    absl::Status Damaged(const absl::Status& status) const;
    // Refuses a table whose rows are of other types, or of another dim.
    absl::Status CheckFits(const TableResource& table) const;
    // Whether rows know all that the table keeps of their use.
    bool HasAllStatistics(const TableResource& table) const;
  };

  // Finds the save in a folder and reads all of it. `whole`: all ranks' rows are wanted.
  static absl::Status Open(const SavePlace& place, bool whole, const TableResource& table,
                           std::shared_ptr<SavedRows>* rows);
  // As the first, but a save of changes comes without what it is changes of.
  static absl::Status OpenAlone(const SavePlace& place, const TableResource& table,
                                std::shared_ptr<SavedRows>* rows);
  // As above, for no table in particular; all rows are of the same types and dim.
  static absl::Status Open(const SavePlace& place, bool whole, std::shared_ptr<SavedRows>* rows);

  const std::vector<std::unique_ptr<File>>& files() const { return files_; }
  // Whether a process has to pick its rows by their keys: they were saved by another number.
  bool by_key() const { return by_key_; }
  // How many processes' parts these are.
  size_t num_parts() const { return num_parts_; }
  size_t num_blocks() const { return blocks_.size(); }
  const File& FileOf(size_t block) const { return *files_[blocks_[block].first]; }
  // The number of rows in a block, with those that a newer save of a chain replaces.
  size_t RowsIn(size_t block) const { return FileOf(block).reader.RowsIn(blocks_[block].second); }
  // Sets a table's clock for rows that it is about to take.
  void SetClockOf(TableResource* table) const;
  // Of all blocks. Reads the older saves of a chain once more.
  absl::Status CountRows(uint64_t* count) const;
  // The first file of rows with slots; null if there is none. Rows of other files have none, and
  // get initial ones. Refuses the slots of two optimizers.
  absl::Status FindSlots(const File** file) const;
  // The last block stays in memory, for who asks for its keys first.
  absl::Status ReadBlock(size_t block, std::shared_ptr<const RowBlock>* rows);

 private:
  explicit SavedRows(Allocator* allocator) : allocator_(allocator) {}

  // Without a table, rows of any kind. `alone`: without what they are changes of.
  static absl::Status Open(const SavePlace& place, bool whole, bool alone, Allocator* allocator,
                           const TableResource* table, std::shared_ptr<SavedRows>* rows);
  // Opens the part of a process, with all that it is changes of unless it is wanted `alone`.
  absl::Status OpenPart(const SavePlace& place, const RowManifest& manifest, bool alone,
                        const TableResource* table);
  absl::Status OpenSave(const Folder& folder, const RowManifest& manifest,
                        const TableResource* table,
                        const std::vector<std::shared_ptr<const KeySet>>& newer);
  // Opens and checks the files that a save links.
  absl::Status OpenLinks(const Folder& folder, const RowManifest& manifest,
                         std::vector<const RowFileReader*>* links);
  // The keys of the files from number `first` on.
  absl::Status KeysOf(size_t first, std::shared_ptr<const KeySet>* keys) const;
  absl::Status ReadNewest(size_t block, RowBlock* rows) const;

  Allocator* const allocator_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<std::unique_ptr<File>> linked_;
  std::vector<std::pair<size_t, size_t>> blocks_;
  bool by_key_ = false;
  size_t num_parts_ = 0;

  std::mutex mutex_;
  size_t last_block_ = 0;
  std::shared_ptr<const RowBlock> last_rows_;
};

using SavedRowsVariant = SharedVariant<SavedRows>;

// Reads the input `rows` of an op, and its number of a block, which follows.
absl::Status ReadBlockInput(tensorflow::OpKernelContext* context, int input, SavedRows** rows,
                            size_t* block);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SAVED_ROWS_H_
