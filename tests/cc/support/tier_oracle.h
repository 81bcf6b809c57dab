// SPDX-License-Identifier: Apache-2.0
// A lower tier, with a map of its expected content. A row is a function of its key and a version,
// so the map holds only versions.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_TIER_ORACLE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_TIER_ORACLE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/files/row_file.h"
#include "cc/core/store/lower_tier.h"
#include "gtest/gtest.h"

namespace tf_embed {

// The bytes of a row, from its key and version.
inline void FillRow(int64_t key, uint64_t version, char* bytes, size_t size) {
  uint64_t state = HashKey(key) ^ Mix64(version);
  for (size_t i = 0; i < size; i += sizeof(state)) {
    state += kGolden64;
    const uint64_t word = Mix64(state);
    std::memcpy(bytes + i, &word, std::min(sizeof(word), size - i));
  }
}

// A file for RowFileReader.
class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(std::string name) : name_(std::move(name)) {
    FILE* const file = std::fopen(name_.c_str(), "rb");
    bytes_.resize(std::filesystem::file_size(name_));
    EXPECT_EQ(bytes_.size(), std::fread(bytes_.data(), 1, bytes_.size(), file));
    std::fclose(file);
  }
  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  Status Read(uint64_t offset, size_t size, void* bytes) const override {
    if (offset + size > bytes_.size()) return Status::DataLoss("read beyond the end");
    std::memcpy(bytes, bytes_.data() + offset, size);
    return Status();
  }

 private:
  std::string name_;
  std::string bytes_;
};

class TierOracle {
 public:
  using After = LowerTier::After;

  // `forgets`: whether the tier may forget shared rows if it is short of memory.
  TierOracle(std::unique_ptr<LowerTier> tier, DataType value_type, size_t dim, bool forgets = false)
      : value_type_(value_type), dim_(dim), forgets_(forgets), tier_(std::move(tier)) {}

  LowerTier* tier() { return tier_.get(); }
  size_t size() const { return rows_.size(); }
  size_t row_bytes() const { return weight_bytes() + slot_bytes(); }

  Status SetRule(const RuleSlots& rule) {
    const Status status = tier_->SetRule(rule);
    if (!status.ok()) return status;
    if (!SameRule(rule, rule_)) {
      ++generation_;
      initial_slots_.assign(rule.slots_per_row() * SlotSize(value_type_), 0);
      if (value_type_ == DataType::kDouble) {
        FillInitialSlots(rule, reinterpret_cast<double*>(initial_slots_.data()));
      } else {
        FillInitialSlots(rule, reinterpret_cast<float*>(initial_slots_.data()));
      }
    }
    rule_ = rule;
    return status;
  }

  // Returns the tier's status. After a failure, the oracle takes over the tier's rows.
  Status Put(const std::vector<int64_t>& keys, After after = After::kCold) {
    WholeRows rows(HostAllocator());
    EXPECT_TRUE(rows.Resize(keys.size(), weight_bytes(), slot_bytes(), 0).ok());
    rows.size = keys.size();
    ++version_;
    for (size_t i = 0; i < keys.size(); ++i) {
      rows.keys[i] = keys[i];
      FillRow(keys[i], version_, rows.weights.data() + i * weight_bytes(), weight_bytes());
      FillRow(~keys[i], version_, rows.slots.data() + i * slot_bytes(), slot_bytes());
    }
    const Status status = tier_->Put(ExecContext::Serial(), rows, after);
    for (const int64_t key : keys) {
      const auto at = rows_.find(key);
      const Row taken = {version_, generation_, after == After::kShared};
      if (status.ok()) {
        rows_[key] = taken;
      } else {
        // Both rows are correct. The next Get shows which of them the tier has.
        unsure_[key] = {taken, at == rows_.end() ? Row() : at->second, at != rows_.end()};
      }
    }
    if (status.ok()) {
      for (const int64_t key : keys) unsure_.erase(key);
    }
    if (forgets_) NoteForgotten();
    return status;
  }

  void Erase(const std::vector<int64_t>& keys) {
    tier_->Erase(keys.data(), keys.size());
    for (const int64_t key : keys) {
      rows_.erase(key);
      unsure_.erase(key);
    }
  }

  void Unshare(const std::vector<int64_t>& keys) {
    tier_->Unshare(keys.data(), keys.size(), nullptr);
    for (const int64_t key : keys) {
      if (rows_.count(key) > 0) rows_[key].shared = false;
    }
  }

  Status Clear() {
    const Status status = tier_->Clear();
    if (status.ok()) {
      rows_.clear();
      unsure_.clear();
    }
    return status;
  }

  // Gets distinct keys, and compares their rows.
  Status Get(const std::vector<int64_t>& keys, After after = After::kCold) {
    WholeRows rows(HostAllocator());
    const Status status = tier_->Get(ExecContext::Serial(), keys.data(), keys.size(), after, &rows);
    if (!status.ok()) {
      EXPECT_EQ(0u, rows.size);
      return status;
    }
    Learn(keys, rows);
    std::vector<int64_t> wanted, got(rows.keys.data(), rows.keys.data() + rows.size);
    for (const int64_t key : keys) {
      if (rows_.count(key) > 0) wanted.push_back(key);
    }
    std::sort(wanted.begin(), wanted.end());
    std::sort(got.begin(), got.end());
    EXPECT_EQ(wanted, got);
    for (size_t i = 0; i < rows.size; ++i) {
      ExpectRow(rows, i);
      if (after == After::kShared) rows_[rows.keys[i]].shared = true;
    }
    return status;
  }

  std::vector<int64_t> Keys() const {
    std::vector<int64_t> keys;
    for (const auto& [key, row] : rows_) keys.push_back(key);
    for (const auto& [key, two] : unsure_) {
      if (rows_.count(key) == 0) keys.push_back(key);
    }
    return keys;
  }

  // Compares the whole content: Get of all keys, Scan, Contains, counts.
  Status Check(size_t scan_rows = 1000) {
    const std::vector<int64_t> keys = Keys();
    TF_EMBED_RETURN_IF_ERROR(Get(keys));
    EXPECT_EQ(rows_.size(), tier_->size());
    size_t shared = 0;
    for (const auto& [key, row] : rows_) shared += row.shared;
    EXPECT_EQ(shared, tier_->shared());
    const auto exists = std::make_unique<bool[]>(keys.size() + 1);
    tier_->Contains(keys.data(), keys.size(), exists.get());
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(rows_.count(keys[i]) > 0, exists[i]);
    for (const bool with_links : {false, true}) {
      std::map<int64_t, int> seen;
      WholeRows rows(HostAllocator());
      LinkedRows linked(HostAllocator());
      if (with_links) TF_EMBED_RETURN_IF_ERROR(FollowLinks(&linked, &seen));
      for (ExportCursor cursor{0, false, &linked}; !cursor.done;) {
        TF_EMBED_RETURN_IF_ERROR(tier_->Scan(scan_rows, &cursor, &rows));
        for (size_t i = 0; i < rows.size; ++i) {
          ++seen[rows.keys[i]];
          ExpectRow(rows, i);
        }
      }
      EXPECT_EQ(rows_.size() - shared, seen.size()) << with_links;
      for (const auto& [key, times] : seen) {
        EXPECT_EQ(1, times);
        EXPECT_FALSE(rows_[key].shared);
      }
    }
    const LowerTierStats stats = tier_->Stats();
    EXPECT_EQ(rows_.size(), stats.rows);
    EXPECT_EQ(shared, stats.shared_rows);
    EXPECT_EQ(rows_.empty(), stats.live_bytes == 0);
    return Status();
  }

  // The number of linked files.
  size_t num_linked() const { return num_linked_; }

 private:
  // Reads the files that the tier linked, and notes the keys of their rows.
  Status FollowLinks(LinkedRows* linked, std::map<int64_t, int>* seen) {
    struct Linker final : public FileLinker {
      bool Link(const std::string& path, uint64_t bytes, uint32_t checksum,
                uint32_t* number) override {
        if (++asked % 3 == 0 || !std::filesystem::exists(path)) return false;
        file = std::make_unique<FileBytes>(path);
        reader = std::make_unique<RowFileReader>(file.get(), HostAllocator());
        const Status status = reader->Verify();
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(bytes, file->size());
        EXPECT_EQ(checksum, reader->checksum());
        *number = ++made;
        return true;
      }
      size_t asked = 0;
      uint32_t made = 0;
      std::unique_ptr<FileBytes> file;
      std::unique_ptr<RowFileReader> reader;
    } linker;
    WholeRows rows(HostAllocator());
    RowBlock block(HostAllocator());
    for (ExportCursor cursor; !cursor.done;) {
      if (linked->ended) {
        TF_EMBED_RETURN_IF_ERROR(tier_->LinkNext(WantedRows(), &linker, &cursor, linked));
        continue;
      }
      TF_EMBED_RETURN_IF_ERROR(tier_->TakeLinked(WantedRows(), &cursor, linked));
      EXPECT_EQ(linker.made, linked->file);
      const size_t in_block = PaddedBlocks::Of(linker.reader->header()).rows;
      TF_EMBED_RETURN_IF_ERROR(rows.Resize(1, weight_bytes(), slot_bytes(), 0));
      for (size_t i = 0; i < linked->size; ++i) {
        const size_t place = linked->places[i] % in_block;
        TF_EMBED_RETURN_IF_ERROR(
            linker.reader->ReadBlock(linked->block + linked->places[i] / in_block, &block));
        rows.keys[0] = block.keys[place];
        std::memcpy(rows.weights.data(), block.weights + place * weight_bytes(), weight_bytes());
        if (slot_bytes() > 0) {
          std::memcpy(rows.slots.data(), block.slots + place * slot_bytes(), slot_bytes());
        }
        ++(*seen)[rows.keys[0]];
        ExpectRow(rows, 0);
      }
    }
    EXPECT_EQ(linker.made, linked->files.size());
    num_linked_ += linker.made;
    return Status();
  }

  struct Row {
    uint64_t version = 0;
    uint64_t generation = 0;
    bool shared = false;
  };
  struct TwoRows {
    Row taken, before;
    bool was_there = false;
  };

  size_t weight_bytes() const { return dim_ * SizeOf(value_type_); }
  size_t slot_bytes() const { return rule_.slots_per_row() * SlotSize(value_type_); }

  bool IsRow(const WholeRows& rows, size_t i, const Row& row) const {
    std::string bytes(row_bytes(), '\0');
    const int64_t key = rows.keys[i];
    FillRow(key, row.version, bytes.data(), weight_bytes());
    if (row.generation == generation_) {
      FillRow(~key, row.version, bytes.data() + weight_bytes(), slot_bytes());
    } else {
      std::copy(initial_slots_.begin(), initial_slots_.end(), bytes.data() + weight_bytes());
    }
    return std::memcmp(bytes.data(), rows.weights.data() + i * weight_bytes(), weight_bytes()) ==
               0 &&
           (slot_bytes() == 0 ||
            std::memcmp(bytes.data() + weight_bytes(), rows.slots.data() + i * slot_bytes(),
                        slot_bytes()) == 0);
  }

  // Notes, after a failed Put, which of its two possible rows each key has.
  void Learn(const std::vector<int64_t>& keys, const WholeRows& rows) {
    std::map<int64_t, size_t> place;
    for (size_t i = 0; i < rows.size; ++i) place[rows.keys[i]] = i;
    for (const int64_t key : keys) {
      const auto at = unsure_.find(key);
      if (at == unsure_.end()) continue;
      const TwoRows two = at->second;
      unsure_.erase(at);
      if (place.count(key) == 0) {
        EXPECT_FALSE(two.was_there) << "the row of key " << key << " is lost";
        rows_.erase(key);
      } else if (IsRow(rows, place[key], two.taken)) {
        rows_[key] = two.taken;
      } else {
        EXPECT_TRUE(two.was_there && IsRow(rows, place[key], two.before)) << "half a row";
        rows_[key] = two.before;
      }
    }
  }

  void NoteForgotten() {
    for (auto at = rows_.begin(); at != rows_.end();) {
      bool exists = true;
      if (at->second.shared) tier_->Contains(&at->first, 1, &exists);
      at = exists ? std::next(at) : rows_.erase(at);
    }
  }

  void ExpectRow(const WholeRows& rows, size_t i) {
    ASSERT_EQ(1u, rows_.count(rows.keys[i])) << "a row of key " << rows.keys[i] << " is too much";
    EXPECT_TRUE(IsRow(rows, i, rows_[rows.keys[i]])) << "key " << rows.keys[i];
  }

  const DataType value_type_;
  const size_t dim_;
  const bool forgets_;
  std::unique_ptr<LowerTier> tier_;
  RuleSlots rule_;
  uint64_t generation_ = 0;
  uint64_t version_ = 0;
  std::string initial_slots_;
  std::map<int64_t, Row> rows_;
  std::map<int64_t, TwoRows> unsure_;
  size_t num_linked_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_TIER_ORACLE_H_
