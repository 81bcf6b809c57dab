// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/string_key_scope.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

}  // namespace

StringBatch StringsOf(const tf::Tensor& tensor) {
  return {tensor.flat<tf::tstring>().data(), static_cast<size_t>(tensor.NumElements()),
          [](const void* strings, size_t i) {
            const tf::tstring& string = static_cast<const tf::tstring*>(strings)[i];
            return std::string_view(string.data(), string.size());
          }};
}

StringKeyScope::StringKeyScope(TableResource* table, KeyUse use)
    : table_(table), use_(use), touched_(table->allocator()) {
  if (!table->has_string_keys() && !table->has_string_values()) return;
  // A write to a table of string values adds strings, and an eviction removes some. Both need the
  // mutex exclusively.
  const bool is_alone = table->has_string_values() || table->evicts();
  if (use == KeyUse::kErase || (use == KeyUse::kWrite && is_alone)) {
    alone_ = std::unique_lock<FairSharedMutex>(*table->strings_mutex());
  } else {
    shared_ = std::shared_lock<FairSharedMutex>(*table->strings_mutex());
  }
}

StringKeyScope::~StringKeyScope() {
  if (!alone_.owns_lock()) return;
  // Still under the exclusive lock, so no other operation can add a row for these strings
  // meanwhile.
  table_->DropStringsOfEvicted();
  if (num_touched_ > 0) table_->DropStringsWithoutRows(touched_.data(), num_touched_);
  table_->DropUnusedValueStrings();
}

absl::Status StringKeyScope::Keys(const ExecContext& context, const StringBatch& strings,
                                  Buffer<int64_t>* keys) {
  TF_RETURN_IF_ERROR(ToTensorFlow(keys->Resize(strings.size)));
  if (use_ == KeyUse::kErase) TF_RETURN_IF_ERROR(ToTensorFlow(touched_.Resize(strings.size)));
  const bool all_there = table_->key_strings()->Find(context, strings, keys->data());
  if (use_ == KeyUse::kErase) {
    std::copy_n(keys->data(), strings.size, touched_.data());
    num_touched_ = strings.size;
  }
  // If every string exists, a write changes existing rows only, so the shared lock suffices.
  if (use_ != KeyUse::kWrite || all_there) return absl::OkStatus();
  if (!alone_.owns_lock()) {
    // The lock can't be upgraded in place. Another operation may replace the dictionary in between.
    shared_.unlock();
    alone_ = std::unique_lock<FairSharedMutex>(*table_->strings_mutex());
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(touched_.Resize(strings.size)));
  return ToTensorFlow(table_->key_strings()->Intern(context, strings, keys->data(), touched_.data(),
                                                    &num_touched_));
}

absl::Status StringKeyScope::InternValues(const ExecContext& context, const StringBatch& strings,
                                          Buffer<int64_t>* numbers) {
  return InternStrings(context, strings, table_->allocator(), table_->value_strings(), numbers);
}

absl::Status InternStrings(const ExecContext& context, const StringBatch& batch,
                           Allocator* allocator, StringKeys* dictionary, Buffer<int64_t>* numbers) {
  Buffer<int64_t> added(allocator);
  size_t num_added;
  TF_RETURN_IF_ERROR(ToTensorFlow(numbers->Resize(batch.size)));
  TF_RETURN_IF_ERROR(ToTensorFlow(added.Resize(batch.size)));
  return ToTensorFlow(
      dictionary->Intern(context, batch, numbers->data(), added.data(), &num_added));
}

void WriteStrings(const ExecContext& context, const StringKeys& dictionary, const int64_t* numbers,
                  size_t count, size_t at, tf::Tensor* tensor) {
  tf::tstring* const out = tensor->flat<tf::tstring>().data() + at;
  const auto write = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const std::string_view string = dictionary.StringOf(numbers[i]);
      out[i].assign(string.data(), string.size());
    }
  };
  context.parallel_for(count, kStringCost, std::cref(write));
}

}  // namespace tf_embed
