// SPDX-License-Identifier: Apache-2.0
// The scope of one operation on a table of strings: it holds the strings mutex (table_resource.h),
// under which the strings of tensors become numbers of the table's dictionaries, and back.
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

// What an operation does to the rows of its keys.
enum class KeyUse { kRead, kWrite, kErase };

// The strings of a tensor, which outlives this.
StringBatch StringsOf(const tensorflow::Tensor& tensor);

class StringKeyScope {
 public:
  // Enters the table's strings mutex, if it has one.
  StringKeyScope(TableResource* table, KeyUse use);
  // Removes what the operation left without a row, and leaves.
  ~StringKeyScope();
  StringKeyScope(const StringKeyScope&) = delete;
  StringKeyScope& operator=(const StringKeyScope&) = delete;

  // Writes the key of each string. Those that are not there are added in order to be
  // written.
  absl::Status Keys(const ExecContext& context, const StringBatch& strings, Buffer<int64_t>* keys);

  // Writes the number of each string among values, and adds those that are not there.
  absl::Status InternValues(const ExecContext& context, const StringBatch& strings,
                            Buffer<int64_t>* numbers);

 private:
  TableResource* const table_;
  const KeyUse use_;
  std::shared_lock<FairSharedMutex> shared_;
  std::unique_lock<FairSharedMutex> alone_;
  Buffer<int64_t> touched_;  // keys that may have no row in the end
  size_t num_touched_ = 0;
};

// Adds strings to a dictionary and writes their numbers.
absl::Status InternStrings(const ExecContext& context, const StringBatch& batch,
                           Allocator* allocator, StringKeys* dictionary, Buffer<int64_t>* numbers);

// Writes the strings that have `numbers` [count] to a tensor, from `at` on.
void WriteStrings(const ExecContext& context, const StringKeys& dictionary, const int64_t* numbers,
                  size_t count, size_t at, tensorflow::Tensor* tensor);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_STRING_KEY_SCOPE_H_
