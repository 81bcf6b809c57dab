// SPDX-License-Identifier: Apache-2.0
// The scope of an operation on a table of strings. It holds the table's strings mutex (table.h),
// under which strings are converted to numbers of the dictionaries and back:
//
//     StringScope scope(table, KeyUse::kWrite);
//     TF_EMBED_RETURN_IF_ERROR(scope.Keys(context, strings, &keys));
//     return table->InsertOrAssign(context, {keys.data(), strings.size}, weights, {});
//
// For other tables it takes no lock.
#ifndef TF_EMBED_CC_CORE_TABLE_STRING_SCOPE_H_
#define TF_EMBED_CC_CORE_TABLE_STRING_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/string_batch.h"

namespace tf_embed {

class Table;

// The effect of an operation on the rows of its keys.
enum class KeyUse { kRead, kWrite, kErase };

class StringScope {
 public:
  StringScope(Table* table, KeyUse use);
  // Removes strings that the operation left without a row, then unlocks.
  ~StringScope();
  StringScope(const StringScope&) = delete;
  StringScope& operator=(const StringScope&) = delete;

  // Writes the key of each string. A write adds the missing strings.
  Status Keys(const ExecContext& context, const StringBatch& strings, Buffer<int64_t>* keys);

  // Writes the number of each string value, and adds missing strings.
  Status InternValues(const ExecContext& context, const StringBatch& strings,
                      Buffer<int64_t>* numbers);

 private:
  Table* const table_;
  const KeyUse use_;
  std::shared_lock<FairSharedMutex> shared_;
  std::unique_lock<FairSharedMutex> alone_;
  Buffer<int64_t> touched_;  // keys that may end up without a row
  size_t num_touched_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_STRING_SCOPE_H_
