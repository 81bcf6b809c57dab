// SPDX-License-Identifier: Apache-2.0
// StoreCache for HostStore: its verbs as the cache of a tiered store. Verbs on rows: host_store.cc.
#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "cc/core/base/first_failure.h"
#include "cc/core/base/hash.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/host/host_store_inl.h"

namespace tf_embed {
namespace {

// Rough costs in nanoseconds, used to split work over threads.
constexpr size_t kLookCost = 60;
constexpr size_t kAgeCost = 8;
constexpr size_t kAddCost = 300;
constexpr size_t kDropCost = 100;

}  // namespace

template <typename Visit>
void HostStore::ForEachProbe(const KeyBatch& batch, size_t begin, size_t end,
                             const Visit& visit) const {
  // Work in small groups: prefetch the next buckets, then the marks of this group.
  constexpr size_t kTogether = 16;
  const Content& content = *content_;
  const auto ask = [&](size_t from) {
    for (size_t i = from; i < std::min(end, from + kTogether); ++i) {
      __builtin_prefetch(content.index.HomeOf(HashKey(batch.keys[i])));
    }
  };
  ask(begin);
  for (; begin < end; begin += kTogether) {
    StripedIndex::Entry entries[kTogether];
    const size_t count = std::min(kTogether, end - begin);
    ask(begin + kTogether);
    for (size_t i = 0; i < count; ++i) {
      entries[i] = content.index.Find(batch.keys[begin + i], HashKey(batch.keys[begin + i]));
      if (entries[i].found()) __builtin_prefetch(content.rows.Mark(entries[i].row_id), 1);
    }
    for (size_t i = 0; i < count; ++i) visit(begin + i, entries[i]);
  }
}

Status HostStore::Touch(const ExecContext& context, const KeyBatch& batch, bool* exists) const {
  const ReadLocks reading(locks_, context);
  const uint8_t now = tick();
  const auto touch = [&](size_t begin, size_t end) {
    ForEachProbe(batch, begin, end, [&](size_t i, const StripedIndex::Entry& entry) {
      exists[batch.Position(i)] = entry.found();
      if (entry.found()) RowMark::Use(content_->rows.Mark(entry.row_id), now);
    });
  };
  context.parallel_for(batch.size, kLookCost, std::cref(touch));
  return Status();
}

Status HostStore::SetChanged(const ExecContext& context, const KeyBatch& batch,
                             bool changed) const {
  const ReadLocks reading(locks_, context);
  const auto set = [&](size_t begin, size_t end) {
    ForEachProbe(batch, begin, end, [&](size_t, const StripedIndex::Entry& entry) {
      if (entry.found()) RowMark::SetChanged(content_->rows.Mark(entry.row_id), changed);
    });
  };
  context.parallel_for(batch.size, kLookCost, std::cref(set));
  return Status();
}

Status HostStore::FindMarks(const ExecContext& context, const KeyBatch& batch, uint8_t* marks,
                            bool* exists) const {
  const ReadLocks reading(locks_, context);
  const auto find = [&](size_t begin, size_t end) {
    ForEachProbe(batch, begin, end, [&](size_t i, const StripedIndex::Entry& entry) {
      const size_t position = batch.Position(i);
      exists[position] = entry.found();
      marks[position] =
          entry.found() ? content_->rows.Mark(entry.row_id)->load(std::memory_order_relaxed) : 0;
    });
  };
  context.parallel_for(batch.size, kLookCost, std::cref(find));
  return Status();
}

Status HostStore::CollectAges(const ExecContext& context, size_t one_in, uint8_t least_age,
                              RankList* ranks) const {
  const ReadLocks reading(locks_, context);
  const Content& content = *content_;
  const uint8_t now = tick();
  const uint8_t oldest = static_cast<uint8_t>(now - RowMark::kOldest) % RowMark::kTicks;
  FirstFailure failure;
  std::mutex mutex;  // guards the shared results
  const auto collect = [&](size_t begin, size_t end) {
    RankList mine(options_.allocator);
    Status status;
    for (size_t i = begin; i < end && status.ok(); ++i) {
      const size_t stripe = i * one_in;
      std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
      content.index.ForEach(stripe, [&](const Bucket&, int64_t key, uint32_t row_id) {
        RowMark::Byte* const byte = content.rows.Mark(row_id);
        uint8_t mark = byte->load(std::memory_order_relaxed);
        if (one_in == 1 && RowMark::Age(mark, now) > RowMark::kOldest) {
          const uint8_t aged = RowMark::Of(oldest, RowMark::IsChanged(mark));
          if (byte->compare_exchange_strong(mark, aged, std::memory_order_relaxed)) mark = aged;
        }
        if (status.ok() && RowMark::Age(mark, now) >= least_age) {
          status = mine.Append(Rank(mark, HashKey(key)));
        }
      });
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (status.ok()) status = ranks->Append(mine.begin(), mine.size());
    if (!status.ok()) failure.Note(std::move(status));
  };
  const size_t keys_of_stripe = content.index.size() / StripedIndex::kStripes;
  context.parallel_for(StripedIndex::kStripes / one_in, kAgeCost * (1 + keys_of_stripe),
                       std::cref(collect));
  return failure.Take();
}

Status HostStore::AddUnchanged(const ExecContext& context, const WholeRows& rows) {
  const WriteLocks writing(locks_, context);
  Content& content = *content_;
  const RowLayout& layout = content.rows.layout();
  const uint8_t mark = RowMark::Of(tick(), false);
  FirstFailure failure;
  const auto add = [&](size_t begin, size_t end) {
    Buffer<char> narrow(options_.allocator);
    Status status = narrow.Resize(layout.narrow_slots ? layout.slot_bytes : 0);
    for (size_t i = begin; i < end && status.ok(); ++i) {
      const int64_t key = rows.keys[i];
      const uint64_t hash = HashKey(key);
      const char* slots = rows.slots.data() + i * layout.wide_slot_bytes;
      if (layout.narrow_slots) {
        NarrowSlots(content.rule, layout.value_type, slots, narrow.data());
        slots = narrow.data();
      }
      const size_t stripe = StripedIndex::StripeOf(hash);
      std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
      const uint32_t row_id = content.rows.Take(&content.pools[stripe]);
      if (row_id == kNoRowId) {
        status = NoMemory(content.index.size());
        break;
      }
      // As in VisitRow.
      std::atomic_thread_fence(std::memory_order_release);
      char* const row = content.rows.Row(row_id);
      loops_.store_row(rows.weights.data() + i * layout.weight_bytes, layout.weight_bytes, row);
      loops_.store_row(slots, layout.slot_bytes, row + layout.slot_offset);
      for (size_t word = 0; word < layout.statistics_per_row; ++word) {
        content.rows.Statistics(row_id)[word].store(
            rows.statistics[i * layout.statistics_per_row + word], std::memory_order_relaxed);
      }
      content.rows.Mark(row_id)->store(mark, std::memory_order_relaxed);
      status = content.index.Insert(key, hash, row_id);
      if (!status.ok()) content.rows.Free(&content.pools[stripe], row_id);
    }
    if (!status.ok()) failure.Note(std::move(status));
  };
  context.parallel_for(rows.size, kAddCost, std::cref(add));
  return failure.Take();
}

void HostStore::Drop(const ExecContext& context, const int64_t* keys, size_t count) {
  StripedIndex& index = content_->index;
  const auto drop = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kBucketAhead < end) {
        __builtin_prefetch(index.HomeOf(HashKey(keys[i + kBucketAhead])));
      }
      const uint64_t hash = HashKey(keys[i]);
      const size_t stripe = StripedIndex::StripeOf(hash);
      const std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
      const uint32_t row_id = index.Erase(keys[i], hash);
      if (row_id != kNoRowId) content_->rows.Free(&content_->pools[stripe], row_id);
    }
  };
  context.parallel_for(count, kDropCost, std::cref(drop));
}

Status HostStore::NoteUses(const ExecContext& context, const KeyBatch& batch, Found* found) {
  const ReadLocks reading(locks_, context, /*notes_uses=*/true);
  const auto note = [&](size_t begin, size_t end) {
    ForEachProbe(batch, begin, end, [&](size_t i, const StripedIndex::Entry& entry) {
      Found& what = found[batch.Position(i)];
      what = entry.found() ? Found::kPresent : Found::kAbsent;
      if (!entry.found() || options_.policy.statistics.size() == 0) return;
      // No concurrent inserts or erasures, so the row id is still the key's.
      if (!UseUnlessExpired(*content_, batch.keys[i], entry.row_id, context.now)) {
        what = Found::kExpired;
      }
    });
  };
  context.parallel_for(batch.size, kLookCost, std::cref(note));
  return Status();
}

}  // namespace tf_embed
