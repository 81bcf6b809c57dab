// SPDX-License-Identifier: Apache-2.0
// Row files: a first file, and a second file that may link it. Both are read as they are, and with
// correct checksums. Otherwise mainly the checksums would be tested.
//
//     | bytes of the first file : 4 | first file | second file |
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/files/row_file.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

constexpr size_t kStart = 24, kFrame = 20, kFooter = 24, kCrc = sizeof(uint32_t);

// Writes correct checksums and sums into bytes that look like a row file.
std::string Repaired(std::string_view bytes) {
  std::string file(bytes);
  if (file.size() < kStart + kCrc) return file;
  const uint64_t body = Load<uint64_t>(file, 16);
  if (body > file.size() - kStart - kCrc) return file;
  size_t at = 0;
  uint32_t of_all = 0;
  const auto put_crc = [&](size_t size) {
    const uint32_t crc = ExtendCrc32c(0, file.data() + at, size);
    StoreAt(crc, at + size, &file);
    of_all = ExtendCrc32c(of_all, &crc, sizeof(crc));
    at += size + kCrc;
  };
  put_crc(kStart + body);
  uint64_t rows = 0;
  uint32_t blocks = 0;
  while (file.size() - at >= kFooter) {
    const uint32_t tag = Load<uint32_t>(file, at);
    if (tag == 'e') {
      file.resize(at + kFooter);
      StoreAt(blocks, at + 4, &file);
      StoreAt(rows, at + 8, &file);
      StoreAt(of_all, at + 16, &file);
      put_crc(kFooter - kCrc);
      break;
    }
    const uint64_t payload = Load<uint64_t>(file, at + 8);
    if (file.size() - at < kFrame + kFooter || payload > file.size() - at - kFrame - kFooter) break;
    blocks += tag == 'f' ? 0 : 1;
    rows += tag == 'r' || tag == 's' ? Load<uint32_t>(file, at + 4) : 0;
    put_crc(kFrame - kCrc + payload);
  }
  return file;
}

uint64_t SumOf(const void* bytes, size_t size) {
  return size == 0 ? 0 : ExtendCrc32c(0, bytes, size);
}

// Reads everything that a block has.
uint64_t SumOf(const RowFileHeader& header, const RowBlock& block) {
  uint64_t sum = 0;
  if (block.keys != nullptr) sum += SumOf(block.keys, block.size * sizeof(int64_t));
  if (block.left) return sum;
  const auto add = [&](const StringBatch& strings) {
    for (size_t i = 0; i < strings.size; ++i) sum += SumOf(strings[i].data(), strings[i].size());
  };
  if (header.has_string_keys()) {
    Require(block.key_strings.size == block.size, "each row has a key");
    add(block.key_strings);
  } else {
    Require(block.keys != nullptr, "each row has a key");
  }
  if (header.has_string_values()) {
    Require(block.value_strings.size == block.size * header.meta.dim, "each row has its values");
    add(block.value_strings);
  } else {
    sum += SumOf(block.weights, block.size * header.weight_bytes());
  }
  sum += SumOf(block.slots, block.size * header.slot_bytes());
  return sum + SumOf(block.statistics, block.size * header.statistics_bytes());
}

// Writes the rows of a file again, and reads the copy.
void WriteAgain(const RowFileReader& reader, Allocator* allocator) {
  RowFileHeader header = reader.header();
  header.has_links = false;
  MemoryFile again;
  RowFileWriter writer(&again, allocator, 100);
  Require(writer.Begin(header).ok(), "a header can be written again");
  for (size_t number = 0; number < reader.num_blocks(); ++number) {
    RowBlock block(allocator);
    if (!reader.ReadBlock(number, &block).ok()) return;  // links have no such row
    if (block.left) {
      Require(writer.AppendLeft(block.keys, block.size).ok(), "keys can be written again");
      continue;
    }
    RowsToWrite rows;
    rows.size = block.size;
    rows.keys = block.keys;
    rows.key_strings = block.key_strings;
    rows.weights = block.weights;
    rows.value_strings = block.value_strings;
    rows.slots = block.slots;
    rows.statistics = block.statistics;
    Require(writer.Append(rows).ok(), "rows can be written again");
  }
  Require(writer.Finish().ok() && writer.rows() == reader.rows(), "all rows are written again");
  RowFileReader second(&again, allocator);
  Require(second.Verify().ok() && second.rows() == reader.rows(), "what was written is read");
}

bool ReadFile(const RowFileReader& reader, Allocator* allocator) {
  uint64_t rows = 0;
  bool good = true;
  for (size_t number = 0; number < reader.num_blocks(); ++number) {
    RowBlock block(allocator);
    if (!reader.ReadBlock(number, &block).ok()) {
      Require(reader.header().has_links, "a block that was verified is read");
      good = false;
      continue;
    }
    Require(block.left == reader.HasLeft(number), "a block of keys that left is called one");
    rows += block.left ? 0 : block.size;
    (void)SumOf(reader.header(), block);
    if (block.left || reader.header().has_string_keys() || reader.header().has_string_values()) {
      continue;
    }
    std::vector<uint32_t> every_other;
    for (size_t i = 0; i < block.size; i += 2) every_other.push_back(static_cast<uint32_t>(i));
    block.Keep(reader.header(), every_other.data(), every_other.size());
    (void)SumOf(reader.header(), block);
  }
  Require(!good || rows == reader.rows(), "a file has as many rows as it says");
  if (good && !reader.header().padded) WriteAgain(reader, allocator);
  return good;
}

bool ReadFiles(std::string_view first, std::string_view second) {
  // The place of a row in a linked file takes only four bytes.
  const size_t bytes = first.size() + second.size();
  BoundedAllocator allocator((size_t{1} << 16) + 8 * bytes + second.size() * first.size());
  const MemoryFile linked(first), file(second);
  RowFileReader of_linked(&linked, &allocator), reader(&file, &allocator);
  std::vector<const RowFileReader*> links;
  if (!first.empty()) {
    if (!of_linked.Verify().ok()) return false;
    (void)ReadFile(of_linked, &allocator);
    links.push_back(&of_linked);
  }
  reader.SetLinks(links);
  return reader.Verify().ok() && ReadFile(reader, &allocator);
}

RowFileHeader Header(StoredType key_type, StoredType value_type, size_t dim) {
  RowFileHeader header;
  header.key_type = key_type;
  header.value_type = value_type;
  header.save = 3;
  header.statistics = StatisticSet().With(Statistic::kLastStep);
  header.meta.dim = dim;
  if (value_type == StoredType::kString) {
    header.meta.value_type = DataType::kInt64;
  } else {
    header.meta.rule = FusedSlots(RuleKind::kAdam, dim);
  }
  header.policy = {1, 5, 0};
  return header;
}

struct Rows {
  explicit Rows(const RowFileHeader& header) {
    constexpr size_t kRows = 9;
    for (size_t i = 0; i < kRows; ++i) {
      keys.push_back(static_cast<int64_t>(i * i));
      strings.push_back(std::string(i % 4, 'k'));
      statistics.push_back(i);
    }
    for (size_t i = 0; i < kRows * header.meta.dim; ++i) values.push_back(std::string(i % 3, 'v'));
    weights.resize(kRows * header.weight_bytes(), 'w');
    slots.resize(kRows * header.slot_bytes(), 's');
    rows.size = kRows;
    rows.keys = keys.data();
    rows.key_strings = BatchOf(strings);
    rows.weights = weights.data();
    rows.value_strings = BatchOf(values);
    rows.slots = slots.data();
    rows.statistics = statistics.data();
  }
  static StringBatch BatchOf(const std::vector<std::string>& strings) {
    return {strings.data(), strings.size(), [](const void* strings, size_t i) {
              return std::string_view(static_cast<const std::string*>(strings)[i]);
            }};
  }

  std::vector<int64_t> keys;
  std::vector<std::string> strings, values;
  std::string weights, slots;
  std::vector<uint64_t> statistics;
  RowsToWrite rows;
};

std::string FileOf(const RowFileHeader& header) {
  MemoryFile file;
  RowFileWriter writer(&file, HostAllocator(), 200);
  const Rows rows(header);
  bool good = writer.Begin(header).ok() && writer.Append(rows.rows).ok();
  if (header.has_changes) good = good && writer.AppendLeft(rows.keys.data(), 3).ok();
  if (header.has_links) {
    LinkedRows links(HostAllocator());
    links.size = 3;
    good = good && links.places.Resize(3).ok() && links.statistics.Resize(3).ok();
    for (uint32_t i = 0; i < 3; ++i) {
      links.places[i] = 2 * i;
      links.statistics[i] = i;
    }
    good = good && writer.AppendLinked(links).ok();
  }
  Require(good && writer.Finish().ok(), "a seed is written");
  return file.bytes();
}

}  // namespace

bool Read(std::string_view bytes) {
  if (bytes.size() < sizeof(uint32_t)) return false;
  const size_t first_bytes =
      std::min<size_t>(Load<uint32_t>(bytes, 0), bytes.size() - sizeof(uint32_t));
  const std::string_view first = bytes.substr(sizeof(uint32_t), first_bytes);
  const std::string_view second = bytes.substr(sizeof(uint32_t) + first_bytes);
  const bool taken = ReadFiles(first, second);
  (void)ReadFiles(Repaired(first), Repaired(second));
  return taken;
}

std::vector<std::string> Seeds() {
  const auto both = [](const std::string& first, const std::string& second) {
    const auto size = static_cast<uint32_t>(first.size());
    return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + first + second;
  };
  std::vector<std::string> seeds;
  for (const auto& [key_type, value_type] : {std::pair(StoredType::kInt64, StoredType::kFloat),
                                             std::pair(StoredType::kString, StoredType::kHalf),
                                             std::pair(StoredType::kUint32, StoredType::kString)}) {
    RowFileHeader header = Header(key_type, value_type, 2);
    if (value_type == StoredType::kHalf) header.meta.value_type = DataType::kHalf;
    seeds.push_back(both("", FileOf(header)));
  }
  RowFileHeader changes = Header(StoredType::kInt64, StoredType::kFloat, 3);
  changes.has_changes = true;
  seeds.push_back(both("", FileOf(changes)));
  RowFileHeader linked = Header(StoredType::kInt64, StoredType::kFloat, 3);
  linked.padded = true;
  linked.statistics = StatisticSet();
  for (const bool has_changes : {false, true}) {
    RowFileHeader links = Header(StoredType::kInt64, StoredType::kFloat, 3);
    links.has_links = true;
    links.has_changes = has_changes;
    seeds.push_back(both(FileOf(linked), FileOf(links)));
  }
  return seeds;
}

}  // namespace tf_embed::fuzz
