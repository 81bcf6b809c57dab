// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/string_batch.h"

#include <algorithm>
#include <functional>
#include <string>

#include "cc/core/base/process_salt.h"
#include "cc/core/batch/key_batch.h"

namespace tf_embed {

Status NumberDistinctStrings(const ExecContext& context, const StringBatch& strings,
                             Allocator* allocator, int64_t* numbers) {
  constexpr uint32_t kNone = 0xffffffffu;
  if (strings.size > kMaxBatchSize) {
    return Status::InvalidArgument("A batch may have at most " + std::to_string(kMaxBatchSize) +
                                   " keys. Received: " + std::to_string(strings.size) + ".");
  }
  Buffer<uint64_t> hashes(allocator);
  Buffer<uint32_t> places(allocator);  // open addressing: the first of equal strings
  size_t capacity = 16;
  while (capacity < 2 * strings.size) capacity *= 2;
  TF_EMBED_RETURN_IF_ERROR(hashes.Resize(strings.size));
  TF_EMBED_RETURN_IF_ERROR(places.Resize(capacity));
  const auto hash = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) hashes[i] = HashString(strings[i], ProcessSalt());
  };
  context.parallel_for(strings.size, kStringCost, std::cref(hash));
  std::fill(places.data(), places.data() + capacity, kNone);
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < strings.size; ++i) {
    if (i + kAhead < strings.size) {
      __builtin_prefetch(places.data() + (hashes[i + kAhead] & (capacity - 1)), 1);
    }
    for (size_t place = hashes[i];; ++place) {
      uint32_t& first = places[place & (capacity - 1)];
      if (first == kNone) first = static_cast<uint32_t>(i);
      if (first != i && (hashes[first] != hashes[i] || strings[first] != strings[i])) continue;
      numbers[i] = first;
      break;
    }
  }
  return Status();
}

}  // namespace tf_embed
