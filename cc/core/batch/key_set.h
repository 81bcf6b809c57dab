// SPDX-License-Identifier: Apache-2.0
// A set of keys that is built once, for lookups of many keys of which few are in it.
#ifndef TF_EMBED_CC_CORE_BATCH_KEY_SET_H_
#define TF_EMBED_CC_CORE_BATCH_KEY_SET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/base/status.h"

namespace tf_embed {

class KeySet {
 public:
  // In this order; Add any number of times. Keys may repeat.
  Status Add(const int64_t* keys, size_t count);
  Status Build();

  size_t size() const { return keys_.size(); }
  bool Has(int64_t key) const {
    return MayHave(HashKey(key)) && std::binary_search(keys_.begin(), keys_.end(), key);
  }

 private:
  // Of 8 bits or more for each key, one is set, so most absent keys take one cache line.
  bool MayHave(uint64_t hash) const {
    return !keys_.empty() && (bits_[(hash >> shift_) / 64] >> (hash >> shift_) % 64 & 1) != 0;
  }

  std::vector<int64_t> keys_;  // sorted
  std::vector<uint64_t> bits_;
  int shift_ = 0;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_KEY_SET_H_
