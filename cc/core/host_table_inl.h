// The loops that the files of HostTable share.
#ifndef TF_EMBED_CC_CORE_HOST_TABLE_INL_H_
#define TF_EMBED_CC_CORE_HOST_TABLE_INL_H_

#include "cc/core/hash.h"
#include "cc/core/host_table.h"
#include "cc/core/row_copy.h"
#include "cc/core/table_loops.h"

namespace tf_embed {

template <typename Approach, typename Visit>
Status HostTable::ForEachGroup(const Content& content, KeyGroups::Range* range,
                               const Approach& approach, const Visit& visit) {
  const size_t stride = content.rows.layout().stride;
  Probe ring[kRing];
  while (range->Next()) {
    const size_t count = range->size();
    for (size_t i = 0; i < count + kBucketAhead; ++i) {
      if (i < count) {
        Probe& probe = ring[i % kRing];
        probe.hash = HashKey((*range)[i].key);
        __builtin_prefetch(content.index.HomeOf(probe.hash));
      }
      constexpr size_t kBetween = kBucketAhead - kRowAhead;
      if (i >= kBetween && i - kBetween < count) {
        const size_t j = i - kBetween;
        Probe& probe = ring[j % kRing];
        probe.entry = content.index.Find((*range)[j].key, probe.hash);
        if (probe.entry.found()) PrefetchRow(content.rows.Row(probe.entry.slot), stride);
        approach((*range)[j]);
      }
      if (i >= kBucketAhead) {
        const size_t j = i - kBucketAhead;
        TF_EMBED_RETURN_IF_ERROR(visit((*range)[j], ring[j % kRing]));
      }
    }
  }
  return Status();
}

template <typename Visit>
void HostTable::ForEachStatistics(const Content& content, size_t stripe, const Visit& visit) const {
  // Some keys at a time, so that the misses of their statistics overlap.
  constexpr size_t kTogether = 32;
  int64_t keys[kTogether];
  RowStatistics::Word* words[kTogether];
  size_t count = 0;
  const auto visit_them = [&] {
    for (size_t i = 0; i < count; ++i) {
      visit(keys[i], RowStatistics(options_.policy.statistics, words[i]));
    }
    count = 0;
  };
  content.index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t slot) {
    keys[count] = key;
    words[count] = content.rows.Statistics(slot);
    __builtin_prefetch(words[count]);
    if (++count == kTogether) visit_them();
  });
  visit_them();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_HOST_TABLE_INL_H_
