// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/shard_split.h"

#include <algorithm>
#include <string>

namespace tf_embed {

size_t FirstWrongOwner(const int32_t* owners, size_t size, size_t num_shards) {
  if (owners == nullptr) return size;
  const int32_t* const wrong = std::find_if(owners, owners + size, [&](int32_t owner) {
    return owner < 0 || static_cast<size_t>(owner) >= num_shards;
  });
  return static_cast<size_t>(wrong - owners);
}

Status WrongOwner(int32_t owner, int64_t key, size_t num_shards) {
  return Status::InvalidArgument(
      "The partitioner must give a shard in [0, " + std::to_string(num_shards) +
      "). Received: " + std::to_string(owner) + " for key " + std::to_string(key) + ".");
}

Status ShardSplit::Build(const int64_t* keys, size_t size, const int32_t* owners, size_t num_shards,
                         bool unsigned_keys) {
  TF_EMBED_RETURN_IF_ERROR(CheckBatchSize(size));
  num_shards_ = num_shards;
  const size_t wrong = FirstWrongOwner(owners, size, num_shards);
  if (wrong < size) return WrongOwner(owners[wrong], keys[wrong], num_shards);
  whole_ = KeyBatch{keys, size, nullptr};
  if (num_shards == 1) return Status();

  TF_EMBED_RETURN_IF_ERROR(keys_.Resize(size));
  TF_EMBED_RETURN_IF_ERROR(positions_.Resize(size));
  TF_EMBED_RETURN_IF_ERROR(offsets_.Resize(num_shards + 1));
  const auto owner = [&](size_t i) {
    return owners != nullptr ? static_cast<size_t>(owners[i])
                             : DefaultShard(keys[i], num_shards, unsigned_keys);
  };
  std::fill(offsets_.data(), offsets_.data() + num_shards + 1, 0);
  for (size_t i = 0; i < size; ++i) ++offsets_[owner(i) + 1];
  for (size_t shard = 0; shard < num_shards; ++shard) offsets_[shard + 1] += offsets_[shard];
  // Each shard's offset has moved to its end, which is the next shard's start; moves them all back.
  for (size_t i = 0; i < size; ++i) {
    const uint32_t place = offsets_[owner(i)]++;
    keys_[place] = keys[i];
    positions_[place] = static_cast<uint32_t>(i);
  }
  for (size_t shard = num_shards; shard > 0; --shard) offsets_[shard] = offsets_[shard - 1];
  offsets_[0] = 0;
  return Status();
}

KeyBatch ShardSplit::shard(size_t number) const {
  if (num_shards_ == 1) return whole_;
  const size_t begin = offsets_[number];
  return KeyBatch{keys_.data() + begin, offsets_[number + 1] - begin, positions_.data() + begin};
}

}  // namespace tf_embed
