// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/row_file.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cc/core/files/crc32c.h"
#include "cc/core/index/string_keys.h"

namespace tf_embed {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files have little-endian numbers");

constexpr char kMagic[8] = {'t', 'f', '_', 'e', 'm', 'b', 'e', 'd'};
constexpr uint32_t kFormat = 1;
constexpr uint32_t kPaddedFormat = 2;
constexpr uint32_t kChangesFormat = 3;
constexpr uint32_t kLinksFormat = 4;
constexpr uint32_t kLinksAndChangesFormat = 5;
constexpr uint32_t kBlockTag = 'r';
constexpr uint32_t kLeftTag = 'l';
constexpr uint32_t kLinksTag = 's';
constexpr uint32_t kFillerTag = 'f';
constexpr uint32_t kFooterTag = 'e';
constexpr size_t kAlignment = 8;

struct FileStart {
  char magic[8];
  uint32_t format;
  uint32_t zero;
  uint64_t body_bytes;
};
struct BlockStart {
  uint32_t tag;
  uint32_t rows;
  uint64_t payload_bytes;
};
struct Footer {
  uint32_t tag;
  uint32_t blocks;
  uint64_t rows;
  uint32_t crc_of_all;
  uint32_t crc;
};
static_assert(sizeof(FileStart) == 24 && sizeof(BlockStart) == 16 && sizeof(Footer) == 24);
// The bytes of a block around its payload.
constexpr size_t kBlockFrame = sizeof(BlockStart) + sizeof(uint32_t);

uint32_t FormatOf(const RowFileHeader& header) {
  if (header.has_links) return header.has_changes ? kLinksAndChangesFormat : kLinksFormat;
  return header.padded ? kPaddedFormat : header.has_changes ? kChangesFormat : kFormat;
}

size_t RoundUp(size_t bytes, size_t multiple = kAlignment) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// The body's numbers before TableMeta; the last of them is the number of TableMeta's.
constexpr size_t kFixedNumbers = 7;

std::vector<int64_t> EncodeBody(const RowFileHeader& header) {
  std::vector<int64_t> numbers = {
      static_cast<int64_t>(header.key_type),
      static_cast<int64_t>(header.value_type),
      header.shard,
      header.num_shards,
      static_cast<int64_t>(header.save),
      header.statistics.bits(),
      static_cast<int64_t>(header.meta.count()),
  };
  numbers.resize(kFixedNumbers + header.meta.count());
  header.meta.Encode(numbers.data() + kFixedNumbers);
  numbers.insert(numbers.end(), header.policy.begin(), header.policy.end());
  return numbers;
}

Status DecodeBody(const std::vector<int64_t>& numbers, RowFileHeader* header) {
  const auto within = [&](size_t place, int64_t least, int64_t most) {
    return numbers[place] >= least && numbers[place] <= most;
  };
  constexpr int64_t kLastType = static_cast<int64_t>(kLastStoredType);
  if (numbers.size() < kFixedNumbers || !within(0, 0, kLastType) || !within(1, 0, kLastType) ||
      !within(3, 1, UINT32_MAX) || !within(2, 0, numbers[3] - 1) || !within(5, 0, UINT8_MAX) ||
      !within(6, 0, static_cast<int64_t>(numbers.size() - kFixedNumbers))) {
    return Status::DataLoss("its header has numbers that no table has");
  }
  header->key_type = static_cast<StoredType>(numbers[0]);
  header->value_type = static_cast<StoredType>(numbers[1]);
  header->shard = static_cast<uint32_t>(numbers[2]);
  header->num_shards = static_cast<uint32_t>(numbers[3]);
  header->save = static_cast<uint64_t>(numbers[4]);
  header->statistics = StatisticSet::OfBits(static_cast<uint8_t>(numbers[5]));
  if (header->statistics.bits() != numbers[5]) {
    return Status::DataLoss("it has statistics that are not known");
  }
  const size_t meta_count = static_cast<size_t>(numbers[6]);
  const int64_t* const meta = numbers.data() + kFixedNumbers;
  header->policy.assign(meta + meta_count, numbers.data() + numbers.size());
  return TableMeta::Decode(meta, meta_count, &header->meta);
}

// The bytes of a row, without the bytes of its strings.
size_t LeastRowBytes(const RowFileHeader& header) {
  return (header.has_string_keys() ? sizeof(uint32_t) : sizeof(int64_t)) +
         (header.has_string_values() ? header.meta.dim * sizeof(uint32_t) : header.weight_bytes()) +
         header.slot_bytes() + header.statistics_bytes();
}

// The bytes of `rows` rows in the payload of a block, if they have no strings.
size_t PayloadBytes(const RowFileHeader& header, size_t rows) {
  return rows * sizeof(int64_t) + RoundUp(rows * header.weight_bytes()) +
         RoundUp(rows * header.slot_bytes()) + rows * header.statistics_bytes();
}

bool IsZeros(const char* begin, const char* end) {
  return std::all_of(begin, end, [](char byte) { return byte == 0; });
}

Status DamagedFile(const std::string& file, const std::string& what) {
  return Status::DataLoss("'" + file + "' is damaged: " + what + ".");
}

}  // namespace

PaddedBlocks PaddedBlocks::Of(const RowFileHeader& header) {
  PaddedBlocks blocks;
  blocks.begin =
      RoundUp(sizeof(FileStart) +
                  (kFixedNumbers + header.meta.count() + header.policy.size()) * sizeof(int64_t) +
                  sizeof(uint32_t) + kBlockFrame,
              kPage);
  const size_t row_bytes = LeastRowBytes(header);
  // Starts at the pages of one row, because fewer hold none.
  blocks.bytes = std::max(kPage, RoundUp(row_bytes, kPage)) - kPage;
  do {
    blocks.bytes += kPage;
    blocks.rows = (blocks.bytes - kBlockFrame) / row_bytes;
    while (blocks.rows > 0 && PayloadBytes(header, blocks.rows) > blocks.bytes - kBlockFrame) {
      --blocks.rows;
    }
  } while (blocks.rows * row_bytes < blocks.bytes / 4 * 3);
  return blocks;
}

const char* NameOf(StoredType type) { return kStoredTypeNames[static_cast<size_t>(type)].name; }

Status RowFileWriter::Put(const void* bytes, size_t size) {
  if (size == 0) return Status();
  crc_ = ExtendCrc32c(crc_, bytes, size);
  bytes_ += size;
  in_section_ += size;
  return sink_->Append(bytes, size);
}

Status RowFileWriter::PutZeros(size_t size) {
  constexpr char kZeros[512] = {};
  for (size_t part; size > 0; size -= part) {
    part = std::min(size, sizeof(kZeros));
    TF_EMBED_RETURN_IF_ERROR(Put(kZeros, part));
  }
  return Status();
}

Status RowFileWriter::Fill() {
  TF_EMBED_RETURN_IF_ERROR(PutZeros(RoundUp(in_section_) - in_section_));
  in_section_ = 0;
  return Status();
}

Status RowFileWriter::PutFiller(size_t bytes) {
  const BlockStart start = {kFillerTag, 0, bytes - kBlockFrame};
  TF_EMBED_RETURN_IF_ERROR(Put(&start, sizeof(start)));
  TF_EMBED_RETURN_IF_ERROR(PutZeros(start.payload_bytes));
  return PutChecksum();
}

Status RowFileWriter::PutChecksum() {
  const uint32_t crc = crc_;
  checksum_ = ExtendCrc32c(checksum_, &crc, sizeof(crc));
  TF_EMBED_RETURN_IF_ERROR(Put(&crc, sizeof(crc)));
  crc_ = 0;
  in_section_ = 0;
  return Status();
}

Status RowFileWriter::Begin(const RowFileHeader& header) {
  const bool has_strings = header.has_string_keys() || header.has_string_values();
  if (has_strings && (header.padded || header.has_changes || header.has_links)) {
    return Status::InvalidArgument(
        "A padded file of rows, one of changes, or one with links can't have strings.");
  }
  header_ = header;
  const std::vector<int64_t> body = EncodeBody(header);
  FileStart start = {{}, FormatOf(header), 0, body.size() * sizeof(int64_t)};
  std::memcpy(start.magic, kMagic, sizeof(kMagic));
  TF_EMBED_RETURN_IF_ERROR(Put(&start, sizeof(start)));
  TF_EMBED_RETURN_IF_ERROR(Put(body.data(), start.body_bytes));
  TF_EMBED_RETURN_IF_ERROR(PutChecksum());
  if (!header.padded) return Status();
  padded_ = PaddedBlocks::Of(header);
  return PutFiller(padded_.begin - bytes_);
}

size_t RowFileWriter::EndOfBlock(const RowsToWrite& rows, size_t begin) const {
  if (header_.padded) return std::min(rows.size, begin + padded_.rows);
  const size_t fixed_bytes = LeastRowBytes(header_);
  if (!header_.has_string_keys() && !header_.has_string_values()) {
    return std::min(rows.size, begin + std::max<size_t>(1, block_bytes_ / fixed_bytes));
  }
  size_t bytes = 0;
  for (size_t i = begin; i < rows.size; ++i) {
    bytes += fixed_bytes;
    if (header_.has_string_keys()) bytes += rows.key_strings[i].size();
    for (size_t j = 0; header_.has_string_values() && j < header_.meta.dim; ++j) {
      bytes += rows.value_strings[i * header_.meta.dim + j].size();
    }
    if (i > begin && bytes > block_bytes_) return i;
  }
  return rows.size;
}

Status RowFileWriter::Append(const RowsToWrite& rows) {
  for (size_t begin = 0, end; begin < rows.size; begin = end) {
    end = EndOfBlock(rows, begin);
    TF_EMBED_RETURN_IF_ERROR(AppendBlock(rows, begin, end));
  }
  return Status();
}

Status RowFileWriter::AppendLeft(const int64_t* keys, size_t count) {
  const size_t together = std::max<size_t>(1, block_bytes_ / sizeof(int64_t));
  for (size_t begin = 0; begin < count; begin += together) {
    const size_t size = std::min(together, count - begin);
    const BlockStart start = {kLeftTag, static_cast<uint32_t>(size), size * sizeof(int64_t)};
    TF_EMBED_RETURN_IF_ERROR(Put(&start, sizeof(start)));
    TF_EMBED_RETURN_IF_ERROR(Put(keys + begin, start.payload_bytes));
    ++blocks_;
    TF_EMBED_RETURN_IF_ERROR(PutChecksum());
  }
  return Status();
}

Status RowFileWriter::AppendLinked(const LinkedRows& rows) {
  if (rows.size == 0) return Status();
  const uint32_t where[] = {rows.file, rows.block};
  const size_t place_bytes = rows.size * sizeof(uint32_t);
  const size_t statistics_bytes = rows.size * header_.statistics_bytes();
  const BlockStart start = {kLinksTag, static_cast<uint32_t>(rows.size),
                            sizeof(where) + RoundUp(place_bytes) + statistics_bytes};
  TF_EMBED_RETURN_IF_ERROR(Put(&start, sizeof(start)));
  TF_EMBED_RETURN_IF_ERROR(Put(where, sizeof(where)));
  in_section_ = 0;
  TF_EMBED_RETURN_IF_ERROR(Put(rows.places.data(), place_bytes));
  TF_EMBED_RETURN_IF_ERROR(Fill());
  TF_EMBED_RETURN_IF_ERROR(Put(rows.statistics.data(), statistics_bytes));
  ++blocks_;
  rows_ += rows.size;
  return PutChecksum();
}

Status RowFileWriter::AppendStrings(const StringBatch& strings, size_t begin, size_t end) {
  TF_EMBED_RETURN_IF_ERROR(lengths_.Resize(end - begin));
  size_t sum = 0;
  for (size_t i = begin; i < end; ++i) {
    lengths_[i - begin] = static_cast<uint32_t>(strings[i].size());
    sum += strings[i].size();
  }
  TF_EMBED_RETURN_IF_ERROR(strings_.Resize(sum));
  char* at = strings_.data();
  for (size_t i = begin; i < end; ++i) {
    const std::string_view text = strings[i];
    at = std::copy(text.begin(), text.end(), at);
  }
  TF_EMBED_RETURN_IF_ERROR(Put(lengths_.data(), (end - begin) * sizeof(uint32_t)));
  return Put(strings_.data(), sum);
}

Status RowFileWriter::AppendBlock(const RowsToWrite& rows, size_t begin, size_t end) {
  const size_t count = end - begin;
  const size_t dim = header_.meta.dim;
  const auto size_of = [](const StringBatch& strings, size_t from, size_t to) {
    size_t sum = (to - from) * sizeof(uint32_t);
    for (size_t i = from; i < to; ++i) sum += strings[i].size();
    return sum;
  };
  const size_t key_bytes =
      header_.has_string_keys() ? size_of(rows.key_strings, begin, end) : count * sizeof(int64_t);
  const size_t weight_bytes = header_.has_string_values()
                                  ? size_of(rows.value_strings, begin * dim, end * dim)
                                  : count * header_.weight_bytes();
  const size_t slot_bytes = count * header_.slot_bytes();
  const size_t statistics_bytes = count * header_.statistics_bytes();
  const size_t payload_bytes =
      RoundUp(key_bytes) + RoundUp(weight_bytes) + RoundUp(slot_bytes) + statistics_bytes;
  const BlockStart start = {kBlockTag, static_cast<uint32_t>(count),
                            header_.padded ? padded_.bytes - kBlockFrame : payload_bytes};
  TF_EMBED_RETURN_IF_ERROR(Put(&start, sizeof(start)));
  in_section_ = 0;
  TF_EMBED_RETURN_IF_ERROR(header_.has_string_keys() ? AppendStrings(rows.key_strings, begin, end)
                                                     : Put(rows.keys + begin, key_bytes));
  TF_EMBED_RETURN_IF_ERROR(Fill());
  TF_EMBED_RETURN_IF_ERROR(header_.has_string_values()
                               ? AppendStrings(rows.value_strings, begin * dim, end * dim)
                               : Put(rows.weights + begin * header_.weight_bytes(), weight_bytes));
  TF_EMBED_RETURN_IF_ERROR(Fill());
  TF_EMBED_RETURN_IF_ERROR(Put(rows.slots + begin * header_.slot_bytes(), slot_bytes));
  TF_EMBED_RETURN_IF_ERROR(Fill());
  TF_EMBED_RETURN_IF_ERROR(
      Put(rows.statistics + begin * header_.statistics.size(), statistics_bytes));
  TF_EMBED_RETURN_IF_ERROR(PutZeros(start.payload_bytes - payload_bytes));
  ++blocks_;
  rows_ += count;
  return PutChecksum();
}

Status RowFileWriter::Finish() {
  if (header_.padded) {
    TF_EMBED_RETURN_IF_ERROR(PutFiller(PaddedBlocks::kEndBytes - sizeof(Footer)));
  }
  Footer footer = {kFooterTag, blocks_, rows_, checksum_, 0};
  TF_EMBED_RETURN_IF_ERROR(Put(&footer, sizeof(footer) - sizeof(footer.crc)));
  return PutChecksum();
}

Status RowFileReader::Damaged(const std::string& what) const {
  return DamagedFile(source_->name(), what);
}

Status RowFileReader::ReadHeader(uint64_t* offset) {
  FileStart start;
  uint32_t crc;
  if (source_->size() < sizeof(start) + sizeof(crc)) {
    return Damaged("it has only " + std::to_string(source_->size()) + " bytes");
  }
  TF_EMBED_RETURN_IF_ERROR(source_->Read(0, sizeof(start), &start));
  if (std::memcmp(start.magic, kMagic, sizeof(kMagic)) != 0) {
    return Damaged("it does not begin as a file of rows does");
  }
  if (start.format < kFormat || start.format > kLinksAndChangesFormat) {
    return Status::DataLoss("'" + source_->name() + "' has rows in the format " +
                            std::to_string(start.format) + ", and only " + std::to_string(kFormat) +
                            " to " + std::to_string(kLinksAndChangesFormat) + " are known.");
  }
  header_.padded = start.format == kPaddedFormat;
  header_.has_changes = start.format == kChangesFormat || start.format == kLinksAndChangesFormat;
  header_.has_links = start.format == kLinksFormat || start.format == kLinksAndChangesFormat;
  if (start.body_bytes % sizeof(int64_t) != 0 ||
      start.body_bytes > source_->size() - sizeof(start) - sizeof(crc)) {
    return Damaged("its header has a wrong length");
  }
  std::vector<int64_t> body;
  try {
    body.resize(start.body_bytes / sizeof(int64_t));
    TF_EMBED_RETURN_IF_ERROR(source_->Read(sizeof(start), start.body_bytes, body.data()));
    TF_EMBED_RETURN_IF_ERROR(source_->Read(sizeof(start) + start.body_bytes, sizeof(crc), &crc));
    const uint32_t expected =
        ExtendCrc32c(ExtendCrc32c(0, &start, sizeof(start)), body.data(), start.body_bytes);
    if (crc != expected) return Damaged("the checksum of its header is wrong");
    const Status status = DecodeBody(body, &header_);
    if (!status.ok()) return Damaged(status.message());
    if ((header_.padded || header_.has_changes || header_.has_links) &&
        (header_.has_string_keys() || header_.has_string_values())) {
      return Damaged("it has strings, and files of its form have none");
    }
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory for the header of a file of rows."; });
  }
  checksum_ = ExtendCrc32c(0, &crc, sizeof(crc));
  *offset = sizeof(start) + start.body_bytes + sizeof(crc);
  return Status();
}

Status RowFileReader::ReadHeader() {
  uint64_t offset;
  return ReadHeader(&offset);
}

Status RowFileReader::Verify() {
  uint64_t offset;
  TF_EMBED_RETURN_IF_ERROR(ReadHeader(&offset));
  RowBlock block(allocator_);
  for (;;) {
    BlockStart start;
    const uint64_t left = source_->size() - offset;
    if (left < sizeof(Footer)) return Damaged("its end is missing");
    TF_EMBED_RETURN_IF_ERROR(source_->Read(offset, sizeof(start), &start));
    if (start.tag == kFooterTag) return ReadFooter(offset, checksum_);
    const bool is_filler = start.tag == kFillerTag && header_.padded;
    const bool left_keys = start.tag == kLeftTag && header_.has_changes;
    const bool is_links = start.tag == kLinksTag && header_.has_links;
    if (start.tag != kBlockTag && !is_filler && !left_keys && !is_links) {
      return Damaged("no block of rows begins at byte " + std::to_string(offset));
    }
    if (left < kBlockFrame + sizeof(Footer) ||
        start.payload_bytes > left - kBlockFrame - sizeof(Footer)) {
      return Damaged("the block at byte " + std::to_string(offset) + " has a wrong length");
    }
    Place place = {offset, kBlockFrame + start.payload_bytes, left_keys, 0};
    TF_EMBED_RETURN_IF_ERROR(ReadBytes(place, &block));
    const char* const bytes = block.bytes_.data();
    uint32_t crc;
    std::memcpy(&crc, bytes + place.bytes - sizeof(crc), sizeof(crc));
    if (is_filler) {
      if (start.rows != 0 || crc != ExtendCrc32c(0, bytes, place.bytes - sizeof(crc)) ||
          !IsZeros(bytes + sizeof(start), bytes + place.bytes - sizeof(crc))) {
        return Damaged("the zeros at byte " + std::to_string(offset) + " are none");
      }
    } else {
      TF_EMBED_RETURN_IF_ERROR(
          ParseRowBlock(header_, source_->name(), offset, bytes, place.bytes, &block));
      if (is_links) TF_EMBED_RETURN_IF_ERROR(CheckLinks(block));
      rows_ += left_keys ? 0 : block.size;
      place.rows = block.size;
      try {
        blocks_.push_back(place);
      } catch (const std::bad_alloc&) {
        return Status::ResourceExhausted([] { return "No memory for a list of blocks of rows."; });
      }
    }
    checksum_ = ExtendCrc32c(checksum_, &crc, sizeof(crc));
    offset += place.bytes;
  }
}

Status RowFileReader::ReadFooter(uint64_t offset, uint32_t crc_of_all) {
  Footer footer;
  if (source_->size() - offset != sizeof(footer)) return Damaged("bytes follow its end");
  TF_EMBED_RETURN_IF_ERROR(source_->Read(offset, sizeof(footer), &footer));
  if (footer.crc != ExtendCrc32c(0, &footer, sizeof(footer) - sizeof(footer.crc))) {
    return Damaged("the checksum of its end is wrong");
  }
  if (footer.blocks != blocks_.size() || footer.rows != rows_ || footer.crc_of_all != crc_of_all) {
    return Damaged("its blocks are not those that were written");
  }
  checksum_ = ExtendCrc32c(checksum_, &footer.crc, sizeof(footer.crc));
  return Status();
}

Status RowFileReader::ReadBytes(const Place& place, RowBlock* block) const {
  TF_EMBED_RETURN_IF_ERROR(block->bytes_.Resize(place.bytes));
  return source_->Read(place.offset, place.bytes, block->bytes_.data());
}

Status RowFileReader::ReadBlock(size_t number, RowBlock* block) const {
  const Place& place = blocks_[number];
  TF_EMBED_RETURN_IF_ERROR(ReadBytes(place, block));
  TF_EMBED_RETURN_IF_ERROR(ParseRowBlock(header_, source_->name(), place.offset,
                                         block->bytes_.data(), place.bytes, block));
  if (block->links_.places == nullptr) return Status();
  const RowBlock links = std::move(*block);
  *block = RowBlock(allocator_);
  return ReadLinked(links, block);
}

namespace {

// Finds `count` strings from `at` on, and moves it past them. False if a length is wrong. REQUIRES:
// all lengths are before `end`.
bool FindStrings(size_t count, const char** at, const char* end, std::string_view* strings) {
  const char* const lengths = *at;
  const char* const begin = *at;
  *at += count * sizeof(uint32_t);
  for (size_t i = 0; i < count; ++i) {
    uint32_t length;
    std::memcpy(&length, lengths + i * sizeof(length), sizeof(length));
    if (length > StringKeys::kLongestString || length > static_cast<size_t>(end - *at))
      return false;
    strings[i] = std::string_view(*at, length);
    *at += length;
  }
  *at =
      begin + std::min(RoundUp(static_cast<size_t>(*at - begin)), static_cast<size_t>(end - begin));
  return true;
}

}  // namespace

Status ParseRowBlock(const RowFileHeader& header, const std::string& file, uint64_t offset,
                     const char* bytes, size_t size, RowBlock* block) {
  const auto damaged = [&](const char* what) {
    return DamagedFile(file, "the rows at byte " + std::to_string(offset) + what);
  };
  BlockStart start;
  uint32_t crc;
  if (size < kBlockFrame) return damaged(" have a wrong length");
  // The checksum first, so that no field of a damaged block is used. It does not prove that the
  // writer was right, so every length is still checked before it is used.
  std::memcpy(&crc, bytes + size - sizeof(crc), sizeof(crc));
  if (crc != ExtendCrc32c(0, bytes, size - sizeof(crc))) {
    return damaged(" have a wrong checksum");
  }
  std::memcpy(&start, bytes, sizeof(start));
  block->left = start.tag == kLeftTag && header.has_changes;
  block->links_.places = nullptr;
  // If the lengths do not fit, the check of the tag below refuses the block.
  if (block->left && start.rows > 0 && start.payload_bytes == size - kBlockFrame &&
      start.payload_bytes == start.rows * sizeof(int64_t)) {
    block->size = start.rows;
    block->keys = reinterpret_cast<const int64_t*>(bytes + sizeof(start));
    block->weights = block->slots = nullptr;
    block->statistics = nullptr;
    return Status();
  }
  if (start.tag == kLinksTag && header.has_links) {
    const char* const where = bytes + sizeof(start);
    const size_t place_bytes = RoundUp(size_t{start.rows} * sizeof(uint32_t));
    if (start.rows == 0 || start.payload_bytes != size - kBlockFrame ||
        start.payload_bytes !=
            2 * sizeof(uint32_t) + place_bytes + start.rows * header.statistics_bytes()) {
      return damaged(" have a wrong length");
    }
    std::memcpy(&block->links_.file, where, sizeof(uint32_t));
    std::memcpy(&block->links_.block, where + sizeof(uint32_t), sizeof(uint32_t));
    const char* const places = where + 2 * sizeof(uint32_t);
    block->links_.places = reinterpret_cast<const uint32_t*>(places);
    block->size = start.rows;
    block->keys = nullptr;
    block->weights = block->slots = nullptr;
    block->statistics = reinterpret_cast<const uint64_t*>(places + place_bytes);
    return Status();
  }
  // The last condition bounds `rows` by the bytes that are there, before memory is taken for
  // strings and sizes are multiplied by it.
  if (start.tag != kBlockTag || start.payload_bytes != size - kBlockFrame || start.rows == 0 ||
      start.rows > start.payload_bytes / LeastRowBytes(header)) {
    return damaged(" have a wrong length");
  }
  const size_t rows = start.rows;
  const size_t dim = header.meta.dim;
  const char* at = bytes + sizeof(start);
  const char* const end = at + start.payload_bytes;
  const auto section = [&](size_t size) -> const char* {
    const size_t rounded = RoundUp(size);
    if (rounded > static_cast<size_t>(end - at)) return nullptr;
    const char* const begin = at;
    at += rounded;
    return begin;
  };
  const auto string_of = [](const void* strings, size_t i) {
    return static_cast<const std::string_view*>(strings)[i];
  };
  const size_t num_key_strings = header.has_string_keys() ? rows : 0;
  const size_t num_value_strings = header.has_string_values() ? rows * dim : 0;
  TF_EMBED_RETURN_IF_ERROR(block->strings_.Resize(num_key_strings + num_value_strings));
  std::string_view* const strings = block->strings_.data();
  block->size = rows;
  block->keys = nullptr;
  block->weights = nullptr;
  if (header.has_string_keys()) {
    if (!FindStrings(num_key_strings, &at, end, strings)) return damaged(" have a wrong string");
    block->key_strings = {strings, num_key_strings, string_of};
  } else {
    block->keys = reinterpret_cast<const int64_t*>(section(rows * sizeof(int64_t)));
    if (block->keys == nullptr) return damaged(" have a wrong length");
  }
  if (header.has_string_values()) {
    // FindStrings does not check that the lengths are there, and the bytes of the key strings may
    // have taken their room.
    if (static_cast<size_t>(end - at) < num_value_strings * sizeof(uint32_t)) {
      return damaged(" have a wrong length");
    }
    if (!FindStrings(num_value_strings, &at, end, strings + num_key_strings)) {
      return damaged(" have a wrong string");
    }
    block->value_strings = {strings + num_key_strings, num_value_strings, string_of};
  } else {
    block->weights = section(rows * header.weight_bytes());
    if (block->weights == nullptr) return damaged(" have a wrong length");
  }
  // Sections point into the block; nothing is copied. In the end all bytes must be used, except the
  // zeros that fill up a block of a padded file.
  block->slots = section(rows * header.slot_bytes());
  block->statistics = reinterpret_cast<const uint64_t*>(section(rows * header.statistics_bytes()));
  if (block->slots == nullptr || block->statistics == nullptr ||
      (header.padded ? !IsZeros(at, end) : at != end)) {
    return damaged(" have a wrong length");
  }
  return Status();
}

void RowBlock::Keep(const RowFileHeader& header, const uint32_t* places, size_t count) {
  // All sections lie in the block's own bytes.
  const auto keep = [&](const void* section, size_t row_bytes) {
    char* const rows = bytes_.data() + (static_cast<const char*>(section) - bytes_.data());
    for (size_t to = 0; to < count; ++to) {
      if (places[to] != to) {
        std::memcpy(rows + to * row_bytes, rows + places[to] * row_bytes, row_bytes);
      }
    }
  };
  keep(keys, sizeof(int64_t));
  keep(weights, header.weight_bytes());
  if (header.slot_bytes() > 0) keep(slots, header.slot_bytes());
  if (header.statistics_bytes() > 0) keep(statistics, header.statistics_bytes());
  size = count;
}

}  // namespace tf_embed
