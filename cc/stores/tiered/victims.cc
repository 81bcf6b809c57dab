// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/tiered/victims.h"

#include <algorithm>

#include "cc/core/base/hash.h"

namespace tf_embed {
namespace {

// The share of the cache that a pass collects.
constexpr size_t kShareDivisor = 8;
// Samples 1 row in this many to find where this share ends.
constexpr size_t kSampleOneIn = 32;
// A smaller cache is collected whole.
constexpr size_t kFewRows = 4096;
// Ticks between passes, which keep marks from wrapping.
constexpr uint64_t kMostTicks = 24;
static_assert(RowMark::kOldest + kMostTicks + Victims::kGrowthTicks < RowMark::kTicks,
              "no mark comes around");

uint8_t MarkOf(const Rank& rank) { return static_cast<uint8_t>(rank.score()); }

}  // namespace

Status Victims::Collect(const ExecContext& context, Store* cache) {
  const StoreCache& rows = *cache->cache();
  const uint8_t now = tick();
  const auto age = [&](const Rank& rank) { return RowMark::Age(MarkOf(rank), now); };
  Forget();
  collected_at_ = tick_;
  uint8_t least_age = 0;
  if (rows.num_rows() > kFewRows) {
    RankList sample(allocator_);
    TF_EMBED_RETURN_IF_ERROR(rows.CollectAges(context, kSampleOneIn, 0, &sample));
    const size_t place = sample.size() / kShareDivisor;
    if (place < sample.size()) {
      std::nth_element(sample.begin(), sample.begin() + place, sample.end(),
                       [&](const Rank& a, const Rank& b) { return age(a) > age(b); });
      least_age = std::min(age(sample[place]), RowMark::kOldest);
    }
  }
  TF_EMBED_RETURN_IF_ERROR(rows.CollectAges(context, 1, least_age, &ranks_));
  // Threads append as they finish. Sorting makes evictions deterministic.
  std::sort(ranks_.begin(), ranks_.end(), [&](const Rank& a, const Rank& b) {
    return age(a) != age(b) ? age(a) > age(b) : a.hash() < b.hash();
  });
  return Status();
}

Status Victims::Next(const ExecContext& context, Store* cache, size_t count, int64_t* keys,
                     bool* changed, size_t* found, bool* collected) {
  *found = 0;
  *collected = next_ == ranks_.size() || tick_ - collected_at_ >= kMostTicks;
  if (*collected) TF_EMBED_RETURN_IF_ERROR(Collect(context, cache));
  TF_EMBED_RETURN_IF_ERROR(marks_.Resize(count));
  TF_EMBED_RETURN_IF_ERROR(exists_.Resize(count));
  while (*found == 0 && next_ < ranks_.size()) {
    const Rank* const first = ranks_.begin() + next_;
    const size_t tried = std::min(count, ranks_.size() - next_);
    for (size_t i = 0; i < tried; ++i) keys[i] = KeyOfHash(first[i].hash());
    next_ += tried;
    TF_EMBED_RETURN_IF_ERROR(
        cache->cache()->FindMarks(context, KeyBatch{keys, tried}, marks_.data(), exists_.data()));
    for (size_t i = 0; i < tried; ++i) {
      if (!exists_[i] || RowMark::TickOf(marks_[i]) != RowMark::TickOf(MarkOf(first[i]))) continue;
      changed[*found] = RowMark::IsChanged(marks_[i]);
      keys[(*found)++] = keys[i];
    }
  }
  return Status();
}

}  // namespace tf_embed
