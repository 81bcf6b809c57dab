// SPDX-License-Identifier: Apache-2.0
// Rows of a table as a file, and the only place that knows its bytes. A save of a variable has one
// such file for each shard; row_manifest.h says which files make a save.
//
//     header  | "tf_embed" | format : 4 | 0 : 4 | bytes of the body : 8 | body | CRC-32C : 4 |
//     block   | 'r' : 4 | rows : 4 | bytes of the payload : 8 | payload | CRC-32C : 4 |
//     ...
//     footer  | 'e' : 4 | blocks : 4 | rows : 8 | CRC-32C of all checksums above : 4 | CRC-32C : 4
//     |
//
// The body is numbers of 64 bits: types, shard, statistics, TableMeta, and the state of the table's
// policy. A payload has sections, each padded with zeros to a multiple of 8 bytes:
//
//     | keys : 8 each | weights | slots | statistics : 8 each |
//
// String keys or string weights are stored as | length : 4 of each | all their bytes |. Each
// checksum covers its part from the first byte on, so every bit of a file is covered. The last
// checksum also covers the order of the blocks. Numbers are in little-endian order.
//
// A padded file has format 2 instead of 1. Its blocks have the same size, a multiple of a page, and
// begin at multiples of a page, so that each can be read alone and without the page cache. Zeros
// fill each payload up. Fillers, blocks of zeros without rows, fill up the pages of the header and
// the footer:
//
//     filler  | 'f' : 4 | 0 : 4 | bytes of the payload : 8 | zeros | CRC-32C : 4 |
//
// A file of changes has format 3. In addition to blocks of rows it has blocks of keys that left, in
// the same layout with the tag 'l', whose payload is only keys. Its keys are not strings.
//
// A file with links has format 4, or 5 if it also has changes. Some of its rows lie in other files,
// which the manifest of the save names and which are padded. Blocks with the tag 's', of the same
// shape, say which rows these are:
//
//     | number of the file : 4 | its block : 4 | numbers of rows : 4 each | statistics : 8 each |
//
// Rows are counted from the first row of that block on, and rise.
#ifndef TF_EMBED_CC_CORE_FILES_ROW_FILE_H_
#define TF_EMBED_CC_CORE_FILES_ROW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/names.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/string_batch.h"
#include "cc/core/files/byte_stream.h"
#include "cc/core/files/table_meta.h"
#include "cc/core/rows/linked_rows.h"
#include "cc/core/rows/row_statistics.h"

namespace tf_embed {

// Types, with the numbers that they have in files; the first are DataType's.
// TYPE(enumerator, name), in the order of their numbers: add a new type at the end.
#define TF_EMBED_STORED_TYPES(TYPE) \
  TYPE(kFloat, "float32")           \
  TYPE(kHalf, "float16")            \
  TYPE(kBFloat16, "bfloat16")       \
  TYPE(kDouble, "float64")          \
  TYPE(kInt8, "int8")               \
  TYPE(kInt32, "int32")             \
  TYPE(kInt64, "int64")             \
  TYPE(kBool, "bool")               \
  TYPE(kUint32, "uint32")           \
  TYPE(kUint64, "uint64")           \
  TYPE(kString, "string")

enum class StoredType : uint8_t {
#define TF_EMBED_TYPE(enumerator, name) enumerator,
  TF_EMBED_STORED_TYPES(TF_EMBED_TYPE)
#undef TF_EMBED_TYPE
};
inline constexpr NamedValue<StoredType> kStoredTypeNames[] = {
#define TF_EMBED_TYPE(enumerator, name) {name, StoredType::enumerator},
    TF_EMBED_STORED_TYPES(TF_EMBED_TYPE)
#undef TF_EMBED_TYPE
};
inline constexpr StoredType kLastStoredType =
    static_cast<StoredType>(std::size(kStoredTypeNames) - 1);
const char* NameOf(StoredType type);

struct RowFileHeader {
  StoredType key_type = StoredType::kInt64;
  StoredType value_type = StoredType::kFloat;
  uint32_t shard = 0;
  uint32_t num_shards = 1;
  uint64_t save = 0;  // the same number in all files of a save
  StatisticSet statistics;
  TableMeta meta;
  std::vector<int64_t> policy;  // the state of the table's policy
  // The form of the file, without strings. A padded file has neither changes nor links.
  bool padded = false;
  bool has_changes = false;
  bool has_links = false;

  bool has_string_keys() const { return key_type == StoredType::kString; }
  bool has_string_values() const { return value_type == StoredType::kString; }
  size_t weight_bytes() const { return meta.dim * SizeOf(meta.value_type); }
  size_t slot_bytes() const { return meta.rule.slots_per_row() * SlotSize(meta.value_type); }
  size_t statistics_bytes() const { return statistics.size() * sizeof(uint64_t); }
};

// The blocks of a padded file.
struct PaddedBlocks {
  static constexpr size_t kPage = 4096;

  size_t bytes = 0;    // of a block: the fewest pages that rows fill to three quarters
  size_t rows = 0;     // of a block; the last block before a footer or a rule's end may have fewer
  uint64_t begin = 0;  // the offset of the first block
  // The size of the last filler and the footer together.
  static constexpr size_t kEndBytes = kPage;

  static PaddedBlocks Of(const RowFileHeader& header);
};

// Rows to write. String keys have a string for each row, string weights `dim` for each row.
struct RowsToWrite {
  size_t size = 0;
  const int64_t* keys = nullptr;
  StringBatch key_strings;
  const char* weights = nullptr;
  StringBatch value_strings;
  const char* slots = nullptr;
  const uint64_t* statistics = nullptr;
};

class RowFileWriter {
 public:
  // Blocks have about `block_bytes`, and at least a row. Blocks of a padded file have the size in
  // PaddedBlocks, and each Append begins a new block.
  RowFileWriter(ByteSink* sink, Allocator* allocator, size_t block_bytes)
      : sink_(sink), block_bytes_(block_bytes), lengths_(allocator), strings_(allocator) {}

  // In this order; Append any number of times.
  Status Begin(const RowFileHeader& header);
  Status Append(const RowsToWrite& rows);
  // The same for keys that left. REQUIRES: a file of changes.
  Status AppendLeft(const int64_t* keys, size_t count);
  // The same for rows of a linked file. REQUIRES: a file with links.
  Status AppendLinked(const LinkedRows& rows);
  Status Finish();

  uint64_t bytes() const { return bytes_; }
  uint64_t rows() const { return rows_; }
  // The checksum of the whole file, once it is finished.
  uint32_t checksum() const { return checksum_; }

 private:
  size_t EndOfBlock(const RowsToWrite& rows, size_t begin) const;
  Status AppendBlock(const RowsToWrite& rows, size_t begin, size_t end);
  Status AppendStrings(const StringBatch& strings, size_t begin, size_t end);
  // Writes bytes that the next checksum covers.
  Status Put(const void* bytes, size_t size);
  Status PutZeros(size_t size);
  Status Fill();
  Status PutFiller(size_t bytes);
  Status PutChecksum();

  ByteSink* const sink_;
  const size_t block_bytes_;
  Buffer<uint32_t> lengths_;
  Buffer<char> strings_;
  RowFileHeader header_;
  PaddedBlocks padded_;
  uint64_t bytes_ = 0;
  uint64_t rows_ = 0;
  uint32_t blocks_ = 0;
  uint32_t crc_ = 0;       // since the last checksum
  size_t in_section_ = 0;  // bytes since the last section ended
  uint32_t checksum_ = 0;
};

// The rows of a block, in the bytes that they were parsed from.
class RowBlock {
 public:
  explicit RowBlock(Allocator* allocator) : bytes_(allocator), strings_(allocator) {}

  // Keeps only the rows at `places` [count], which rise. REQUIRES: no strings, and a block that
  // RowFileReader read.
  void Keep(const RowFileHeader& header, const uint32_t* places, size_t count);

  size_t size = 0;
  bool left = false;              // these are only keys that left
  const int64_t* keys = nullptr;  // null if keys are strings
  StringBatch key_strings;
  const char* weights = nullptr;  // null if weights are strings
  StringBatch value_strings;
  const char* slots = nullptr;
  const uint64_t* statistics = nullptr;

 private:
  // The location of the rows of a block of links, which has no keys, weights and slots.
  struct Links {
    uint32_t file = 0;
    uint32_t block = 0;
    const uint32_t* places = nullptr;  // null: the rows are here
  };

  friend class RowFileReader;
  friend Status ParseRowBlock(const RowFileHeader& header, const std::string& file, uint64_t offset,
                              const char* bytes, size_t size, RowBlock* block);
  Buffer<char> bytes_;                // of a block that RowFileReader read
  Buffer<std::string_view> strings_;  // of keys, then of weights
  Links links_;
};

// Checks the `size` bytes of a block, from its tag to its checksum, and finds its rows. The bytes
// are aligned to a word, and outlive the use of `block`. Messages name the file, and the `offset`
// of the block in it. Allocates only if keys or weights are strings.
Status ParseRowBlock(const RowFileHeader& header, const std::string& file, uint64_t offset,
                     const char* bytes, size_t size, RowBlock* block);

class RowFileReader {
 public:
  // The source and the allocator outlive the reader.
  RowFileReader(const ByteSource* source, Allocator* allocator)
      : source_(source), allocator_(allocator) {}

  // The verified files with the linked rows, by their numbers. Call before Verify.
  void SetLinks(const std::vector<const RowFileReader*>& links) { links_ = &links; }
  // Reads and checks only the header. For a reader that does no more than that.
  Status ReadHeader();
  // Reads the whole file and checks every byte of it. Call first.
  Status Verify();

  // Any thread may call the methods below.
  const RowFileHeader& header() const { return header_; }
  uint64_t rows() const { return rows_; }  // without keys that left
  uint32_t checksum() const { return checksum_; }
  size_t num_blocks() const { return blocks_.size(); }
  // Whether a block has keys that left.
  bool HasLeft(size_t number) const { return blocks_[number].left; }
  // The number of rows, or of keys that left, in a block.
  size_t RowsIn(size_t number) const { return blocks_[number].rows; }
  // Reads and checks a block. Rows of linked files are returned like other rows.
  Status ReadBlock(size_t number, RowBlock* block) const;

 private:
  struct Place {
    uint64_t offset;  // of the block
    uint64_t bytes;   // from its tag to its checksum
    bool left;
    size_t rows;
  };

  Status ReadHeader(uint64_t* offset);
  Status ReadFooter(uint64_t offset, uint32_t crc_of_all);
  Status ReadBytes(const Place& place, RowBlock* block) const;
  // Whether a block of links names rows of a known file, with the same types and sizes.
  Status CheckLinks(const RowBlock& block) const;
  // Copies the rows that a block of links names.
  Status ReadLinked(const RowBlock& links, RowBlock* block) const;
  Status Damaged(const std::string& what) const;

  const ByteSource* const source_;
  Allocator* const allocator_;
  const std::vector<const RowFileReader*>* links_ = nullptr;
  RowFileHeader header_;
  std::vector<Place> blocks_;
  uint64_t rows_ = 0;
  uint32_t checksum_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_FILES_ROW_FILE_H_
