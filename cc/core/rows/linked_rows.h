// SPDX-License-Identifier: Apache-2.0
// Rows of a snapshot that are not copied to its files. They lie in a file that is complete and
// never changes, a sealed segment of a tier on disk. The snapshot gives that file a second name (a
// hard link), so that it stays when the tier removes its name, and says which of its rows count.
#ifndef TF_EMBED_CC_CORE_ROWS_LINKED_ROWS_H_
#define TF_EMBED_CC_CORE_ROWS_LINKED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"

namespace tf_embed {

// Some rows of a linked file, which is a padded row file, during an export.
struct LinkedRows {
  explicit LinkedRows(Allocator* allocator) : places(allocator), statistics(allocator) {}

  uint32_t file = 0;   // given by FileLinker
  bool ended = true;   // the file has no other rows
  uint32_t block = 0;  // of the file; the rows lie in this block and some after it
  size_t size = 0;
  Buffer<uint32_t> places;      // [size], rising: numbers of rows from the first row of `block` on
  Buffer<uint64_t> statistics;  // size x statistics of a row, which the file does not have

  // The tier's numbers of all files that were linked so far; they rise.
  std::vector<uint64_t> files;
};

// Gives files names in a snapshot. Used by one thread.
class FileLinker {
 public:
  virtual ~FileLinker() = default;

  // Links a row file of this size and checksum. False if it can't be linked, as across file
  // systems: then its rows must be copied.
  virtual bool Link(const std::string& path, uint64_t bytes, uint32_t checksum,
                    uint32_t* number) = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_LINKED_ROWS_H_
