#include "cc/core/segment_sum.h"

#include <algorithm>

#include "cc/core/hash.h"
#include "cc/core/process_salt.h"

namespace tf_embed {

Status DistinctKeys::Build(const KeyRange& range) {
  size_ = 0;
  int bits = 4;
  while ((size_t{1} << bits) < 2 * range.size()) ++bits;
  const size_t mask = (size_t{1} << bits) - 1;
  TF_EMBED_RETURN_IF_ERROR(keys_.Resize(range.size()));
  TF_EMBED_RETURN_IF_ERROR(ends_.Resize(range.size()));
  TF_EMBED_RETURN_IF_ERROR(numbers_.Resize(range.size()));
  TF_EMBED_RETURN_IF_ERROR(positions_.Resize(range.size()));
  TF_EMBED_RETURN_IF_ERROR(buckets_.Resize(mask + 1));
  std::fill(buckets_.data(), buckets_.data() + mask + 1, kNone);
  const uint64_t salt = ProcessSalt() | 1;
  for (size_t record = 0; record < range.size(); ++record) {
    const int64_t key = range.begin[record].key;
    // The high bits of a product with an odd number, of a hash, since keys may be regular.
    size_t bucket = (HashKey(key) * salt) >> (64 - bits);
    while (buckets_[bucket] != kNone && keys_[buckets_[bucket]] != key) {
      bucket = (bucket + 1) & mask;
    }
    uint32_t number = buckets_[bucket];
    if (number == kNone) {
      number = buckets_[bucket] = static_cast<uint32_t>(size_++);
      keys_[number] = key;
      ends_[number] = 0;
    }
    ++ends_[number];
    numbers_[record] = number;
  }
  // From counts to where each key's places begin; as they are written, to where they end.
  uint32_t begin = 0;
  for (size_t i = 0; i < size_; ++i) {
    const uint32_t count = ends_[i];
    ends_[i] = begin;
    begin += count;
  }
  // Keys were numbered as they came first.
  uint32_t next = 0;
  for (size_t record = 0; record < range.size(); ++record) {
    const uint32_t number = numbers_[record];
    positions_[ends_[number]++] = range.begin[record].position;
    const bool is_first = number == next;
    numbers_[record] = is_first ? number : kNone;
    next += is_first ? 1 : 0;
  }
  return Status();
}

}  // namespace tf_embed
