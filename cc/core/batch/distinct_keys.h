// SPDX-License-Identifier: Apache-2.0
// Finds the equal keys of one part of a batch: an optimizer's rule runs once a step for a key.
#ifndef TF_EMBED_CC_CORE_BATCH_DISTINCT_KEYS_H_
#define TF_EMBED_CC_CORE_BATCH_DISTINCT_KEYS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_partition.h"

namespace tf_embed {

// The positions of a key, as a range of an array.
struct KeyRun {
  uint32_t begin;
  uint32_t count;  // 0 if there is no key
};

// Finds equal keys. Its scratch memory is kept from one part to the next.
class DistinctKeys {
 public:
  explicit DistinctKeys(Allocator* allocator)
      : keys_(allocator), ends_(allocator), numbers_(allocator), buckets_(allocator) {}

  // Writes the positions of `range` to `positions` [range.size()], key by key, each key's in the
  // order of the batch. `runs` [range.size()] gets the run of a key's positions, counted from
  // `begin`, at the first record of the key, and an empty run at each later record.
  Status Find(const KeyRange& range, uint32_t begin, uint32_t* positions, KeyRun* runs);

 private:
  Buffer<int64_t> keys_;      // the distinct keys, in the order of first occurrence
  Buffer<uint32_t> ends_;     // of each key's positions
  Buffer<uint32_t> numbers_;  // of the key of each record
  Buffer<uint32_t> buckets_;  // open addressing; number of a key, or kNone
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BATCH_DISTINCT_KEYS_H_
