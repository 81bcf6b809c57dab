// SPDX-License-Identifier: Apache-2.0
#include "cc/core/index/string_keys.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "cc/core/batch/key_groups.h"
#include "cc/core/index/row_memory.h"
#include "cc/core/index/striped_index.h"

namespace tf_embed {
namespace {

constexpr uint32_t kNoString = 0xffffffffu;  // as a length

constexpr size_t kRecordBytes[] = {16, 32, 48, 64, 96, 128, 208};
constexpr size_t kClasses = std::size(kRecordBytes);
constexpr size_t kHeaderBytes = 2 * sizeof(uint32_t);
constexpr size_t kLongestInRecord = kRecordBytes[kClasses - 1] - kHeaderBytes;
constexpr int kClassShift = 29;

size_t ClassOf(size_t length) {
  if (length > kLongestInRecord) return 0;  // the record has a pointer
  size_t size_class = 0;
  while (kRecordBytes[size_class] < kHeaderBytes + length) ++size_class;
  return size_class;
}

}  // namespace

// Lies in a row of a RowMemory.
struct StringKeys::Record {
  uint32_t passed_over;
  uint32_t length;  // kNoString: the string was removed

  bool is_long() const { return length != kNoString && length > kLongestInRecord; }
  char* bytes() { return reinterpret_cast<char*>(this + 1); }
  char* LongString() {
    char* string;
    std::memcpy(&string, bytes(), sizeof(string));
    return string;
  }
  std::string_view String() {
    if (length == kNoString) return std::string_view();
    return {is_long() ? LongString() : bytes(), length};
  }
};

// All that Clear and Shrink replace at once.
struct StringKeys::Content {
  explicit Content(Allocator* allocator)  // may throw std::bad_alloc
      : index(allocator, 0), stores{{allocator, LayoutOf(0)}, {allocator, LayoutOf(1)},
                                    {allocator, LayoutOf(2)}, {allocator, LayoutOf(3)},
                                    {allocator, LayoutOf(4)}, {allocator, LayoutOf(5)},
                                    {allocator, LayoutOf(6)}} {}

  static RowLayout LayoutOf(size_t size_class) {
    return RowLayout(DataType::kInt8, kRecordBytes[size_class], 0);
  }

  Record* RecordAt(uint32_t row_id) const {
    return reinterpret_cast<Record*>(
        stores[row_id >> kClassShift].Row(row_id & ((1u << kClassShift) - 1)));
  }
  Record* RecordOf(int64_t key) const {
    const StripedIndex::Entry entry = index.Find(key, HashKey(key));
    return entry.found() ? RecordAt(entry.row_id) : nullptr;
  }

  // A record for a string, without an entry in the index; kNoRowId without memory. The stripe's
  // mutex is held.
  uint32_t NewRecord(Allocator* allocator, size_t stripe, std::string_view string) {
    const size_t size_class = ClassOf(string.size());
    RowMemory::RowIdPool* const pool = &pools[size_class][stripe];
    const uint32_t number = stores[size_class].Take(pool);
    if (number == kNoRowId) return kNoRowId;
    if (number >> kClassShift != 0) {
      stores[size_class].Free(pool, number);
      return kNoRowId;
    }
    const uint32_t row_id = static_cast<uint32_t>(size_class << kClassShift) | number;
    Record* const record = RecordAt(row_id);
    record->passed_over = 0;
    record->length = static_cast<uint32_t>(string.size());
    if (record->is_long()) {
      char* const block = static_cast<char*>(allocator->Allocate(string.size()));
      if (block == nullptr) {
        stores[size_class].Free(pool, number);
        return kNoRowId;
      }
      std::memcpy(record->bytes(), &block, sizeof(block));
      long_strings.fetch_add(1, std::memory_order_relaxed);
    }
    if (!string.empty()) {
      std::memcpy(const_cast<char*>(record->String().data()), string.data(), string.size());
    }
    return row_id;
  }

  void FreeString(Allocator* allocator, Record* record) {
    if (record->is_long()) {
      allocator->Deallocate(record->LongString(), record->length);
      long_strings.fetch_sub(1, std::memory_order_relaxed);
    }
    record->length = kNoString;
  }

  void FreeRecord(size_t stripe, uint32_t row_id) {
    const size_t size_class = row_id >> kClassShift;
    stores[size_class].Free(&pools[size_class][stripe], row_id & ((1u << kClassShift) - 1));
  }

  void FreeLongStrings(Allocator* allocator) {
    if (long_strings.load(std::memory_order_relaxed) == 0) return;
    for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
      index.ForEach(stripe, [&](const Bucket&, int64_t, uint32_t row_id) {
        FreeString(allocator, RecordAt(row_id));
      });
    }
  }

  StripedIndex index;
  RowMemory stores[kClasses];
  RowMemory::RowIdPool pools[kClasses][StripedIndex::kStripes];  // each under its stripe's mutex
  std::atomic<size_t> removed{0};                                // entries without a string
  std::atomic<size_t> long_strings{0};
};

// The result of a search for a string.
struct StringKeys::Probe {
  int64_t key;  // the string's, or the key that it would get
  bool is_there;
  bool is_first;  // whether the key has seed 0
};

std::unique_ptr<StringKeys> StringKeys::Create(Allocator* allocator, HashFunction hash) {
  try {
    auto content = std::make_unique<Content>(allocator);
    return std::unique_ptr<StringKeys>(new StringKeys(allocator, hash, std::move(content)));
  } catch (const std::bad_alloc&) {  // null: no memory, an error of the caller
    return nullptr;
  }
}

StringKeys::StringKeys(Allocator* allocator, HashFunction hash, std::unique_ptr<Content> content)
    : allocator_(allocator), hash_(hash), content_(std::move(content)) {}

StringKeys::~StringKeys() { content_->FreeLongStrings(allocator_); }

size_t StringKeys::size() const {
  return content_->index.size() - content_->removed.load(std::memory_order_relaxed);
}

Status StringKeys::NoMemory() const {
  return Status::ResourceExhausted([this] {
    return "No memory for another string. There are " + std::to_string(size()) + " strings.";
  });
}

StringKeys::Probe StringKeys::Look(std::string_view string, int64_t first_key) const {
  int64_t key = first_key;
  for (uint64_t seed = 0;; key = KeyAt(string, ++seed)) {
    if (key == kNoKey) continue;
    Record* const record = content_->RecordOf(key);
    if (record == nullptr) return {key, false, seed == 0};
    if (record->length != kNoString && record->String() == string) return {key, true, seed == 0};
  }
}

bool StringKeys::Find(const ExecContext& context, const StringBatch& strings, int64_t* keys) const {
  return LookAll(context, strings, keys, nullptr);
}

bool StringKeys::LookAll(const ExecContext& context, const StringBatch& strings, int64_t* keys,
                         State* states) const {
  std::atomic<bool> all_there{true};
  const auto find = [&](size_t begin, size_t end) {
    // The cache lines for all strings of a block are prefetched before the first lookup.
    constexpr size_t kBlock = 16;
    bool there = true;
    for (size_t at = begin; at < end; at += kBlock) {
      const size_t block_end = std::min(end, at + kBlock);
      uint64_t hashes[kBlock];
      for (size_t i = at; i < block_end; ++i) {
        keys[i] = KeyAt(strings[i], 0);
        hashes[i - at] = HashKey(keys[i]);
        __builtin_prefetch(content_->index.HomeOf(hashes[i - at]));
      }
      for (size_t i = at; i < block_end; ++i) {
        const StripedIndex::Entry entry = content_->index.Find(keys[i], hashes[i - at]);
        if (entry.found()) __builtin_prefetch(content_->RecordAt(entry.row_id));
      }
      for (size_t i = at; i < block_end; ++i) {
        const Probe probe = Look(strings[i], keys[i]);
        keys[i] = probe.key;
        there = there && probe.is_there;
        if (states == nullptr) continue;
        states[i] = probe.is_there ? kThere : probe.is_first ? kNewAtFirst : kLater;
      }
    }
    if (!there) all_there.store(false, std::memory_order_relaxed);
  };
  context.parallel_for(strings.size, kStringCost, std::cref(find));
  return all_there.load(std::memory_order_relaxed);
}

Status StringKeys::Intern(const ExecContext& context, const StringBatch& strings, int64_t* keys,
                          int64_t* added, size_t* num_added) {
  *num_added = 0;
  for (size_t i = 0; i < strings.size; ++i) {
    if (strings[i].size() > kLongestString) {
      return Status::InvalidArgument("A string may have at most " + std::to_string(kLongestString) +
                                     " bytes. Received: " + std::to_string(strings[i].size()) +
                                     ".");
    }
  }
  // A string that is new at its first key is added together with equal strings, many such keys at
  // once. A different string with the same key, and a displaced string, are added afterwards.
  Buffer<State> states(allocator_);
  Buffer<bool> skipped(allocator_);
  TF_EMBED_RETURN_IF_ERROR(states.Resize(strings.size));
  TF_EMBED_RETURN_IF_ERROR(skipped.Resize(strings.size));
  if (LookAll(context, strings, keys, states.data())) return Status();
  for (size_t i = 0; i < strings.size; ++i) skipped[i] = states[i] != kNewAtFirst;
  KeyGroups groups(allocator_);
  TF_EMBED_RETURN_IF_ERROR(
      groups.Build(context, KeyBatch{keys, strings.size, nullptr}, skipped.data()));
  std::atomic<size_t> count{0};
  const auto add = [&](KeyGroups::Range* range) {
    while (range->Next()) {
      for (size_t i = 0; i < range->size(); ++i) {
        constexpr size_t kAhead = 16;
        if (i + kAhead < range->size()) {
          __builtin_prefetch(content_->index.HomeOf(HashKey((*range)[i + kAhead].key)), 1);
        }
        const KeyGroup group = (*range)[i];
        const std::string_view first = strings[group.positions[0]];
        TF_EMBED_RETURN_IF_ERROR(Add(first, group.key));
        added[count.fetch_add(1, std::memory_order_relaxed)] = group.key;
        for (size_t k = 1; k < group.count; ++k) {
          if (strings[group.positions[k]] != first) states[group.positions[k]] = kLater;
        }
      }
    }
    return Status();
  };
  Status status = groups.ForEachRange(context, kStringCost, add);
  *num_added = count.load(std::memory_order_relaxed);
  for (size_t i = 0; i < strings.size && status.ok(); ++i) {
    if (states[i] != kLater) continue;
    bool is_added = false;
    status = InternOne(strings[i], &keys[i], &is_added);
    if (is_added) added[(*num_added)++] = keys[i];
  }
  if (!status.ok()) {
    Remove(added, *num_added);
    *num_added = 0;
  }
  content_->index.DropRetired();
  return status;
}

Status StringKeys::Add(std::string_view string, int64_t key) {
  const uint64_t hash = HashKey(key);
  const size_t stripe = StripedIndex::StripeOf(hash);
  std::lock_guard<OrderedMutex> lock(content_->index.StripeMutex(stripe));
  const uint32_t row_id = content_->NewRecord(allocator_, stripe, string);
  if (row_id == kNoRowId) return NoMemory();
  Status status = content_->index.Insert(key, hash, row_id);
  if (!status.ok()) {
    content_->FreeString(allocator_, content_->RecordAt(row_id));
    content_->FreeRecord(stripe, row_id);
  }
  return status;
}

Status StringKeys::InternOne(std::string_view string, int64_t* key, bool* is_added) {
  const Probe probe = Look(string, KeyAt(string, 0));
  *key = probe.key;
  if (probe.is_there) return Status();
  TF_EMBED_RETURN_IF_ERROR(Add(string, probe.key));
  *is_added = true;
  for (uint64_t seed = 0;; ++seed) {
    const int64_t before = KeyAt(string, seed);
    if (before == probe.key) return Status();
    if (before != kNoKey) ++content_->RecordOf(before)->passed_over;
  }
}

void StringKeys::Remove(const int64_t* keys, size_t count) {
  for (size_t i = 0; i < count; ++i) RemoveOne(keys[i]);
}

void StringKeys::RemoveOne(int64_t key) {
  Content& content = *content_;
  const auto erase = [&](int64_t key) {
    const uint64_t hash = HashKey(key);
    const size_t stripe = StripedIndex::StripeOf(hash);
    std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
    content.FreeRecord(stripe, content.index.Erase(key, hash));
  };
  Record* const record = content.RecordOf(key);
  if (record == nullptr || record->length == kNoString) return;
  for (uint64_t seed = 0;; ++seed) {
    const int64_t before = KeyAt(record->String(), seed);
    if (before == key) break;
    if (before == kNoKey) continue;
    Record* const passed = content.RecordOf(before);
    if (--passed->passed_over > 0 || passed->length != kNoString) continue;
    content.removed.fetch_sub(1, std::memory_order_relaxed);
    erase(before);
  }
  content.FreeString(allocator_, record);
  if (record->passed_over > 0) {
    content.removed.fetch_add(1, std::memory_order_relaxed);
  } else {
    erase(key);
  }
}

std::string_view StringKeys::StringOf(int64_t key) const {
  Record* const record = content_->RecordOf(key);
  return record == nullptr ? std::string_view() : record->String();
}

void StringKeys::KeysWithString(void (*visit)(void* argument, int64_t key), void* argument) const {
  for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
    content_->index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
      if (content_->RecordAt(row_id)->length != kNoString) visit(argument, key);
    });
  }
}

void StringKeys::Clear() {
  content_->FreeLongStrings(allocator_);
  try {
    content_ = std::make_unique<Content>(allocator_);
  } catch (const std::bad_alloc&) {
    // In place, because a caller that clears may be out of memory. Nothing here allocates.
    content_->~Content();
    new (content_.get()) Content(allocator_);
  }
}

Status StringKeys::Shrink() {
  std::unique_ptr<StringKeys> compact = Create(allocator_, hash_);
  if (compact == nullptr) return NoMemory();
  Status status;
  for (size_t stripe = 0; stripe < StripedIndex::kStripes && status.ok(); ++stripe) {
    content_->index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
      if (!status.ok()) return;
      Record* const record = content_->RecordAt(row_id);
      status = compact->Add(record->String(), key);
      if (!status.ok()) return;
      Record* const copy = compact->content_->RecordOf(key);
      copy->passed_over = record->passed_over;
      if (record->length == kNoString) copy->length = kNoString;
    });
  }
  if (!status.ok()) return status;
  compact->content_->removed.store(content_->removed.load());
  compact->content_->index.DropRetired();
  content_.swap(compact->content_);
  return Status();
}

}  // namespace tf_embed
