// SPDX-License-Identifier: Apache-2.0
// Loops shared by the files of HostStore.
#ifndef TF_EMBED_CC_STORES_HOST_HOST_STORE_INL_H_
#define TF_EMBED_CC_STORES_HOST_HOST_STORE_INL_H_

#include <cstring>
#include <functional>
#include <utility>

#include "cc/core/base/first_failure.h"
#include "cc/core/base/hash.h"
#include "cc/core/loops/table_loops.h"
#include "cc/core/rows/row_copy.h"
#include "cc/stores/host/host_store.h"

namespace tf_embed {

template <typename Approach, typename Visit>
Status HostStore::ForEachGroup(const Content& content, KeyGroups::Range* range,
                               const Approach& approach, const Visit& visit) {
  const size_t stride = content.rows.layout().stride;
  const bool has_statistics = content.rows.layout().statistics_per_row > 0;
  const bool has_marks = content.rows.layout().has_marks;
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
        probe.mark = nullptr;
        if (probe.entry.found()) {
          PrefetchRow(content.rows.Row(probe.entry.row_id), stride);
          if (has_statistics) __builtin_prefetch(content.rows.Statistics(probe.entry.row_id), 1);
          if (has_marks) {
            probe.mark = content.rows.Mark(probe.entry.row_id);
            __builtin_prefetch(probe.mark);
          }
        }
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
void HostStore::ForEachRow(const Content& content, size_t stripe, const Visit& visit) const {
  // Work in small groups, so that cache misses overlap.
  constexpr size_t kTogether = 16;
  Bucket* buckets[kTogether];
  int64_t keys[kTogether];
  uint32_t row_ids[kTogether];
  char* rows[kTogether];
  size_t count = 0;
  const auto visit_them = [&] {
    for (size_t i = 0; i < count; ++i) visit(*buckets[i], keys[i], row_ids[i], rows[i]);
    count = 0;
  };
  content.index.ForEach(stripe, [&](Bucket& bucket, int64_t key, uint32_t row_id) {
    buckets[count] = &bucket;
    keys[count] = key;
    row_ids[count] = row_id;
    rows[count] = content.rows.Row(row_id);
    PrefetchRow(rows[count], content.rows.layout().stride);
    if (++count == kTogether) visit_them();
  });
  visit_them();
}

template <typename Visit>
void HostStore::ForEachStatistics(const Content& content, size_t stripe, const Visit& visit) const {
  // Work in small groups, so that misses on statistics overlap.
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
  content.index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
    keys[count] = key;
    words[count] = content.rows.Statistics(row_id);
    __builtin_prefetch(words[count]);
    if (++count == kTogether) visit_them();
  });
  visit_them();
}

template <typename Append>
Status HostStore::ExportStripes(size_t max_rows, ExportCursor* cursor, WholeRows* rows,
                                const Append& append) const {
  const Content& content = *content_;
  rows->size = 0;
  RowCopier copier(content, options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(copier.MakeRoom(max_rows, rows));
  for (; cursor->next < StripedIndex::kStripes; ++cursor->next) {
    std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(cursor->next));
    const size_t stripe_size = content.index.StripeSize(cursor->next);
    if (rows->size > 0 && rows->size + stripe_size > max_rows) break;
    if (stripe_size > max_rows) TF_EMBED_RETURN_IF_ERROR(copier.MakeRoom(stripe_size, rows));
    content.index.ForEach(cursor->next, [&](const Bucket& bucket, int64_t key, uint32_t row_id) {
      append(&copier, bucket, key, row_id);
    });
  }
  cursor->done = cursor->next == StripedIndex::kStripes;
  return Status();
}

template <typename Stays>
Status HostStore::CopyContent(const ExecContext& context, const Stays& stays, Content* copy) const {
  constexpr size_t kCopyCost = 100;  // ns a row
  const size_t size = content_->index.size();
  const RowLayout& layout = content_->rows.layout();
  FirstFailure failure;
  const auto copy_stripes = [&](size_t begin, size_t end) {
    // Work in small groups, so that misses on rows overlap.
    constexpr size_t kTogether = 32;
    int64_t keys[kTogether];
    uint32_t row_ids[kTogether];
    size_t count = 0;
    Status status;
    const auto copy_them = [&](size_t stripe) {
      for (size_t i = 0; i < count; ++i) {
        if (stays(StatisticsOf(*content_, row_ids[i]), HashKey(keys[i]))) {
          PrefetchRow<false>(content_->rows.Row(row_ids[i]), layout.stride);
        } else {
          row_ids[i] = kNoRowId;
        }
      }
      for (size_t i = 0; i < count && status.ok(); ++i) {
        if (row_ids[i] == kNoRowId) continue;
        const uint32_t to = copy->rows.Take(&copy->pools[stripe]);
        if (to == kNoRowId) {
          status = NoMemory(size);
          return;
        }
        std::memcpy(copy->rows.Row(to), content_->rows.Row(row_ids[i]), layout.stride);
        // Readers may update usage concurrently.
        const RowStatistics::Word* const words = content_->rows.Statistics(row_ids[i]);
        RowStatistics::Word* const copied = copy->rows.Statistics(to);
        for (size_t word = 0; word < layout.statistics_per_row; ++word) {
          copied[word].store(words[word].load(std::memory_order_relaxed),
                             std::memory_order_relaxed);
        }
        if (layout.has_marks) {
          copy->rows.Mark(to)->store(content_->rows.Mark(row_ids[i])->load());
        }
        status = copy->index.Insert(keys[i], HashKey(keys[i]), to);
      }
      count = 0;
    };
    for (size_t stripe = begin; stripe < end && status.ok() && !failure.failed(); ++stripe) {
      content_->index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
        if (!status.ok()) return;
        keys[count] = key;
        row_ids[count] = row_id;
        __builtin_prefetch(content_->rows.Statistics(row_id));
        if (++count == kTogether) copy_them(stripe);
      });
      if (status.ok()) copy_them(stripe);
    }
    if (!status.ok()) failure.Note(std::move(status));
  };
  const size_t stripe_cost = kCopyCost * (1 + size / StripedIndex::kStripes);
  context.parallel_for(StripedIndex::kStripes, stripe_cost, std::cref(copy_stripes));
  return failure.Take();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_HOST_HOST_STORE_INL_H_
