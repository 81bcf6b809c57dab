// SPDX-License-Identifier: Apache-2.0
#include "cc/core/exchange/key_route.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

namespace tf_embed {

Status KeyRoute::Build(const ExecContext& context, const int64_t* keys, size_t size,
                       const int32_t* owners, OwnerRule rule, bool unsigned_keys,
                       size_t num_workers) {
  const size_t wrong = FirstWrongOwner(owners, size, num_workers);
  if (wrong < size) return WrongOwner(owners[wrong], keys[wrong], num_workers);
  batch_size_ = size;
  TF_EMBED_RETURN_IF_ERROR(sums_.Build(context, keys, size, nullptr));
  const size_t num_distinct = sums_.size();
  TF_EMBED_RETURN_IF_ERROR(distinct_.Resize(num_distinct));
  TF_EMBED_RETURN_IF_ERROR(places_.Resize(num_distinct));
  TF_EMBED_RETURN_IF_ERROR(counts_.Resize(num_workers));
  sums_.WriteKeys(distinct_.data());

  // `places_` first holds owners and then, after a counting sort, places.
  if (owners == nullptr) {
    for (size_t i = 0; i < num_distinct; ++i) {
      places_[i] = static_cast<int32_t>(OwnerOf(distinct_[i], num_workers, rule, unsigned_keys));
    }
  } else {
    Buffer<int32_t> numbers(HostAllocator());
    TF_EMBED_RETURN_IF_ERROR(numbers.Resize(size));
    sums_.WriteInverse(context, numbers.data());
    std::fill(places_.data(), places_.data() + num_distinct, -1);
    for (size_t i = 0; i < size; ++i) {
      int32_t& owner = places_[static_cast<size_t>(numbers[i])];
      if (owner >= 0 && owner != owners[i]) {
        return Status::InvalidArgument(
            "The owner of a key must be a function of the key. Received: the workers " +
            std::to_string(owner) + " and " + std::to_string(owners[i]) + " for key " +
            std::to_string(keys[i]) + ".");
      }
      owner = owners[i];
    }
  }
  std::fill(counts_.data(), counts_.data() + num_workers, 0);
  for (size_t i = 0; i < num_distinct; ++i) ++counts_[static_cast<size_t>(places_[i])];
  Buffer<int32_t> next(HostAllocator());
  TF_EMBED_RETURN_IF_ERROR(next.Resize(num_workers));
  int32_t begin = 0;
  for (size_t worker = 0; worker < num_workers; ++worker) {
    next[worker] = begin;
    begin += counts_[worker];
  }
  for (size_t i = 0; i < num_distinct; ++i) places_[i] = next[static_cast<size_t>(places_[i])]++;
  return Status();
}

void KeyRoute::WriteKeys(int64_t* routed) const {
  for (size_t i = 0; i < size(); ++i) routed[places_[i]] = distinct_[i];
}

void KeyRoute::WritePlaces(const ExecContext& context, int32_t* places) const {
  sums_.WriteInverse(context, places);
  const auto replace = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) places[i] = places_[static_cast<size_t>(places[i])];
  };
  context.parallel_for(batch_size_, 2, std::cref(replace));
}

Status KeyRoute::WriteSums(const ExecContext& context, const KeyGradients& gradients, DataType type,
                           void* sums) {
  const size_t bytes = gradients.dim * SizeOf(type);
  Buffer<char> in_order(HostAllocator());  // the distinct keys, by first occurrence
  TF_EMBED_RETURN_IF_ERROR(in_order.Resize(size() * bytes));
  TF_EMBED_RETURN_IF_ERROR(sums_.WriteSums(context, gradients, type, in_order.data()));
  const auto place = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<char*>(sums) + static_cast<size_t>(places_[i]) * bytes,
                  in_order.data() + i * bytes, bytes);
    }
  };
  context.parallel_for(size(), 1 + bytes / 4, std::cref(place));
  return Status();
}

}  // namespace tf_embed
