// SPDX-License-Identifier: Apache-2.0
#include "cc/core/batch/key_set.h"

#include <new>

namespace tf_embed {
namespace {

Status NoMemory() {
  return Status::ResourceExhausted([] { return "No memory for a set of keys."; });
}

}  // namespace

Status KeySet::Add(const int64_t* keys, size_t count) {
  try {
    keys_.insert(keys_.end(), keys, keys + count);
    return Status();
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
}

Status KeySet::Build() {
  std::sort(keys_.begin(), keys_.end());
  keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
  int log_bits = 6;
  while ((size_t{1} << log_bits) < 8 * keys_.size()) ++log_bits;
  shift_ = 64 - log_bits;
  try {
    bits_.assign((size_t{1} << log_bits) / 64, 0);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  for (const int64_t key : keys_) {
    const uint64_t bit = HashKey(key) >> shift_;
    bits_[bit / 64] |= uint64_t{1} << bit % 64;
  }
  return Status();
}

}  // namespace tf_embed
