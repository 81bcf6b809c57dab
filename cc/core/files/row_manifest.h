// SPDX-License-Identifier: Apache-2.0
// The manifest of the part of a variable that one process saved: a small text file. It is written
// when all row files are there, and is the only file with the same name in each save. A reader of a
// save begins here; row files that no manifest names are ignored.
//
//     tf_embed rows 1
//     save 00c0ffee00c0ffee
//     time 1790000000000
//     keys int64
//     values float32
//     dim 64
//     rank 0 of 1
//     file NAME BYTES ROWS CHECKSUM          one line for each shard, in their order
//     link NAME BYTES CHECKSUM               one for each linked file, whose rows these have
//     checksum 0123abcd
//
// A save of changes begins with "tf_embed changes 1", and names its base after the rank: the number
// of a save, in a sibling folder of this name.
//
//     since 00c0ffee00c0ffee NAME
#ifndef TF_EMBED_CC_CORE_FILES_ROW_MANIFEST_H_
#define TF_EMBED_CC_CORE_FILES_ROW_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/status.h"
#include "cc/core/files/row_file.h"

namespace tf_embed {

struct RowManifest {
  // Limits on shards and linked files, and on the size of a manifest with that many.
  static constexpr size_t kMaxFiles = size_t{1} << 16;
  static constexpr size_t kMaxLinks = size_t{1} << 16;
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 25;

  struct File {
    std::string name;  // in the manifest's own folder
    uint64_t bytes = 0;
    uint64_t rows = 0;
    uint32_t checksum = 0;
  };
  struct Link {
    std::string name;  // also with `since`
    uint64_t bytes = 0;
    uint32_t checksum = 0;
  };

  uint64_t save = 0;
  uint64_t milliseconds = 0;  // of the save, since 1970
  StoredType key_type = StoredType::kInt64;
  StoredType value_type = StoredType::kFloat;
  uint64_t dim = 0;
  uint32_t rank = 0;
  uint32_t processes = 1;
  uint64_t since = 0;      // 0: these are all rows
  std::string since_name;  // of the folder
  std::vector<File> files;
  std::vector<Link> links;  // by their numbers (LinkedRows::file)

  // Whether a file or folder may have this name: it leads to no other folder.
  static bool IsFolderName(std::string_view name);

  std::string Encode() const;
  // Reads the output of Encode. Any other text is refused. `name` is for messages.
  static Status Decode(const std::string& text, const std::string& name, RowManifest* manifest);
};

// The names of the files of a save. They begin with the variable's name, in which all characters
// except letters, digits, '_' and '-' are written by their numbers. So no two variables share a
// file, and any variable's name becomes a file name. The end of a long name is replaced by "==" and
// a hash of the whole name, because file systems allow 255 bytes.
class RowFileNames {
 public:
  // The longest name that is kept: 57 bytes can follow it, if all numbers have five digits.
  static constexpr size_t kMaxName = 255 - 57;

  // `shortens` false: the names of versions that kept each name whole.
  explicit RowFileNames(std::string_view variable, bool shortens = true);

  std::string Manifest(uint32_t rank, uint32_t processes) const;
  std::string Rows(uint32_t rank, uint32_t processes, uint64_t save, uint32_t shard,
                   uint32_t num_shards) const;
  std::string Link(uint32_t rank, uint32_t processes, uint64_t save, uint32_t number) const;
  // The prefix of the names of all files of a rank.
  std::string Rank(uint32_t rank, uint32_t processes) const;

  // Whether a file belongs to this variable, at whichever rank and save.
  bool IsOurs(std::string_view file, uint32_t* rank, uint32_t* processes) const;
  bool IsManifest(std::string_view file, uint32_t* rank, uint32_t* processes) const;

 private:
  std::string stem_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_FILES_ROW_MANIFEST_H_
