// SPDX-License-Identifier: Apache-2.0
// The texts of a table for the time of one operation: strings of tensors made numbers of the
// table's dictionaries and back, under the strings mutex (table_resource.h).
#ifndef TF_EMBED_CC_TF_TEXT_ACCESS_H_
#define TF_EMBED_CC_TF_TEXT_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/batch/text_batch.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_embed {

// What an operation does to the rows of its keys.
enum class KeyUse { kRead, kWrite, kErase };

// The strings of a tensor, which outlives this.
TextBatch TextsOf(const tensorflow::Tensor& tensor);

class TextAccess {
 public:
  // Enters the table's strings mutex, if it has one.
  TextAccess(TableResource* table, KeyUse use);
  // Removes what the operation left without a row, and leaves.
  ~TextAccess();
  TextAccess(const TextAccess&) = delete;
  TextAccess& operator=(const TextAccess&) = delete;

  // Writes the key of each string. Those that are not there are added in order to be
  // written.
  absl::Status Keys(const ExecContext& context, const TextBatch& texts, Buffer<int64_t>* keys);

  // Writes the number of each string among values, and adds those that are not there.
  absl::Status InternValues(const ExecContext& context, const TextBatch& texts,
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
absl::Status InternTexts(const ExecContext& context, const TextBatch& batch, Allocator* allocator,
                         StringKeys* texts, Buffer<int64_t>* numbers);

// Writes the texts of numbers [count] to the strings of a tensor from `at` on.
void WriteTexts(const ExecContext& context, const StringKeys& texts, const int64_t* numbers,
                size_t count, size_t at, tensorflow::Tensor* strings);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TEXT_ACCESS_H_
