// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/eviction_log.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace tf_embed {
namespace {

// Doubles at least, as push_back does: a vector that is given room for each batch alone is copied
// by each.
template <typename T>
void MakeRoomFor(size_t count, std::vector<T>* values) {
  const size_t needed = values->size() + count;
  if (needed > values->capacity()) values->reserve(std::max(needed, 2 * values->capacity()));
}

}  // namespace

EvictionLog::EvictionLog(const Dictionaries& dictionaries, const StoreOptions& options,
                         bool keeps_rows)
    : dictionaries_(dictionaries),
      allocator_(options.allocator),
      dim_(options.dim),
      row_bytes_(options.dim * SizeOf(options.value_type)),
      keeps_rows_(keeps_rows),
      rows_(allocator_) {}

Status EvictionLog::Evict(const WholeRows& rows, const RuleSlots&) {
  const size_t count = rows.size;
  const int64_t* const keys = rows.keys.data();
  const char* const weights = rows.weights.data();
  const auto string_of = [](const StringKeys& dictionary, int64_t number) {
    return std::string(dictionary.StringOf(number));
  };
  std::lock_guard<OrderedMutex> lock(mutex_);
  try {  // allocate first: nothing may fail after this
    std::vector<std::string> key_strings, value_strings;
    if (const StringKeys* const dictionary = dictionaries_.keys.get()) {
      MakeRoomFor(count, &string_keys_);
      for (size_t i = 0; keeps_rows_ && i < count; ++i) {
        // Copied now: the dictionary drops the string once its row is gone, and the log is drained
        // later.
        key_strings.push_back(string_of(*dictionary, keys[i]));
      }
      MakeRoomFor(key_strings.size(), &rows_.key_strings);
    }
    if (const StringKeys* const dictionary = dictionaries_.values.get()) {
      const int64_t* const numbers = reinterpret_cast<const int64_t*>(weights);
      for (size_t i = 0; keeps_rows_ && i < count * dim_; ++i) {
        value_strings.push_back(string_of(*dictionary, numbers[i]));
      }
      MakeRoomFor(value_strings.size(), &rows_.value_strings);
    }
    if (keeps_rows_) {
      TF_EMBED_RETURN_IF_ERROR(MakeRoom(count));
      KeepNumbers(count, keys, weights);
    }
    if (dictionaries_.keys != nullptr) {
      string_keys_.insert(string_keys_.end(), keys, keys + count);
    }
    std::move(key_strings.begin(), key_strings.end(), std::back_inserter(rows_.key_strings));
    std::move(value_strings.begin(), value_strings.end(), std::back_inserter(rows_.value_strings));
    return Status();
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory to log rows that leave a table."; });
  }
}

Status EvictionLog::MakeRoom(size_t count) {
  if (rows_.size + count <= rows_.keys.size()) return Status();
  const size_t room = std::max(rows_.size + count, 2 * rows_.size);
  Buffer<int64_t> more_keys(allocator_);
  Buffer<char> more_weights(allocator_);
  TF_EMBED_RETURN_IF_ERROR(more_keys.Resize(room));
  TF_EMBED_RETURN_IF_ERROR(more_weights.Resize(room * row_bytes_));
  if (rows_.size > 0) {
    std::memcpy(more_keys.data(), rows_.keys.data(), rows_.size * sizeof(int64_t));
    std::memcpy(more_weights.data(), rows_.weights.data(), rows_.size * row_bytes_);
  }
  rows_.keys = std::move(more_keys);
  rows_.weights = std::move(more_weights);
  return Status();
}

void EvictionLog::KeepNumbers(size_t count, const int64_t* keys, const char* weights) {
  if (count == 0) return;
  std::memcpy(rows_.keys.data() + rows_.size, keys, count * sizeof(int64_t));
  std::memcpy(rows_.weights.data() + rows_.size * row_bytes_, weights, count * row_bytes_);
  rows_.size += count;
}

size_t EvictionLog::size() const {
  std::lock_guard<OrderedMutex> lock(mutex_);
  return rows_.size;
}

}  // namespace tf_embed
