// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/restrict.h"

#include <algorithm>
#include <cmath>

#include "cc/core/policy/rank_list.h"
#include "cc/core/store/store_locks.h"

namespace tf_embed {
namespace {

// A sample has one row in this many.
constexpr size_t kSampleOneIn = 32;
// The rank below kHighestRank: ranks compare the hash with its first byte last.
constexpr Rank kSecondRank{UINT64_MAX, ~(uint64_t{1} << 56)};
static_assert(kSecondRank < kHighestRank);
// The most passes in which all rows that were to leave turn out to have been used.
constexpr int kMaxInVain = 100;

// REQUIRES: each has eviction().
class Shards {
 public:
  Shards(const ExecContext& context, Store* const* shards, size_t num_shards, EvictionOrder order)
      : context_(context), shards_(shards), num_shards_(num_shards), order_(order) {}

  Allocator* allocator() const { return shards_[0]->options().allocator; }

  size_t size() const {
    size_t sum = 0;
    for (size_t i = 0; i < num_shards_; ++i) sum += shards_[i]->size();
    return sum;
  }

  // All ranks from `low` to below `high`, of one row in `one_in`, and how many rows are below
  // `low`.
  Status Collect(size_t one_in, const Rank& low, const Rank& high, RankList* ranks,
                 size_t* below) const {
    ranks->Clear();
    *below = 0;
    for (size_t i = 0; i < num_shards_; ++i) {
      TF_EMBED_RETURN_IF_ERROR(
          shards_[i]->eviction()->CollectRanks(context_, order_, one_in, low, high, ranks, below));
    }
    return Status();
  }

  // The rank that exactly `count` rows are below, 0 < count < size(). REQUIRES: no other thread
  // writes. Uses only raise ranks.
  Status RankAt(size_t count, size_t size, Rank* limit) const {
    RankList ranks(allocator());
    size_t below;
    TF_EMBED_RETURN_IF_ERROR(Collect(kSampleOneIn, Rank(), kHighestRank, &ranks, &below));
    std::sort(ranks.begin(), ranks.end());
    RankList sample(allocator());
    std::swap(sample, ranks);

    // The place in the sample, give or take some standard deviations. Each try takes more, up to
    // the whole store, which surely has the rank.
    const double share = static_cast<double>(count) / static_cast<double>(size);
    const double place = share * static_cast<double>(sample.size());
    double margin = 2.0 + 4.0 * std::sqrt(place * (1.0 - share));
    for (;; margin *= 8.0) {
      const double low = std::floor(place - margin);
      const double high = std::ceil(place + margin);
      const Rank from = low < 0.0 ? Rank() : sample[static_cast<size_t>(low)];
      const Rank to = high >= static_cast<double>(sample.size())
                          ? kHighestRank
                          : sample[static_cast<size_t>(high)];
      TF_EMBED_RETURN_IF_ERROR(Collect(1, from, to, &ranks, &below));
      if (below <= count && count < below + ranks.size()) break;
    }
    std::nth_element(ranks.begin(), ranks.begin() + (count - below), ranks.end());
    *limit = ranks[count - below];
    // As a limit kHighestRank would mean all rows, even a row that has it. No rank is between these
    // two. So one row too many stays if rows have both: two keys out of all, with the highest
    // score.
    if (*limit == kHighestRank) *limit = kSecondRank;
    return Status();
  }

 private:
  const ExecContext& context_;
  Store* const* const shards_;
  const size_t num_shards_;
  const EvictionOrder order_;
};

}  // namespace

Status RestrictRows(const ExecContext& context, Store* const* shards, size_t num_shards,
                    EvictionOrder order, size_t num_reserved, size_t* removed) {
  *removed = 0;
  for (size_t i = 0; i < num_shards; ++i) {
    StoreEviction* eviction;
    TF_EMBED_RETURN_IF_ERROR(shards[i]->GetEviction(&eviction));
  }
  // The counts must still hold when rows are evicted by them.
  HeldStores held(shards[0]->options().allocator);
  TF_EMBED_RETURN_IF_ERROR(held.Take(shards, num_shards, Held::kPaused));
  const ExecContext paused = context.Holding(Held::kPaused);
  const Shards all(paused, shards, num_shards, order);
  const size_t before = all.size();
  for (size_t i = 0; i < num_shards; ++i) {
    TF_EMBED_RETURN_IF_ERROR(shards[i]->eviction()->EvictExpired(paused, removed));
  }
  size_t size = all.size();
  if (size <= num_reserved && *removed > 0 && *removed >= before / 4) {
    // Without memory for a copy the stores are correct, only larger.
    for (size_t i = 0; i < num_shards; ++i) {
      if (StoreMaintenance* maintenance = shards[i]->maintenance()) {
        (void)maintenance->Shrink(paused);  // may fail, see above
      }
    }
  }
  // Rows that readers use meanwhile stay, so others must leave.
  for (int in_vain = 0; size > num_reserved && in_vain < kMaxInVain;) {
    size_t gone = 0;
    Rank limit = kHighestRank;
    if (num_reserved > 0) TF_EMBED_RETURN_IF_ERROR(all.RankAt(size - num_reserved, size, &limit));
    for (size_t i = 0; i < num_shards; ++i) {
      TF_EMBED_RETURN_IF_ERROR(shards[i]->eviction()->EvictBelow(paused, order, limit,
                                                                 num_reserved / num_shards, &gone));
    }
    *removed += gone;
    size -= gone;
    in_vain += gone == 0;
  }
  return Status();
}

}  // namespace tf_embed
