// SPDX-License-Identifier: Apache-2.0
#include "cc/tiered/victims.h"

#include <algorithm>

#include "cc/core/base/hash.h"

namespace tf_embed {
namespace {

// The share of the cache that one pass collects.
constexpr size_t kShareDivisor = 8;
// A sample of so many rows tells where that share ends.
constexpr size_t kSampleOneIn = 32;
// Below so many rows all of them are collected.
constexpr size_t kFewRows = 4096;

}  // namespace

Status Victims::Collect(const ExecContext& context, const Table& cache) {
  const TableEviction& eviction = *cache.eviction();
  size_t below = 0;
  Forget();
  Rank limit = kHighestRank;
  if (cache.size() > kFewRows) {
    RankList sample(allocator_);
    TF_EMBED_RETURN_IF_ERROR(eviction.CollectRanks(context, EvictionOrder::kLru, kSampleOneIn,
                                                   Rank(), kHighestRank, &sample, &below));
    const size_t place = sample.size() / kShareDivisor;
    if (place < sample.size()) {
      std::nth_element(sample.begin(), sample.begin() + place, sample.end());
      limit = sample[place];
    }
  }
  TF_EMBED_RETURN_IF_ERROR(
      eviction.CollectRanks(context, EvictionOrder::kLru, 1, Rank(), limit, &ranks_, &below));
  // Threads append to the list as they finish. Sorted, the same rows leave in each run.
  std::sort(ranks_.begin(), ranks_.end());
  return Status();
}

Status Victims::Next(const ExecContext& context, const Table& cache, size_t count, int64_t* keys,
                     size_t* found, bool* collected) {
  *found = 0;
  *collected = next_ == ranks_.size();
  if (*collected) TF_EMBED_RETURN_IF_ERROR(Collect(context, cache));
  TF_EMBED_RETURN_IF_ERROR(steps_.Resize(count));
  TF_EMBED_RETURN_IF_ERROR(exists_.Resize(count));
  while (*found == 0 && next_ < ranks_.size()) {
    const Rank* const first = ranks_.begin() + next_;
    const size_t tried = std::min(count, ranks_.size() - next_);
    for (size_t i = 0; i < tried; ++i) keys[i] = KeyOfHash(first[i].hash());
    next_ += tried;
    TF_EMBED_RETURN_IF_ERROR(cache.eviction()->FindStatistics(context, KeyBatch{keys, tried},
                                                              steps_.data(), exists_.data()));
    for (size_t i = 0; i < tried; ++i) {
      if (exists_[i] && steps_[i] == first[i].score()) keys[(*found)++] = keys[i];
    }
  }
  return Status();
}

}  // namespace tf_embed
