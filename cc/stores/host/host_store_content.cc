// SPDX-License-Identifier: Apache-2.0
// HostStore's operations on its whole content. Verbs on rows: host_store.cc.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "cc/core/loops/row_stepper.h"
#include "cc/core/rows/row_copy.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/host/host_store_inl.h"

namespace tf_embed {
namespace {

constexpr size_t kRowCost = 100;  // ns a row, over all threads

}  // namespace

Status HostStore::NewContent(size_t size_hint, std::unique_ptr<Content>* content) const {
  try {
    *content = std::make_unique<Content>(options_.allocator, size_hint, content_->rows.layout(),
                                         content_->initializer, content_->rule);
    return Status();
  } catch (const std::bad_alloc&) {
    return NoMemory(content_->index.size());
  }
}

Status HostStore::Clear(const ExecContext& context) {
  std::unique_ptr<Content> content;  // holds the old content, freed after the locks
  const ReplaceLocks replacing(locks_, context);
  planner_.Forget();
  if (changes_ != nullptr) changes_->Forget("was cleared");
  if (NewContent(options_.init_size, &content).ok()) {
    content_.swap(content);
    return Status();
  }
  // Clear in place, because memory may be exhausted. Nothing here allocates.
  const RowLayout layout = content_->rows.layout();
  const RuleSlots rule = content_->rule;
  RowInitializer initializer = std::move(content_->initializer);
  content_->~Content();
  new (content_.get())
      Content(options_.allocator, options_.init_size, layout, std::move(initializer), rule);
  return Status();
}

Status HostStore::Shrink(const ExecContext& context) {
  std::unique_ptr<Content> content;  // holds the old content, freed after the locks
  const PauseLocks pausing(locks_, context);
  {
    // Readers may continue: nothing writes to the rows being copied.
    Shared lock(locks_.content);
    TF_EMBED_RETURN_IF_ERROR(NewContent(content_->index.size(), &content));
    const auto all = [](const RowStatistics&, uint64_t) { return true; };
    TF_EMBED_RETURN_IF_ERROR(CopyContent(context, all, content.get()));
  }
  Alone lock(locks_.content);
  content_.swap(content);
  return Status();
}

void HostStore::SetInitializer(const RowInitializer& initializer) {
  Alone lock(locks_.content);
  content_->initializer = initializer;
}

Status HostStore::SetRule(const ExecContext& context, const RuleSlots& rule) {
  const ReplaceLocks replacing(locks_, context);
  if (!SameRule(content_->rule, rule)) {
    TF_EMBED_RETURN_IF_ERROR(ReplaceSlots(rule));
  } else if (!SameSlotTypes(content_->rule, rule)) {
    TF_EMBED_RETURN_IF_ERROR(ConvertSlots(rule));
  }
  if (changes_ != nullptr &&
      !(SameRule(content_->rule, rule) && SameSlotTypes(content_->rule, rule))) {
    changes_->Forget("got the slots of another optimizer");
  }
  content_->rule = rule;
  return Status();
}

Status HostStore::ReplaceSlots(const RuleSlots& rule) {
  Buffer<char> slots(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(InitialSlots(rule, &slots));
  const auto initial = [&](const char*) { return slots.data(); };
  return content_->rows.ChangeLayout(LayoutOf(rule), std::cref(initial));
}

Status HostStore::ConvertSlots(const RuleSlots& rule) {
  const RowLayout layout = LayoutOf(rule);
  Buffer<char> wide(options_.allocator);
  Buffer<char> slots(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(wide.Resize(layout.wide_slot_bytes));
  TF_EMBED_RETURN_IF_ERROR(slots.Resize(layout.slot_bytes));
  std::fill_n(slots.data(), layout.slot_bytes, char{0});  // also clears the padding between groups
  const auto converted = [&](const char* present) {
    WidenSlots(content_->rule, layout.value_type, present, wide.data());
    NarrowSlots(rule, layout.value_type, wide.data(), slots.data());
    return slots.data();
  };
  return content_->rows.ChangeLayout(layout, std::cref(converted));
}

Status HostStore::UpdateAllRows(const ExecContext& context, const Rule& rule) {
  if (!AllRowsUpdate(rule).IsDue()) return Status();
  const WriteLocks writing(locks_, context);
  Content& content = *content_;
  if (!SameRule(content.rule, rule.slots)) return OtherRule();
  const RoundingNoise noise(content.initializer, rule.step, RoundingNoise::Of::kPass);
  FirstFailure failure;
  const auto pass = [&](size_t begin, size_t end) {
    const RowLayout& layout = content.rows.layout();
    const auto pass_with = [&](auto tag) {
      using Stepper = typename decltype(tag)::Type;
      Stepper stepper(layout, content.rule, loops_.PassOf<typename Stepper::Compute>(rule), rule,
                      noise, options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(stepper.MakeRoom());
      for (size_t stripe = begin; stripe < end; ++stripe) {
        std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
        ForEachRow(content, stripe, [&](Bucket& bucket, int64_t key, uint32_t row_id, char* row) {
          const uint32_t before = bucket.Lock();
          NoteChange(content, key, row_id);
          stepper.Step(key, nullptr, row);
          bucket.Unlock(before);
        });
      }
      return Status();
    };
    Status status = DispatchFloating(options_.value_type, [&](auto tag) {
      return DispatchStepper<typename decltype(tag)::Type>(layout, pass_with);
    });
    if (!status.ok()) failure.Note(std::move(status));
  };
  const size_t stripe_cost = kRowCost * (1 + content.index.size() / StripedIndex::kStripes);
  context.parallel_for(StripedIndex::kStripes, stripe_cost, std::cref(pass));
  return failure.Take();
}

Status HostStore::LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                              double* largest) const {
  const ReadLocks reading(locks_, context);
  const Content& content = *content_;
  *largest = 0.0;
  if (!SameRule(content.rule, rule) || slot >= rule.slots_per_row()) return Status();
  double found[StripedIndex::kStripes] = {};
  const SlotPlace place = DispatchSlots(options_.value_type, [&](auto tag) {
    return SlotPlace::Of<typename decltype(tag)::Type>(content.rule, slot);
  });
  const size_t offset = content.rows.layout().slot_offset + place.offset;
  const auto look = [&](size_t begin, size_t end) {
    for (size_t stripe = begin; stripe < end; ++stripe) {
      std::lock_guard<OrderedMutex> lock(content.index.StripeMutex(stripe));
      ForEachRow(content, stripe, [&](Bucket&, int64_t, uint32_t, const char* row) {
        found[stripe] = std::max(found[stripe], place.load(row + offset));
      });
    }
  };
  const size_t stripe_cost = kRowCost * (1 + content.index.size() / StripedIndex::kStripes);
  context.parallel_for(StripedIndex::kStripes, stripe_cost, std::cref(look));
  *largest = *std::max_element(found, found + StripedIndex::kStripes);
  return Status();
}

HostStore::RowCopier::RowCopier(const Content& content, Allocator* allocator)
    : content_(content), layout_(content.rows.layout()), stored_slots_(allocator) {}

Status HostStore::RowCopier::MakeRoom(size_t count, WholeRows* rows) {
  TF_EMBED_RETURN_IF_ERROR(stored_slots_.Resize(layout_.narrow_slots ? layout_.slot_bytes : 0));
  return rows->Resize(count, layout_.weight_bytes, layout_.wide_slot_bytes,
                      layout_.statistics_per_row);
}

void HostStore::RowCopier::Append(const Bucket& bucket, int64_t key, uint32_t row_id,
                                  WholeRows* rows) {
  const char* const row = content_.rows.Row(row_id);
  char* const weights = rows->weights.data() + rows->size * layout_.weight_bytes;
  char* const slots = rows->slots.data() + rows->size * layout_.wide_slot_bytes;
  char* const stored = layout_.narrow_slots ? stored_slots_.data() : slots;
  uint32_t word;
  do {
    word = bucket.WaitUnlocked();
    LoadRow(row, layout_.weight_bytes, weights);
    LoadRow(row + layout_.slot_offset, layout_.slot_bytes, stored);
  } while (!bucket.Unchanged(word));
  if (layout_.narrow_slots) WidenSlots(content_.rule, layout_.value_type, stored, slots);
  CopyStatistics(content_, row_id,
                 rows->statistics.data() + rows->size * layout_.statistics_per_row);
  rows->keys[rows->size++] = key;
}

Status HostStore::ExportBatch(size_t max_rows, ExportCursor* cursor, WholeRows* rows) const {
  Shared lock(locks_.content);
  max_rows = std::min(max_rows, content_->index.size());
  return ExportStripes(max_rows, cursor, rows,
                       [&](RowCopier* copier, const Bucket& bucket, int64_t key, uint32_t row_id) {
                         copier->Append(bucket, key, row_id, rows);
                       });
}

std::unique_ptr<Store> HostStore::NewEmpty(size_t init_size,
                                           const RowInitializer& initializer) const {
  try {
    StoreOptions options = options_;
    options.init_size = init_size;
    options.initializer = initializer;
    options.changes = nullptr;
    options.policy = RowPolicy();
    options.policy.statistics = options_.policy.statistics;
    return std::unique_ptr<HostStore>(new HostStore(options, RuleSlots()));
  } catch (const std::bad_alloc&) {  // null means that memory is short, which the caller reports
    return nullptr;
  }
}

Status HostStore::TakeContent(const ExecContext& context, Store* other) {
  std::unique_ptr<Content> content;  // holds the old content, freed after the locks
  const ReplaceLocks replacing(locks_, context);
  planner_.Forget();
  if (changes_ != nullptr) changes_->Forget("took other rows over");
  content = std::exchange(content_, std::move(static_cast<HostStore*>(other)->content_));
  return Status();
}

StoreStats HostStore::Stats() const {
  Shared lock(locks_.content);
  const StripedIndex& index = content_->index;
  const RowLayout& layout = content_->rows.layout();
  StoreStats stats;
  stats.rows = index.size();
  stats.payload_bytes = stats.rows * (layout.weight_bytes + layout.slot_bytes +
                                      layout.statistics_per_row * sizeof(RowStatistics::Word));
  stats.index_bytes = index.bytes();
  const uint64_t row_bytes = content_->rows.bytes();
  stats.slack_bytes = row_bytes - std::min(row_bytes, stats.payload_bytes);
  for (size_t stripe = 0; stripe < StripedIndex::kStripes; ++stripe) {
    std::lock_guard<OrderedMutex> lock(index.StripeMutex(stripe));
    stats.index_places += index.StripeBuckets(stripe) * Bucket::kLanes;
  }
  index.SampleProbes(&stats.probed_keys, &stats.probed_buckets);
  const PolicyCounters& rows = planner_.counters();
  stats.admitted = rows.admitted.load(std::memory_order_relaxed);
  stats.held_back = rows.held_back.load(std::memory_order_relaxed);
  stats.refused = rows.refused.load(std::memory_order_relaxed);
  stats.evicted = rows.evicted.load(std::memory_order_relaxed);
  stats.expired = rows.expired.load(std::memory_order_relaxed);
  stats.hits = counters_.hits.load(std::memory_order_relaxed);
  stats.misses = counters_.misses.load(std::memory_order_relaxed);
  return stats;
}

void HostStore::DropOutgrown() const {
  Alone lock(locks_.content, std::try_to_lock);
  if (!lock.owns_lock()) {
    // Another verb is inside. It or a later writer frees the memory, unless verbs are inside at all
    // times. So the waiting memory has a limit, at which this call waits. A cache never waits,
    // because its verbs run inside the verbs of its owner, which has a limit too.
    if (options_.is_cache) return;
    {
      const Shared shared(locks_.content);
      if (content_->index.bytes() <= 2 * content_->index_bytes_once_dropped) return;
    }
    lock.lock();
  }
  content_->index.DropRetired();
  content_->index_bytes_once_dropped = content_->index.bytes();
}

}  // namespace tf_embed
