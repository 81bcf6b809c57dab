// SPDX-License-Identifier: Apache-2.0
// The dictionaries of a table whose keys or values are strings. Its shards have the numbers.
#ifndef TF_EMBED_CC_CORE_TABLE_DICTIONARIES_H_
#define TF_EMBED_CC_CORE_TABLE_DICTIONARIES_H_

#include <cstdint>
#include <memory>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/string_batch.h"
#include "cc/core/index/string_keys.h"

namespace tf_embed {

struct Dictionaries {
  std::unique_ptr<StringKeys> keys;    // null if keys are not strings
  std::unique_ptr<StringKeys> values;  // null if values are not strings

  // Makes the dictionaries, empty. Returns whether there was memory.
  bool Create(Allocator* allocator, bool has_keys, bool has_values) {
    if (has_keys) keys = StringKeys::Create(allocator);
    if (has_values) values = StringKeys::Create(allocator);
    return (keys != nullptr) == has_keys && (values != nullptr) == has_values;
  }
};

// Adds strings to a dictionary and writes their numbers.
inline Status InternStrings(const ExecContext& context, const StringBatch& strings,
                            Allocator* allocator, StringKeys* dictionary,
                            Buffer<int64_t>* numbers) {
  Buffer<int64_t> added(allocator);
  size_t num_added;
  TF_EMBED_RETURN_IF_ERROR(numbers->Resize(strings.size));
  TF_EMBED_RETURN_IF_ERROR(added.Resize(strings.size));
  return dictionary->Intern(context, strings, numbers->data(), added.data(), &num_added);
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_DICTIONARIES_H_
