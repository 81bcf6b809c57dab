// SPDX-License-Identifier: Apache-2.0
#include "cc/core/pooling/bags.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "cc/core/batch/key_batch.h"

namespace tf_embed {

Status Bags::TooMany(const char* what) const {
  return Status::InvalidArgument(std::string("A pooled batch may have at most ") +
                                 std::to_string(kMaxBatchSize) + " " + what + ".");
}

void Bags::OfLines(size_t num_lines, size_t length) {
  size_ = num_lines;
  length_ = length;
  num_keys_ = num_lines * length;
}

template <typename Index>
Status Bags::OfSplits(const Index* splits, size_t size, size_t num_keys) {
  if (size == 0 || splits[0] != 0 || static_cast<size_t>(splits[size - 1]) != num_keys ||
      !std::is_sorted(splits, splits + size)) {
    return Status::InvalidArgument(
        "Row splits must begin with 0, never fall and end with the number of keys, " +
        std::to_string(num_keys) + ".");
  }
  size_ = size - 1;
  num_keys_ = num_keys;
  if constexpr (std::is_same_v<Index, int64_t>) {
    splits_ = splits;
  } else {
    TF_EMBED_RETURN_IF_ERROR(own_splits_.Resize(size));
    std::copy(splits, splits + size, own_splits_.data());
    splits_ = own_splits_.data();
  }
  return Status();
}

template Status Bags::OfSplits(const int32_t*, size_t, size_t);
template Status Bags::OfSplits(const int64_t*, size_t, size_t);

Status Bags::OfIndices(const int64_t* indices, size_t num_keys, const int64_t* shape, size_t rank) {
  if (rank == 0) return Status::InvalidArgument("A sparse array of bags must have an axis.");
  if (num_keys > kMaxBatchSize) return TooMany("keys");
  size_t lines = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0) {
      return Status::InvalidArgument(
          "Sparse ids must have a dense_shape of numbers from 0. Received: " +
          std::to_string(shape[axis]) + " on axis " + std::to_string(axis) + ".");
    }
    if (axis + 1 < rank && shape[axis] == 0) lines = 0;
  }
  for (size_t axis = 0; axis + 1 < rank && lines > 0; ++axis) {
    if (static_cast<size_t>(shape[axis]) > kMaxBatchSize / lines) return TooMany("bags");
    lines *= static_cast<size_t>(shape[axis]);
  }
  TF_EMBED_RETURN_IF_ERROR(numbers_.Resize(num_keys));
  TF_EMBED_RETURN_IF_ERROR(own_splits_.Resize(lines + 1));
  int64_t* const splits = own_splits_.data();
  std::fill(splits, splits + lines + 1, 0);
  uint32_t last = 0;
  for (size_t i = 0; i < num_keys; ++i) {
    size_t line = 0;
    for (size_t axis = 0; axis < rank; ++axis) {
      const int64_t index = indices[i * rank + axis];
      if (index < 0 || index >= shape[axis]) {
        return Status::InvalidArgument(
            "Sparse ids must have indices within their dense_shape. Received: " +
            std::to_string(index) + " on axis " + std::to_string(axis) + " of " +
            std::to_string(shape[axis]) + ".");
      }
      if (axis + 1 < rank) line = line * static_cast<size_t>(shape[axis]) + index;
    }
    numbers_[i] = static_cast<uint32_t>(line);
    ++splits[line + 1];
    sorted_ = sorted_ || numbers_[i] < last;
    last = numbers_[i];
  }
  for (size_t line = 0; line < lines; ++line) splits[line + 1] += splits[line];
  if (sorted_) {
    TF_EMBED_RETURN_IF_ERROR(order_.Resize(num_keys));
    // Each line's start has moved to its end, which is the next line's start; moves them all back.
    for (size_t i = 0; i < num_keys; ++i) order_[splits[numbers_[i]]++] = static_cast<uint32_t>(i);
    for (size_t line = lines; line > 0; --line) splits[line] = splits[line - 1];
    splits[0] = 0;
  }
  numbered_ = true;
  size_ = lines;
  num_keys_ = num_keys;
  splits_ = splits;
  return Status();
}

Status Bags::Number() {
  if (numbered_) return Status();
  TF_EMBED_RETURN_IF_ERROR(numbers_.Resize(num_keys_));
  for (size_t bag = 0; bag < size_; ++bag) {
    std::fill(numbers_.data() + begin(bag), numbers_.data() + begin(bag + 1),
              static_cast<uint32_t>(bag));
  }
  numbered_ = true;
  return Status();
}

}  // namespace tf_embed
