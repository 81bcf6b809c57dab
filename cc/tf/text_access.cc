// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/text_access.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

}  // namespace

TextBatch TextsOf(const tf::Tensor& tensor) {
  return {tensor.flat<tf::tstring>().data(), static_cast<size_t>(tensor.NumElements()),
          [](const void* strings, size_t i) {
            const tf::tstring& text = static_cast<const tf::tstring*>(strings)[i];
            return std::string_view(text.data(), text.size());
          }};
}

TextAccess::TextAccess(TableResource* table, KeyUse use)
    : table_(table), use_(use), touched_(table->allocator()) {
  if (!table->has_string_keys() && !table->has_string_values()) return;
  // A table of strings as values takes others in with each write; one that evicts removes some.
  const bool is_alone = table->has_string_values() || table->evicts();
  if (use == KeyUse::kErase || (use == KeyUse::kWrite && is_alone)) {
    alone_ = std::unique_lock<FairSharedMutex>(*table->strings_mutex());
  } else {
    shared_ = std::shared_lock<FairSharedMutex>(*table->strings_mutex());
  }
}

TextAccess::~TextAccess() {
  if (!alone_.owns_lock()) return;
  table_->DropTextsOfEvicted();
  if (num_touched_ > 0) table_->DropTextsWithoutRows(touched_.data(), num_touched_);
  table_->DropUnusedValueTexts();
}

absl::Status TextAccess::Keys(const ExecContext& context, const TextBatch& texts,
                              Buffer<int64_t>* keys) {
  TF_RETURN_IF_ERROR(ToTensorFlow(keys->Resize(texts.size)));
  if (use_ == KeyUse::kErase) TF_RETURN_IF_ERROR(ToTensorFlow(touched_.Resize(texts.size)));
  const bool all_there = table_->key_texts()->Find(context, texts, keys->data());
  if (use_ == KeyUse::kErase) {
    std::copy_n(keys->data(), texts.size, touched_.data());
    num_touched_ = texts.size;
  }
  // Where all texts are there, a write changes present rows alone, and many may do so at once.
  if (use_ != KeyUse::kWrite || all_there) return absl::OkStatus();
  if (!alone_.owns_lock()) {
    // Between the two locks another operation may replace the dictionary.
    shared_.unlock();
    alone_ = std::unique_lock<FairSharedMutex>(*table_->strings_mutex());
  }
  TF_RETURN_IF_ERROR(ToTensorFlow(touched_.Resize(texts.size)));
  return ToTensorFlow(
      table_->key_texts()->Intern(context, texts, keys->data(), touched_.data(), &num_touched_));
}

absl::Status TextAccess::InternValues(const ExecContext& context, const TextBatch& texts,
                                      Buffer<int64_t>* numbers) {
  return InternTexts(context, texts, table_->allocator(), table_->value_texts(), numbers);
}

absl::Status InternTexts(const ExecContext& context, const TextBatch& batch, Allocator* allocator,
                         StringKeys* texts, Buffer<int64_t>* numbers) {
  Buffer<int64_t> added(allocator);
  size_t num_added;
  TF_RETURN_IF_ERROR(ToTensorFlow(numbers->Resize(batch.size)));
  TF_RETURN_IF_ERROR(ToTensorFlow(added.Resize(batch.size)));
  return ToTensorFlow(texts->Intern(context, batch, numbers->data(), added.data(), &num_added));
}

void WriteTexts(const ExecContext& context, const StringKeys& texts, const int64_t* numbers,
                size_t count, size_t at, tf::Tensor* strings) {
  tf::tstring* const out = strings->flat<tf::tstring>().data() + at;
  const auto write = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const std::string_view text = texts.TextOf(numbers[i]);
      out[i].assign(text.data(), text.size());
    }
  };
  context.parallel_for(count, kTextCost, std::cref(write));
}

}  // namespace tf_embed
