// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/distinct_keys.h"

#include <algorithm>

#include "cc/core/base/hash.h"
#include "cc/core/base/process_salt.h"

namespace tf_embed {
namespace {

constexpr uint32_t kNone = 0xffffffffu;

}  // namespace

Status DistinctKeys::Find(const KeyRange& range, uint32_t begin, uint32_t* positions,
                          KeyRun* runs) {
  const size_t size = range.size();
  int bits = 4;
  while ((size_t{1} << bits) < 2 * size) ++bits;
  const size_t mask = (size_t{1} << bits) - 1;
  TF_EMBED_RETURN_IF_ERROR(keys_.Resize(size));
  TF_EMBED_RETURN_IF_ERROR(ends_.Resize(size + 1));
  TF_EMBED_RETURN_IF_ERROR(numbers_.Resize(size));
  TF_EMBED_RETURN_IF_ERROR(buckets_.Resize(mask + 1));
  std::fill(buckets_.data(), buckets_.data() + mask + 1, kNone);
  const uint64_t salt = ProcessSalt() | 1;
  uint32_t keys = 0;
  for (size_t record = 0; record < size; ++record) {
    const int64_t key = range.begin[record].key;
    // The high bits of hash x odd salt. A hash, because keys may be regular.
    size_t bucket = (HashKey(key) * salt) >> (64 - bits);
    while (buckets_[bucket] != kNone && keys_[buckets_[bucket]] != key) {
      bucket = (bucket + 1) & mask;
    }
    uint32_t number = buckets_[bucket];
    if (number == kNone) {
      number = buckets_[bucket] = keys++;
      keys_[number] = key;
      ends_[number] = 0;
    }
    ++ends_[number];
    numbers_[record] = number;
  }
  // Turns counts into the starts of the keys' positions. Writing the positions turns these into
  // ends.
  uint32_t next = 0;
  for (uint32_t number = 0; number < keys; ++number) {
    const uint32_t count = ends_[number];
    ends_[number] = next;
    next += count;
  }
  ends_[keys] = next;
  uint32_t seen = 0;
  for (size_t record = 0; record < size; ++record) {
    const uint32_t number = numbers_[record];
    const uint32_t at = ends_[number]++;
    positions[at] = range.begin[record].position;
    // Keys are numbered by first occurrence, so the next key's positions have not been written yet.
    const bool is_first = number == seen;
    runs[record] = KeyRun{begin + at, is_first ? ends_[number + 1] - at : 0};
    seen += is_first ? 1 : 0;
  }
  return Status();
}

}  // namespace tf_embed
