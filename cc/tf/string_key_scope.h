// SPDX-License-Identifier: Apache-2.0
// The scope of an operation on a table of strings. It holds the strings mutex (table_resource.h),
// under which strings are converted to numbers of the table's dictionaries and back.
#ifndef TF_EMBED_CC_TF_STRING_KEY_SCOPE_H_
#define TF_EMBED_CC_TF_STRING_KEY_SCOPE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/batch/string_batch.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_embed {

// The effect of an operation on the rows of its keys.
enum class KeyUse { kRead, kWrite, kErase };

// The strings of a tensor. REQUIRES: the tensor outlives the result.
StringBatch StringsOf(const tensorflow::Tensor& tensor);

class StringKeyScope {
 public:
  // Locks the table's strings mutex, if it has one.
  StringKeyScope(TableResource* table, KeyUse use);
  // Removes strings that the operation left without a row, then unlocks.
  ~StringKeyScope();
  StringKeyScope(const StringKeyScope&) = delete;
  StringKeyScope& operator=(const StringKeyScope&) = delete;

  // Writes the key of each string. A write adds the missing strings.
  absl::Status Keys(const ExecContext& context, const StringBatch& strings, Buffer<int64_t>* keys);

  // Writes the number of each string value, and adds missing strings.
  absl::Status InternValues(const ExecContext& context, const StringBatch& strings,
                            Buffer<int64_t>* numbers);

 private:
  TableResource* const table_;
  const KeyUse use_;
  std::shared_lock<FairSharedMutex> shared_;
  std::unique_lock<FairSharedMutex> alone_;
  Buffer<int64_t> touched_;  // keys that may end up without a row
  size_t num_touched_ = 0;
};

// Adds strings to a dictionary and writes their numbers.
absl::Status InternStrings(const ExecContext& context, const StringBatch& batch,
                           Allocator* allocator, StringKeys* dictionary, Buffer<int64_t>* numbers);

// Writes the strings of `numbers` [count] to a tensor, starting at `at`.
void WriteStrings(const ExecContext& context, const StringKeys& dictionary, const int64_t* numbers,
                  size_t count, size_t at, tensorflow::Tensor* tensor);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_STRING_KEY_SCOPE_H_
