// SPDX-License-Identifier: Apache-2.0
#include "cc/core/files/row_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/files/crc32c.h"
#include "gtest/gtest.h"
#include "tests/cc/support/failing_allocator.h"

namespace tf_embed {
namespace {

class Memory final : public ByteSink, public ByteSource {
 public:
  Status Append(const void* bytes, size_t size) override {
    if (room < size) return Status::Unavailable("the disk is full");
    room -= size;
    content.append(static_cast<const char*>(bytes), size);
    return Status();
  }
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return content.size(); }
  Status Read(uint64_t offset, size_t size, void* bytes) const override {
    if (offset > content.size() || size > content.size() - offset) {
      return Status::DataLoss("read beyond the end");
    }
    std::memcpy(bytes, content.data() + offset, size);
    return Status();
  }

  std::string content;
  size_t room = SIZE_MAX;

 private:
  std::string name_ = "memory";
};

// Rows of any type, made from their numbers.
struct Rows {
  explicit Rows(size_t count, const RowFileHeader& header) {
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(static_cast<int64_t>(i * 0x9e3779b97f4a7c15u));
      key_strings.push_back(std::string(i % 11, static_cast<char>('a' + i % 26)));
      for (size_t j = 0; j < header.meta.dim; ++j) {
        value_strings.push_back(std::string((i + j) % 5, static_cast<char>(i)));
      }
      for (size_t j = 0; j < header.statistics.size(); ++j) statistics.push_back(i << (8 * j));
    }
    for (size_t i = 0; i < count * header.weight_bytes(); ++i) weights += static_cast<char>(i * 7);
    for (size_t i = 0; i < count * header.slot_bytes(); ++i) slots += static_cast<char>(i * 5);
  }

  static StringBatch Batch(const std::vector<std::string>& strings) {
    return {strings.data(), strings.size(), [](const void* strings, size_t i) {
              return std::string_view(static_cast<const std::string*>(strings)[i]);
            }};
  }
  RowsToWrite ToWrite() const {
    RowsToWrite rows;
    rows.size = keys.size();
    rows.keys = keys.data();
    rows.key_strings = Batch(key_strings);
    rows.weights = weights.data();
    rows.value_strings = Batch(value_strings);
    rows.slots = slots.data();
    rows.statistics = statistics.data();
    return rows;
  }

  std::vector<int64_t> keys;
  std::vector<std::string> key_strings, value_strings;
  std::string weights, slots;
  std::vector<uint64_t> statistics;
};

RowFileHeader Header(StoredType key_type, StoredType value_type, size_t dim) {
  RowFileHeader header;
  header.key_type = key_type;
  header.value_type = value_type;
  header.shard = 1;
  header.num_shards = 3;
  header.save = 0xfedcba9876543210u;
  header.statistics = StatisticSet().With(Statistic::kLastStep).With(Statistic::kScore);
  header.meta.seed = 7;
  header.meta.table_id = ~uint64_t{0};
  header.meta.dim = dim;
  header.meta.value_type = value_type == StoredType::kString ? DataType::kInt64
                           : value_type == StoredType::kHalf ? DataType::kHalf
                                                             : DataType::kFloat;
  if (value_type != StoredType::kString) header.meta.rule = FusedSlots(RuleKind::kAdam, dim);
  header.policy = {1, 5, 9, -1};
  return header;
}

RowFileHeader Plain(size_t dim = 3) { return Header(StoredType::kInt64, StoredType::kFloat, dim); }
RowFileHeader Padded(StoredType value_type = StoredType::kFloat, size_t dim = 3) {
  RowFileHeader header = Header(StoredType::kInt64, value_type, dim);
  header.padded = true;
  return header;
}
RowFileHeader Changes() {
  RowFileHeader header = Plain();
  header.has_changes = true;
  return header;
}
RowFileHeader Strings() { return Header(StoredType::kString, StoredType::kString, 2); }

Status Write(const RowFileHeader& header, const Rows& rows, size_t block_bytes, Memory* file,
             Allocator* allocator = HostAllocator()) {
  RowFileWriter writer(file, allocator, block_bytes);
  TF_EMBED_RETURN_IF_ERROR(writer.Begin(header));
  TF_EMBED_RETURN_IF_ERROR(writer.Append(rows.ToWrite()));
  TF_EMBED_RETURN_IF_ERROR(writer.Append(RowsToWrite()));
  TF_EMBED_RETURN_IF_ERROR(writer.Finish());
  EXPECT_EQ(file->content.size(), writer.bytes());
  EXPECT_EQ(rows.keys.size(), writer.rows());
  return Status();
}

void ExpectRows(const Rows& rows, const RowFileReader& reader) {
  const RowFileHeader& header = reader.header();
  size_t done = 0;
  for (size_t number = 0; number < reader.num_blocks(); ++number) {
    RowBlock block(HostAllocator());
    ASSERT_TRUE(reader.ReadBlock(number, &block).ok());
    EXPECT_EQ(block.size, reader.RowsIn(number));
    for (size_t i = 0; i < block.size; ++i, ++done) {
      if (header.has_string_keys()) {
        EXPECT_EQ(rows.key_strings[done], block.key_strings[i]);
      } else {
        EXPECT_EQ(rows.keys[done], block.keys[i]);
      }
      for (size_t j = 0; header.has_string_values() && j < header.meta.dim; ++j) {
        EXPECT_EQ(rows.value_strings[done * header.meta.dim + j],
                  block.value_strings[i * header.meta.dim + j]);
      }
    }
    const size_t begin = done - block.size;
    const auto expect_bytes = [&](const void* all, const void* some, size_t row_bytes) {
      EXPECT_EQ(0, std::memcmp(static_cast<const char*>(all) + begin * row_bytes, some,
                               block.size * row_bytes));
    };
    if (!header.has_string_values()) {
      expect_bytes(rows.weights.data(), block.weights, header.weight_bytes());
    }
    expect_bytes(rows.slots.data(), block.slots, header.slot_bytes());
    expect_bytes(rows.statistics.data(), block.statistics, header.statistics_bytes());
  }
  EXPECT_EQ(rows.keys.size(), done);
}

TEST(RowFile, GivesBackWhatWasWritten) {
  for (const RowFileHeader& header :
       {Plain(), Plain(1), Strings(), Header(StoredType::kString, StoredType::kHalf, 5),
        Header(StoredType::kUint32, StoredType::kString, 1), Padded(), Padded(StoredType::kHalf, 7),
        Padded(StoredType::kFloat, 900)}) {
    for (const size_t block_bytes : {1, 200, 1 << 20}) {
      for (const size_t count : {0, 1, 57}) {
        const Rows rows(count, header);
        Memory file;
        ASSERT_TRUE(Write(header, rows, block_bytes, &file).ok());
        RowFileReader reader(&file, HostAllocator());
        const Status status = reader.Verify();
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(count, reader.rows());
        if (block_bytes == 1 && !header.padded) {
          EXPECT_EQ(count, reader.num_blocks());
        }
        if (block_bytes == 1 << 20 && !header.padded) {
          EXPECT_EQ(count > 0 ? 1u : 0u, reader.num_blocks());
        }
        ExpectRows(rows, reader);
      }
    }
  }
}

// A file that links some rows of a padded file. It has its own rows before and after them.
struct WithLinks {
  WithLinks() {
    header.has_links = true;
    RowFileHeader of_linked = header;
    of_linked.has_links = false;
    of_linked.padded = true;
    of_linked.statistics = StatisticSet();
    of_linked.policy.clear();
    EXPECT_TRUE(Write(of_linked, all, 0, &linked).ok());
    linked_reader = std::make_unique<RowFileReader>(&linked, HostAllocator());
    EXPECT_TRUE(linked_reader->Verify().ok());
    links = {linked_reader.get()};
    block_rows = PaddedBlocks::Of(of_linked).rows;
  }

  // Links the rows at `places`, counted from block 1 on.
  void Make(const std::vector<uint32_t>& places, uint32_t number = 0) {
    const auto part = [&](size_t begin, size_t end) {
      RowsToWrite rows = all.ToWrite();
      rows.size = end - begin;
      rows.keys += begin;
      rows.weights += begin * header.weight_bytes();
      rows.slots += begin * header.slot_bytes();
      rows.statistics += begin * header.statistics.size();
      return rows;
    };
    LinkedRows rows(HostAllocator());
    rows.file = number;
    rows.block = 1;
    rows.size = places.size();
    ASSERT_TRUE(rows.places.Resize(rows.size).ok());
    ASSERT_TRUE(rows.statistics.Resize(rows.size * header.statistics.size()).ok());
    std::copy(places.begin(), places.end(), rows.places.data());
    for (size_t i = 0; i < rows.size; ++i) {
      const size_t row = (block_rows + places[i]) % all.keys.size();
      std::copy_n(all.statistics.begin() + static_cast<ptrdiff_t>(row * header.statistics.size()),
                  header.statistics.size(), rows.statistics.data() + i * header.statistics.size());
    }
    file.content.clear();
    RowFileWriter writer(&file, HostAllocator(), 1 << 20);
    ASSERT_TRUE(writer.Begin(header).ok());
    ASSERT_TRUE(writer.Append(part(0, block_rows)).ok());
    ASSERT_TRUE(writer.AppendLinked(rows).ok());
    ASSERT_TRUE(writer.Append(part(all.keys.size() - 1, all.keys.size())).ok());
    ASSERT_TRUE(writer.Finish().ok());
    EXPECT_EQ(block_rows + places.size() + 1, writer.rows());
  }

  Status Verify() const {
    RowFileReader reader(&file, HostAllocator());
    reader.SetLinks(links);
    return reader.Verify();
  }

  RowFileHeader header = Plain();
  Rows all{500, header};
  Memory linked, file;
  std::unique_ptr<RowFileReader> linked_reader;
  std::vector<const RowFileReader*> links;
  size_t block_rows = 0;
};

std::vector<uint32_t> Upwards(size_t begin, size_t end) {
  std::vector<uint32_t> numbers;
  for (size_t i = begin; i < end; ++i) numbers.push_back(static_cast<uint32_t>(i));
  return numbers;
}

TEST(RowFile, HasRowsOfLinkedFiles) {
  WithLinks with;
  with.Make(Upwards(0, with.all.keys.size() - with.block_rows - 1));
  RowFileReader reader(&with.file, HostAllocator());
  reader.SetLinks(with.links);
  const Status status = reader.Verify();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(reader.header().has_links);
  EXPECT_EQ(with.all.keys.size(), reader.rows());
  ExpectRows(with.all, reader);

  // Some of the rows, from several blocks.
  std::vector<uint32_t> places;
  for (uint32_t place = 3; place < with.all.keys.size() - with.block_rows; place += 29) {
    places.push_back(place);
  }
  with.Make(places);
  RowFileReader some(&with.file, HostAllocator());
  some.SetLinks(with.links);
  ASSERT_TRUE(some.Verify().ok());
  RowBlock block(HostAllocator());
  ASSERT_TRUE(some.ReadBlock(1, &block).ok());
  ASSERT_EQ(places.size(), block.size);
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t row = with.block_rows + places[i];
    EXPECT_EQ(with.all.keys[row], block.keys[i]);
    EXPECT_EQ(with.all.statistics[2 * row + 1], block.statistics[2 * i + 1]);
    EXPECT_EQ(0, std::memcmp(with.all.slots.data() + row * with.header.slot_bytes(),
                             block.slots + i * with.header.slot_bytes(), with.header.slot_bytes()));
  }
}

TEST(RowFile, RefusesLinksThatLeadNowhere) {
  WithLinks with;
  const auto rows = static_cast<uint32_t>(with.all.keys.size());
  with.Make({0, 1, rows + 300});
  EXPECT_EQ("'memory' is damaged: it has rows that 'memory' does not have.",
            with.Verify().message());
  with.Make({0, 2, 1});
  EXPECT_EQ("'memory' is damaged: its links do not rise.", with.Verify().message());
  with.Make({0, 1}, 1);
  EXPECT_EQ("'memory' is damaged: it has rows of a file that is not there.",
            with.Verify().message());
  with.Make({0, 1});
  EXPECT_TRUE(with.Verify().ok());
  RowFileReader without(&with.file, HostAllocator());
  EXPECT_EQ("'memory' is damaged: it has rows of a file that is not there.",
            without.Verify().message());
  // The last block of the linked file is not full.
  const uint32_t behind =
      static_cast<uint32_t>((with.linked_reader->num_blocks() - 1) * with.block_rows - 1);
  ASSERT_GE(behind + with.block_rows, rows);
  with.Make({behind});
  RowFileReader reader(&with.file, HostAllocator());
  reader.SetLinks(with.links);
  ASSERT_TRUE(reader.Verify().ok());
  RowBlock block(HostAllocator());
  EXPECT_EQ("'memory' is damaged: it has a row that 'memory' does not have.",
            reader.ReadBlock(1, &block).message());
}

TEST(RowFile, RefusesStringsInFormsWithoutThem) {
  for (const RowFileHeader& header :
       {Strings(), Header(StoredType::kUint32, StoredType::kString, 1),
        Header(StoredType::kString, StoredType::kFloat, 1)}) {
    for (char format = 2; format <= 5; ++format) {
      Memory file;
      ASSERT_TRUE(Write(header, Rows(0, header), 1, &file).ok());
      file.content[8] = format;
      uint64_t body_bytes;
      std::memcpy(&body_bytes, file.content.data() + 16, sizeof(body_bytes));
      const size_t end = 24 + body_bytes;
      const uint32_t crc = ExtendCrc32c(0, file.content.data(), end);
      std::memcpy(file.content.data() + end, &crc, sizeof(crc));
      EXPECT_EQ("'memory' is damaged: it has strings, and files of its form have none.",
                RowFileReader(&file, HostAllocator()).Verify().message());
    }
  }
}

TEST(RowFile, EachFlippedBitOfLinksIsAnError) {
  WithLinks with;
  with.Make({0, 5, 7, 31});
  for (size_t i = 0; i < with.file.content.size(); ++i) {
    char& byte = with.file.content[i];
    byte = static_cast<char>(byte ^ (1 << (i % 8)));
    EXPECT_FALSE(with.Verify().ok()) << i;
    byte = static_cast<char>(byte ^ (1 << (i % 8)));
  }
}

TEST(RowFile, KeepsItsHeader) {
  Memory file;
  ASSERT_TRUE(Write(Plain(), Rows(2, Plain()), 100, &file).ok());
  RowFileReader reader(&file, HostAllocator());
  ASSERT_TRUE(reader.Verify().ok());
  const RowFileHeader& header = reader.header();
  EXPECT_EQ(StoredType::kInt64, header.key_type);
  EXPECT_EQ(StoredType::kFloat, header.value_type);
  EXPECT_EQ(1u, header.shard);
  EXPECT_EQ(3u, header.num_shards);
  EXPECT_EQ(0xfedcba9876543210u, header.save);
  EXPECT_EQ(Plain().statistics.bits(), header.statistics.bits());
  EXPECT_EQ(Plain().policy, header.policy);
  EXPECT_EQ(7u, header.meta.seed);
  EXPECT_TRUE(SameRuleAndInitialValues(Plain().meta.rule, header.meta.rule));
}

TEST(RowFile, PaddedBlocksBeginAtPages) {
  constexpr size_t kPage = PaddedBlocks::kPage;
  for (const StoredType type : {StoredType::kFloat, StoredType::kHalf}) {
    for (size_t dim = 1; dim < 6000; dim += 1 + dim / 7) {
      const RowFileHeader header = Padded(type, dim);
      const PaddedBlocks blocks = PaddedBlocks::Of(header);
      const size_t row_bytes =
          8 + header.weight_bytes() + header.slot_bytes() + header.statistics_bytes();
      ASSERT_EQ(0u, blocks.bytes % kPage);
      ASSERT_GE(blocks.rows * row_bytes, blocks.bytes / 4 * 3);
      const Rows rows(2 * blocks.rows + 1, header);
      Memory file;
      ASSERT_TRUE(Write(header, rows, 0, &file).ok());
      ASSERT_EQ(kPage, blocks.begin);
      ASSERT_EQ(blocks.begin + 3 * blocks.bytes + PaddedBlocks::kEndBytes, file.content.size());
      // Each block can be read by itself.
      std::string bytes(blocks.bytes, '\0');
      ASSERT_TRUE(file.Read(blocks.begin + blocks.bytes, blocks.bytes, bytes.data()).ok());
      RowBlock block(HostAllocator());
      ASSERT_TRUE(ParseRowBlock(header, "memory", 0, bytes.data(), bytes.size(), &block).ok());
      EXPECT_EQ(blocks.rows, block.size);
      EXPECT_EQ(rows.keys[blocks.rows], block.keys[0]);
      // A block with too few bytes is damaged.
      EXPECT_EQ(StatusCode::kDataLoss,
                ParseRowBlock(header, "memory", 0, bytes.data(), 10, &block).code());
      EXPECT_EQ(StatusCode::kDataLoss,
                ParseRowBlock(header, "memory", 0, bytes.data(), bytes.size() - 8, &block).code());
    }
  }
}

TEST(RowFile, FilesOfTheFirstFormatAreAsTheyWere) {
  // 57 rows as they were written before there was a second format.
  Memory file;
  ASSERT_TRUE(Write(Plain(), Rows(57, Plain()), 200, &file).ok());
  EXPECT_EQ(1, file.content[8]);
  EXPECT_EQ(size_t{4120}, file.content.size());
  EXPECT_EQ(588026008u, ExtendCrc32c(0, file.content.data(), file.content.size()));
}

TEST(RowFile, FillersAreOfPaddedFilesOnly) {
  Memory file;
  ASSERT_TRUE(Write(Padded(), Rows(3, Padded()), 0, &file).ok());
  const uint32_t first_format = 1;
  std::memcpy(&file.content[8], &first_format, sizeof(first_format));
  uint64_t body_bytes;
  std::memcpy(&body_bytes, &file.content[16], sizeof(body_bytes));
  const uint32_t crc = ExtendCrc32c(0, file.content.data(), 24 + body_bytes);
  std::memcpy(&file.content[24 + body_bytes], &crc, sizeof(crc));
  RowFileReader reader(&file, HostAllocator());
  EXPECT_EQ(StatusCode::kDataLoss, reader.Verify().code());
}

TEST(RowFile, StringsAreNotPaddedAndHaveNoChanges) {
  for (bool RowFileHeader::*const form : {&RowFileHeader::padded, &RowFileHeader::has_changes}) {
    RowFileHeader header = Strings();
    header.*form = true;
    Memory file;
    const Status status = Write(header, Rows(1, header), 1, &file);
    EXPECT_EQ(StatusCode::kInvalidArgument, status.code());
    EXPECT_EQ("A padded file of rows, one of changes, or one with links can't have strings.",
              status.message());
  }
}

// A file of changes: rows, and removed keys before and after them.
Status WriteChanges(const Rows& rows, const std::vector<int64_t>& left, size_t block_bytes,
                    Memory* file) {
  RowFileWriter writer(file, HostAllocator(), block_bytes);
  TF_EMBED_RETURN_IF_ERROR(writer.Begin(Changes()));
  TF_EMBED_RETURN_IF_ERROR(writer.AppendLeft(left.data(), left.size() / 2));
  TF_EMBED_RETURN_IF_ERROR(writer.Append(rows.ToWrite()));
  TF_EMBED_RETURN_IF_ERROR(
      writer.AppendLeft(left.data() + left.size() / 2, left.size() - left.size() / 2));
  return writer.Finish();
}

TEST(RowFile, KeysThatLeftComeBackBesideRows) {
  const std::vector<int64_t> left = {5, -1, 1 << 20, 7, 5};
  for (const size_t block_bytes : {1, 16, 1 << 20}) {
    const Rows rows(9, Changes());
    Memory file;
    ASSERT_TRUE(WriteChanges(rows, left, block_bytes, &file).ok());
    RowFileReader reader(&file, HostAllocator());
    const Status status = reader.Verify();
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(reader.header().has_changes);
    EXPECT_EQ(9u, reader.rows());
    std::vector<int64_t> found, keys;
    for (size_t number = 0; number < reader.num_blocks(); ++number) {
      RowBlock block(HostAllocator());
      ASSERT_TRUE(reader.ReadBlock(number, &block).ok());
      EXPECT_EQ(reader.HasLeft(number), block.left);
      EXPECT_EQ(block.size, reader.RowsIn(number));
      std::vector<int64_t>& to = block.left ? found : keys;
      to.insert(to.end(), block.keys, block.keys + block.size);
    }
    EXPECT_EQ(left, found);
    EXPECT_EQ(rows.keys, keys);
  }
}

TEST(RowFile, OtherFilesHaveNoKeysThatLeft) {
  // The header of a file of rows, followed by the blocks of a file of changes.
  Memory rows, changes;
  RowFileHeader header = Changes();
  ASSERT_TRUE(WriteChanges(Rows(0, header), {1, 2}, 1, &changes).ok());
  header.has_changes = false;
  ASSERT_TRUE(Write(header, Rows(0, header), 1, &rows).ok());
  const size_t begin = rows.content.size() - 24;
  changes.content = rows.content.substr(0, begin) + changes.content.substr(begin);
  RowFileReader reader(&changes, HostAllocator());
  EXPECT_EQ(StatusCode::kDataLoss, reader.Verify().code());
}

TEST(RowFile, ABlockKeepsSomeOfItsRows) {
  const Rows rows(9, Plain());
  Memory file;
  ASSERT_TRUE(Write(Plain(), rows, 1 << 20, &file).ok());
  RowFileReader reader(&file, HostAllocator());
  ASSERT_TRUE(reader.Verify().ok());
  RowBlock block(HostAllocator());
  ASSERT_TRUE(reader.ReadBlock(0, &block).ok());
  const uint32_t places[] = {0, 3, 4, 8};
  block.Keep(reader.header(), places, 4);
  ASSERT_EQ(4u, block.size);
  const RowFileHeader header = Plain();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows.keys[places[i]], block.keys[i]);
    const auto same = [&](const void* all, const void* some, size_t bytes) {
      return std::memcmp(static_cast<const char*>(all) + places[i] * bytes,
                         static_cast<const char*>(some) + i * bytes, bytes) == 0;
    };
    EXPECT_TRUE(same(rows.weights.data(), block.weights, header.weight_bytes()));
    EXPECT_TRUE(same(rows.slots.data(), block.slots, header.slot_bytes()));
    EXPECT_TRUE(same(rows.statistics.data(), block.statistics, header.statistics_bytes()));
  }
}

TEST(RowFile, EveryFlippedBitIsFound) {
  for (const RowFileHeader& header : {Plain(), Strings(), Padded(), Changes()}) {
    Memory file;
    const Rows rows(3, header);
    ASSERT_TRUE((header.has_changes ? WriteChanges(rows, {1, 2, 3}, 60, &file)
                                    : Write(header, rows, 60, &file))
                    .ok());
    const std::string good = file.content;
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      file.content = good;
      file.content[bit / 8] = static_cast<char>(file.content[bit / 8] ^ 1 << bit % 8);
      RowFileReader reader(&file, HostAllocator());
      const Status status = reader.Verify();
      EXPECT_EQ(StatusCode::kDataLoss, status.code()) << "bit " << bit;
      EXPECT_NE(std::string::npos, status.message().find("'memory'")) << status.message();
    }
  }
}

TEST(RowFile, EveryOtherLengthIsFound) {
  for (const RowFileHeader& header : {Plain(), Padded()}) {
    Memory file;
    ASSERT_TRUE(Write(header, Rows(5, header), 100, &file).ok());
    const std::string good = file.content;
    for (size_t size = 0; size < good.size(); ++size) {
      file.content = good.substr(0, size);
      RowFileReader reader(&file, HostAllocator());
      EXPECT_EQ(StatusCode::kDataLoss, reader.Verify().code()) << size;
    }
    file.content = good + '\0';
    RowFileReader reader(&file, HostAllocator());
    EXPECT_EQ(StatusCode::kDataLoss, reader.Verify().code());
  }
}

TEST(RowFile, BlocksThatChangePlacesOrAreLeftOutAreFound) {
  // Blocks of equal length, each with a correct checksum.
  Memory file, empty;
  ASSERT_TRUE(Write(Plain(), Rows(3, Plain()), 1, &file).ok());
  ASSERT_TRUE(Write(Plain(), Rows(0, Plain()), 1, &empty).ok());
  constexpr size_t kFooter = 24;
  const size_t begin = empty.content.size() - kFooter;
  const size_t block = (file.content.size() - empty.content.size()) / 3;
  const std::string good = file.content;
  const auto verify = [&](const std::string& content) {
    file.content = content;
    RowFileReader reader(&file, HostAllocator());
    return reader.Verify().code();
  };
  EXPECT_EQ(StatusCode::kOk, verify(good));
  EXPECT_EQ(StatusCode::kDataLoss,
            verify(good.substr(0, begin) + good.substr(begin + block, block) +
                   good.substr(begin, block) + good.substr(begin + 2 * block)));
  EXPECT_EQ(StatusCode::kDataLoss, verify(good.substr(0, begin) + good.substr(begin + block)));
}

TEST(RowFile, AFailingSinkFailsTheWriter) {
  Memory whole;
  ASSERT_TRUE(Write(Strings(), Rows(4, Strings()), 50, &whole).ok());
  for (size_t room = 0; room < whole.content.size(); ++room) {
    Memory file;
    file.room = room;
    EXPECT_EQ(StatusCode::kUnavailable, Write(Strings(), Rows(4, Strings()), 50, &file).code());
  }
}

TEST(RowFile, WithoutMemoryItFailsAndLosesNone) {
  Memory whole;
  ASSERT_TRUE(Write(Strings(), Rows(9, Strings()), 1 << 20, &whole).ok());
  bool written = false, read = false;
  for (int64_t count = 0; !written || !read; ++count) {
    ASSERT_LT(count, 100);
    FailingAllocator allocator;
    Memory file;
    allocator.FailAfter(count);
    const Status write = Write(Strings(), Rows(9, Strings()), 1 << 20, &file, &allocator);
    written = write.ok();
    if (!written) {
      EXPECT_EQ(StatusCode::kResourceExhausted, write.code());
    }
    allocator.FailAfter(count);
    RowFileReader reader(&whole, &allocator);
    const Status status = reader.Verify();
    read = status.ok();
    if (!read) {
      EXPECT_EQ(StatusCode::kResourceExhausted, status.code());
    }
  }
}

}  // namespace
}  // namespace tf_embed
