// SPDX-License-Identifier: Apache-2.0
// The distinct keys of a batch and the sums of their gradients: the input of an optimizer's step on
// a table, as arrays. The gradients may belong to bags. They are then read bag by bag, and
// gradients of single keys never exist.
#ifndef TF_EMBED_CC_CORE_POOLING_KEY_SUMS_H_
#define TF_EMBED_CC_CORE_POOLING_KEY_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "cc/core/base/allocator.h"
#include "cc/core/base/data_type.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/key_groups.h"
#include "cc/core/pooling/key_gradients.h"

namespace tf_embed {

// Numbers the distinct keys of a batch by first occurrence. All results are the same for any number
// of threads.
class KeySums {
 public:
  explicit KeySums(Allocator* allocator)
      : allocator_(allocator),
        skip_(allocator),
        groups_(allocator),
        distinct_(allocator),
        numbers_(allocator),
        firsts_(allocator),
        scales_(allocator) {}

  // `keys` [num_keys] outlives this. Keys that equal `padding`, if it is given, are left out.
  Status Build(const ExecContext& context, const int64_t* keys, size_t num_keys,
               const int64_t* padding);

  // Number of distinct keys.
  size_t size() const { return size_; }

  // Writes the distinct keys [size].
  void WriteKeys(int64_t* distinct) const;

  // Writes the number of each key [num_keys], -1 for padding.
  void WriteInverse(const ExecContext& context, int32_t* inverse) const;

  // Writes the sums [size, dim], taken in the order of the batch in the compute type of the
  // gradients and then converted to `type`: that compute type, or a type with the same compute
  // type. With bags, sums weight x gradient of the bag / divisor of the bag.
  Status WriteSums(const ExecContext& context, const KeyGradients& gradients, DataType type,
                   void* sums);

 private:
  // The batch is numbered in ranges, many at once. A range's numbers begin where the previous
  // range's end, which is only known afterwards. With ranges of several chunks of the partition,
  // threads seldom write to the same lines.
  static constexpr size_t kRangeSize = 4096;

  size_t num_ranges() const { return (num_keys_ + kRangeSize - 1) / kRangeSize; }

  // The number of the key that first occurs at `record`.
  size_t NumberOf(size_t record, const KeyGroup& group) const {
    return size_t{firsts_[group.positions[0] / kRangeSize]} + numbers_[record];
  }

  // Calls `work(begin, end)` for the records of each part, many parts at once, and returns the
  // first failure.
  template <typename Work>
  Status ForEachPart(const ExecContext& context, size_t key_cost, const Work& work) const;

  template <typename Compute>
  Status ScaleBags(const KeyGradients& gradients);

  Allocator* const allocator_;
  const int64_t* keys_ = nullptr;
  size_t num_keys_ = 0;
  size_t size_ = 0;
  Buffer<bool> skip_;  // whether each key is padding
  KeyGroups groups_;
  Buffer<int64_t> distinct_;  // at the start of each range, the keys that first occur in it
  Buffer<uint32_t> numbers_;  // of these keys in their range, by the record of first occurrence
  Buffer<uint32_t> firsts_;   // number of each range's first key; one more entry: size_
  Buffer<char> scales_;       // 1 / divisor of each bag, in the compute type
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POOLING_KEY_SUMS_H_
