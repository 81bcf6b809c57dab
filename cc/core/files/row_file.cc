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
constexpr uint32_t kBlockTag = 'r';
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

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The body's numbers before those of TableMeta, whose count comes last.
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

}  // namespace

const char* NameOf(StoredType type) { return kStoredTypeNames[static_cast<size_t>(type)].name; }

Status RowFileWriter::Put(const void* bytes, size_t size) {
  if (size == 0) return Status();
  crc_ = ExtendCrc32c(crc_, bytes, size);
  bytes_ += size;
  in_section_ += size;
  return sink_->Append(bytes, size);
}

Status RowFileWriter::Fill() {
  constexpr char kZeros[kAlignment] = {};
  const size_t missing = RoundUp(in_section_) - in_section_;
  TF_EMBED_RETURN_IF_ERROR(Put(kZeros, missing));
  in_section_ = 0;
  return Status();
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
  header_ = header;
  const std::vector<int64_t> body = EncodeBody(header);
  FileStart start = {{}, kFormat, 0, body.size() * sizeof(int64_t)};
  std::memcpy(start.magic, kMagic, sizeof(kMagic));
  TF_EMBED_RETURN_IF_ERROR(Put(&start, sizeof(start)));
  TF_EMBED_RETURN_IF_ERROR(Put(body.data(), start.body_bytes));
  return PutChecksum();
}

size_t RowFileWriter::EndOfBlock(const RowsToWrite& rows, size_t begin) const {
  const size_t fixed_bytes =
      (header_.has_string_keys() ? sizeof(uint32_t) : sizeof(int64_t)) +
      (header_.has_string_values() ? header_.meta.dim * sizeof(uint32_t) : header_.weight_bytes()) +
      header_.slot_bytes() + header_.statistics_bytes();
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
    const std::string_view string = strings[i];
    at = std::copy(string.begin(), string.end(), at);
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
  const BlockStart start = {
      kBlockTag, static_cast<uint32_t>(count),
      RoundUp(key_bytes) + RoundUp(weight_bytes) + RoundUp(slot_bytes) + statistics_bytes};
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
  ++blocks_;
  rows_ += count;
  return PutChecksum();
}

Status RowFileWriter::Finish() {
  Footer footer = {kFooterTag, blocks_, rows_, checksum_, 0};
  TF_EMBED_RETURN_IF_ERROR(Put(&footer, sizeof(footer) - sizeof(footer.crc)));
  return PutChecksum();
}

Status RowFileReader::Damaged(const std::string& what) const {
  return Status::DataLoss("'" + source_->name() + "' is damaged: " + what + ".");
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
  if (start.format != kFormat) {
    return Status::DataLoss("'" + source_->name() + "' has rows in the format " +
                            std::to_string(start.format) + ", and only " + std::to_string(kFormat) +
                            " is known.");
  }
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
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory for the header of a file of rows."; });
  }
  checksum_ = ExtendCrc32c(0, &crc, sizeof(crc));
  *offset = sizeof(start) + start.body_bytes + sizeof(crc);
  return Status();
}

size_t RowFileReader::LeastRowBytes() const {
  return (header_.has_string_keys() ? sizeof(uint32_t) : sizeof(int64_t)) +
         (header_.has_string_values() ? header_.meta.dim * sizeof(uint32_t)
                                      : header_.weight_bytes()) +
         header_.slot_bytes() + header_.statistics_bytes();
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
    if (start.tag != kBlockTag) {
      return Damaged("no block of rows begins at byte " + std::to_string(offset));
    }
    Place place = {offset + sizeof(start), start.rows, start.payload_bytes,
                   ExtendCrc32c(0, &start, sizeof(start))};
    constexpr size_t kMin = sizeof(start) + sizeof(uint32_t) + sizeof(Footer);
    if (left < kMin || place.bytes > left - kMin || place.rows == 0 ||
        place.rows > place.bytes / LeastRowBytes()) {
      return Damaged("the block at byte " + std::to_string(offset) + " has a wrong length");
    }
    TF_EMBED_RETURN_IF_ERROR(ReadPayload(place, &block));
    uint32_t crc;
    std::memcpy(&crc, block.bytes_.data() + place.bytes, sizeof(crc));
    checksum_ = ExtendCrc32c(checksum_, &crc, sizeof(crc));
    rows_ += place.rows;
    offset = place.offset + place.bytes + sizeof(crc);
    try {
      blocks_.push_back(place);
    } catch (const std::bad_alloc&) {
      return Status::ResourceExhausted([] { return "No memory for a list of blocks of rows."; });
    }
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

Status RowFileReader::ReadBlock(size_t number, RowBlock* block) const {
  return ReadPayload(blocks_[number], block);
}

Status RowFileReader::ReadStrings(size_t count, const char** at, const char* end,
                                  std::string_view* strings) const {
  const char* const lengths = *at;
  const char* const begin = *at;
  // The caller has seen that all lengths are there.
  *at += count * sizeof(uint32_t);
  for (size_t i = 0; i < count; ++i) {
    uint32_t length;
    std::memcpy(&length, lengths + i * sizeof(length), sizeof(length));
    if (length > StringKeys::kLongestString || length > static_cast<size_t>(end - *at)) {
      return Damaged("a string in it has a wrong length");
    }
    strings[i] = std::string_view(*at, length);
    *at += length;
  }
  *at =
      begin + std::min(RoundUp(static_cast<size_t>(*at - begin)), static_cast<size_t>(end - begin));
  return Status();
}

Status RowFileReader::ReadPayload(const Place& place, RowBlock* block) const {
  uint32_t crc;
  TF_EMBED_RETURN_IF_ERROR(block->bytes_.Resize(place.bytes + sizeof(crc)));
  char* const bytes = block->bytes_.data();
  TF_EMBED_RETURN_IF_ERROR(source_->Read(place.offset, place.bytes + sizeof(crc), bytes));
  std::memcpy(&crc, bytes + place.bytes, sizeof(crc));
  if (crc != ExtendCrc32c(place.crc, bytes, place.bytes)) {
    return Damaged("the checksum of the rows at byte " + std::to_string(place.offset) +
                   " is wrong");
  }
  const size_t rows = place.rows;
  const size_t dim = header_.meta.dim;
  const char* at = bytes;
  const char* const end = bytes + place.bytes;
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
  const size_t num_key_strings = header_.has_string_keys() ? rows : 0;
  const size_t num_value_strings = header_.has_string_values() ? rows * dim : 0;
  TF_EMBED_RETURN_IF_ERROR(block->strings_.Resize(num_key_strings + num_value_strings));
  std::string_view* const strings = block->strings_.data();
  block->size = rows;
  block->keys = nullptr;
  block->weights = nullptr;
  const auto wrong = [&] {
    return Damaged("the rows at byte " + std::to_string(place.offset) + " have a wrong length");
  };
  if (header_.has_string_keys()) {
    TF_EMBED_RETURN_IF_ERROR(ReadStrings(num_key_strings, &at, end, strings));
    block->key_strings = {strings, num_key_strings, string_of};
  } else {
    block->keys = reinterpret_cast<const int64_t*>(section(rows * sizeof(int64_t)));
    if (block->keys == nullptr) return wrong();
  }
  if (header_.has_string_values()) {
    if (static_cast<size_t>(end - at) < num_value_strings * sizeof(uint32_t)) return wrong();
    TF_EMBED_RETURN_IF_ERROR(ReadStrings(num_value_strings, &at, end, strings + num_key_strings));
    block->value_strings = {strings + num_key_strings, num_value_strings, string_of};
  } else {
    block->weights = section(rows * header_.weight_bytes());
    if (block->weights == nullptr) return wrong();
  }
  block->slots = section(rows * header_.slot_bytes());
  block->statistics = reinterpret_cast<const uint64_t*>(section(rows * header_.statistics_bytes()));
  if (block->slots == nullptr || block->statistics == nullptr || at != end) return wrong();
  return Status();
}

}  // namespace tf_embed
