// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/string_scope.h"

#include <algorithm>

#include "cc/core/table/table.h"

namespace tf_embed {

StringScope::StringScope(Table* table, KeyUse use)
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

StringScope::~StringScope() {
  if (!alone_.owns_lock()) return;
  // Still under the exclusive lock, so no other operation can add a row for these strings
  // meanwhile.
  table_->DropStrings(touched_.data(), num_touched_);
}

Status StringScope::Keys(const ExecContext& context, const StringBatch& strings,
                         Buffer<int64_t>* keys) {
  TF_EMBED_RETURN_IF_ERROR(keys->Resize(strings.size));
  if (use_ == KeyUse::kErase) TF_EMBED_RETURN_IF_ERROR(touched_.Resize(strings.size));
  const bool all_there = table_->key_strings()->Find(context, strings, keys->data());
  if (use_ == KeyUse::kErase) {
    std::copy_n(keys->data(), strings.size, touched_.data());
    num_touched_ = strings.size;
  }
  // If every string exists, a write changes existing rows only, so the shared lock suffices.
  if (use_ != KeyUse::kWrite || all_there) return Status();
  if (!alone_.owns_lock()) {
    // The lock can't be upgraded in place. Another operation may replace the dictionary in between.
    shared_.unlock();
    alone_ = std::unique_lock<FairSharedMutex>(*table_->strings_mutex());
  }
  TF_EMBED_RETURN_IF_ERROR(touched_.Resize(strings.size));
  return table_->key_strings()->Intern(context, strings, keys->data(), touched_.data(),
                                       &num_touched_);
}

Status StringScope::InternValues(const ExecContext& context, const StringBatch& strings,
                                 Buffer<int64_t>* numbers) {
  return InternStrings(context, strings, table_->allocator(), table_->value_strings(), numbers);
}

}  // namespace tf_embed
