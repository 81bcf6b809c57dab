// SPDX-License-Identifier: Apache-2.0
// Rows of a snapshot that are not copied to its files. They lie in a file that is whole and never
// changes, a sealed segment of a store on disk. The snapshot gives that file a second name (a hard
// link), by which it stays when the store removes its own, and says which of its rows count.
#ifndef TF_EMBED_CC_CORE_ROWS_LINKED_ROWS_H_
#define TF_EMBED_CC_CORE_ROWS_LINKED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"

namespace tf_embed {

// Some rows of a linked file, which is a padded row file, while an export goes on.
struct LinkedRows {
  explicit LinkedRows(Allocator* allocator) : places(allocator), statistics(allocator) {}

  uint32_t file = 0;   // given by FileLinker
  bool ended = true;   // there are no others in the file
  uint32_t block = 0;  // of the file; the rows lie in this one and some behind it
  size_t size = 0;
  Buffer<uint32_t> places;      // [size], rising: numbers of rows from the first one of `block` on
  Buffer<uint64_t> statistics;  // size x statistics of a row, which the file does not have

  // The store's own numbers of all files that were linked so far; they rise.
  std::vector<uint64_t> files;
};

// Gives files names in a snapshot. Of one thread.
class FileLinker {
 public:
  virtual ~FileLinker() = default;

  // Links a row file of so many bytes and that checksum. False if it can't be, as across file
  // systems: then its rows must be copied.
  virtual bool Link(const std::string& path, uint64_t bytes, uint32_t checksum,
                    uint32_t* number) = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_LINKED_ROWS_H_
