// SPDX-License-Identifier: Apache-2.0
#include "cc/tiered/tiered_table.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/rows/row_layout.h"

namespace tf_embed {
namespace {

// Rows that go down together.
constexpr size_t kDemotedTogether = 4096;
// Room is made for this share of the cache besides, so that few batches have to make any.
constexpr size_t kSpareDivisor = 32;
// A batch may have rows up to this share of the cache. The others can then make room for it.
constexpr size_t kBatchDivisor = 2;
// So often a batch makes room and finds that others have taken it.
constexpr int kMaxAttempts = 3;
// Nanoseconds, roughly, of a key that is looked for in the store.
constexpr size_t kEraseCost = 30;

StatisticSet RecencyOnly() { return StatisticSet().With(Statistic::kLastStep); }

}  // namespace

Status TieredTable::Keys::Resize(size_t count) {
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(count));
  return positions.Resize(count);
}

void TieredTable::Keys::MakeDistinct() {
  std::sort(keys.data(), keys.data() + size);
  size = std::unique(keys.data(), keys.data() + size) - keys.data();
}

KeyBatch TieredTable::Keys::Batch(const KeyBatch& of) const {
  KeyBatch batch = of;
  batch.keys = keys.data();
  batch.size = size;
  batch.positions = positions.data();
  return batch;
}

TieredTable::TieredTable(const TableOptions& options, const TierOptions& tiers)
    : options_(options), tiers_(tiers), victims_(options.allocator) {}

Status TieredTable::Create(const TableOptions& options, const TierOptions& tiers,
                           std::unique_ptr<TieredTable>* table) {
  if (options.policy.plans_writes() || options.policy.statistics.size() > 0) {
    return Status::InvalidArgument("Table '" + options.name +
                                   "' has rows in several tiers, which have no policy yet.");
  }
  try {
    table->reset(new TieredTable(options, tiers));
  } catch (const std::bad_alloc&) {
    return NoMemoryForRow(options.name, 0);
  }
  return (*table)->Init();
}

Status TieredTable::Init() {
  size_t capacity;
  TF_EMBED_RETURN_IF_ERROR(CheckCapacity(rule_, &capacity));
  capacity_ = capacity;
  TableOptions options = options_;
  options.init_size = std::min(options.init_size, capacity);
  options.policy.statistics = RecencyOnly();
  TF_EMBED_RETURN_IF_ERROR(tiers_.new_cache(options, &cache_));
  return tiers_.new_store(&store_);
}

size_t TieredTable::CapacityFor(const RuleSlots& rule) const {
  const RowLayout layout(options_.value_type, options_.dim, rule, RecencyOnly().size());
  return tiers_.cache_bytes / (layout.stride + layout.statistics_per_row * sizeof(uint64_t));
}

Status TieredTable::CheckCapacity(const RuleSlots& rule, size_t* capacity) const {
  *capacity = CapacityFor(rule);
  if (*capacity > 0) return Status();
  const RowLayout layout(options_.value_type, options_.dim, rule, RecencyOnly().size());
  const std::string argument = tiers_.cache_bytes_argument;
  return Status::InvalidArgument(
      "`" + argument + "` must have room for a row of table '" + options_.name + "', which takes " +
      std::to_string(layout.stride + layout.statistics_per_row * sizeof(uint64_t)) +
      " bytes. Received: " + argument + "=" + std::to_string(tiers_.cache_bytes) +
      " for each shard.");
}

RowInitializer TieredTable::initializer() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  return cache_->initializer();
}

RuleSlots TieredTable::rule() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  return rule_;
}

size_t TieredTable::size() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  // A row that comes up at this moment may be counted in neither tier.
  const size_t in_store = store_->size();
  return cache_->size() + in_store - std::min(in_store, store_->shared());
}

Status TieredTable::Absent(const KeyBatch& batch, const bool* exists, Keys* absent) const {
  size_t count = 0;
  for (size_t i = 0; i < batch.size; ++i) count += exists[batch.Position(i)] ? 0 : 1;
  absent->size = 0;
  if (count == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(absent->Resize(count));
  for (size_t i = 0; i < batch.size; ++i) {
    const size_t position = batch.Position(i);
    if (exists[position]) continue;
    absent->keys[absent->size] = batch.keys[i];
    absent->positions[absent->size++] = static_cast<uint32_t>(position);
  }
  return Status();
}

Status TieredTable::AbsentInCache(const ExecContext& inner, const KeyBatch& batch,
                                  Keys* absent) const {
  const KeyBatch keys{batch.keys, batch.size};
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(cache_->Contains(inner, keys, exists.data()));
  TF_EMBED_RETURN_IF_ERROR(Absent(keys, exists.data(), absent));
  absent->MakeDistinct();
  return Status();
}

Status TieredTable::KeepStored(Keys* keys) const {
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(keys->size));
  store_->Contains(keys->keys.data(), keys->size, exists.data());
  size_t kept = 0;
  for (size_t i = 0; i < keys->size; ++i) {
    if (exists[i]) keys->keys[kept++] = keys->keys[i];
  }
  keys->size = kept;
  return Status();
}

Status TieredTable::BringUp(const ExecContext& inner, const Keys& keys) const {
  if (keys.size == 0 || store_->size() == 0) return Status();
  const ExecContext serial = inner.InSerial();
  const std::lock_guard<OrderedMutex> lock(promotion_);
  // Another thread may have brought some of them up.
  Keys absent(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(AbsentInCache(serial, KeyBatch{keys.keys.data(), keys.size}, &absent));
  if (absent.size == 0) return Status();
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(
      store_->Get(serial, absent.keys.data(), absent.size, BackingStore::After::kShared, &rows));
  if (rows.size == 0) return Status();
  KeyBatch batch{rows.keys.data(), rows.size};
  batch.distinct = true;
  SlotsIn slots;
  if (rule_.slots_per_row() > 0) slots = {&rule_, rows.slots.data()};
  const Status status = cache_->InsertOrAssign(serial, batch, rows.weights.data(), slots);
  moves_.fetch_add(1, std::memory_order_release);
  if (status.ok()) {
    counters_.promoted.fetch_add(rows.size, std::memory_order_relaxed);
    return status;
  }
  // Without memory for all of them, some may have come.
  for (size_t i = 0; i < rows.size; ++i) {
    bool exists = false;
    const KeyBatch key{rows.keys.data() + i, 1};
    if (!cache_->Contains(serial, key, &exists).ok() || !exists) store_->Unshare(key.keys, 1);
  }
  return status;
}

Status TieredTable::ReadThrough(const ExecContext& inner, const KeyBatch& batch, const Keys& absent,
                                void* weights, bool* exists, const SlotsOut& slots) const {
  Keys keys(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(absent.size));
  std::copy_n(absent.keys.data(), absent.size, keys.keys.data());
  keys.size = absent.size;
  keys.MakeDistinct();
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(
      store_->Get(inner, keys.keys.data(), keys.size, BackingStore::After::kCold, &rows));
  if (rows.size == 0) return Status();
  // The rows by key.
  Buffer<std::pair<int64_t, size_t>> found(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(found.Resize(rows.size));
  for (size_t i = 0; i < rows.size; ++i) found[i] = {rows.keys[i], i};
  std::sort(found.data(), found.data() + rows.size);
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  size_t count = 0;
  for (size_t i = 0; i < absent.size; ++i) {
    const std::pair<int64_t, size_t>* const row = std::lower_bound(
        found.data(), found.data() + rows.size, std::make_pair(absent.keys[i], size_t{0}));
    if (row == found.data() + rows.size || row->first != absent.keys[i]) continue;
    const size_t position = absent.positions[i];
    std::memcpy(static_cast<char*>(weights) + position * layout.weight_bytes,
                rows.weights.data() + row->second * layout.weight_bytes, layout.weight_bytes);
    if (slots.slots != nullptr) {
      std::memcpy(static_cast<char*>(slots.slots) + position * layout.wide_slot_bytes,
                  rows.slots.data() + row->second * layout.wide_slot_bytes, layout.wide_slot_bytes);
    }
    exists[position] = true;
    ++count;
  }
  counters_.below.fetch_add(count, std::memory_order_relaxed);
  counters_.read_below.fetch_add(count, std::memory_order_relaxed);
  return Status();
}

Status TieredTable::Find(const ExecContext& context, const KeyBatch& batch,
                         const DefaultRows& defaults, void* weights, bool* exists,
                         const SlotsOut& slots) const {
  Buffer<bool> own(options_.allocator);
  if (exists == nullptr) {
    TF_EMBED_RETURN_IF_ERROR(own.Resize(batch.NumPositions()));
    exists = own.data();
  }
  Keys absent(options_.allocator);
  {
    const ReadLocks reading(locks_, context);
    const ExecContext inner = context.Holding(Held::kContent);
    const uint64_t moves = moves_.load(std::memory_order_acquire);
    TF_EMBED_RETURN_IF_ERROR(cache_->Find(inner, batch, defaults, weights, exists, slots));
    TF_EMBED_RETURN_IF_ERROR(Absent(batch, exists, &absent));
    counters_.first_tier.fetch_add(batch.size - absent.size, std::memory_order_relaxed);
    if (absent.size == 0) return Status();
    const bool promotes = context.training && context.held == Held::kNothing;
    if (promotes) {
      Keys stored(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(stored.Resize(absent.size));
      std::copy_n(absent.keys.data(), absent.size, stored.keys.data());
      stored.size = absent.size;
      stored.MakeDistinct();
      TF_EMBED_RETURN_IF_ERROR(KeepStored(&stored));
      // In the end: a row that came up since the find, and was erased below, is in the cache.
      if (stored.size == 0 && moves == moves_.load(std::memory_order_acquire)) return Status();
    } else {
      TF_EMBED_RETURN_IF_ERROR(ReadThrough(inner, batch, absent, weights, exists, slots));
      if (moves == moves_.load(std::memory_order_acquire)) return Status();
      Keys still(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(Absent(absent.Batch(batch), exists, &still));
      if (still.size == 0) return Status();
      counters_.found_again.fetch_add(still.size, std::memory_order_relaxed);
      return cache_->Find(inner, still.Batch(batch), defaults, weights, exists, slots);
    }
  }
  return FindBelow(context, batch, absent, defaults, weights, exists, slots);
}

Status TieredTable::FindBelow(const ExecContext& context, const KeyBatch& batch, const Keys& absent,
                              const DefaultRows& defaults, void* weights, bool* exists,
                              const SlotsOut& slots) const {
  const KeyBatch part = absent.Batch(batch);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    size_t wanted = 0;
    {
      // While a caller keeps writers out, no row moves.
      const std::shared_lock<FairSharedMutex> writers(locks_.writers, std::try_to_lock);
      if (!writers.owns_lock()) break;
      const std::shared_lock<FairSharedMutex> content(locks_.content);
      const ExecContext inner = context.Holding(Held::kWriting);
      Keys stored(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, part, &stored));
      TF_EMBED_RETURN_IF_ERROR(KeepStored(&stored));
      if (stored.size > capacity_ / kBatchDivisor) break;
      if (cache_->size() + stored.size <= capacity_) {
        TF_EMBED_RETURN_IF_ERROR(BringUp(inner, stored));
        TF_EMBED_RETURN_IF_ERROR(cache_->Find(inner, part, defaults, weights, exists, slots));
        size_t found = 0;
        for (size_t i = 0; i < part.size; ++i) found += exists[part.Position(i)] ? 1 : 0;
        counters_.below.fetch_add(found, std::memory_order_relaxed);
        counters_.found_again.fetch_add(part.size, std::memory_order_relaxed);
        return Status();
      }
      wanted = stored.size;
    }
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, batch, wanted));
  }
  ExecContext reading = context;
  reading.training = false;
  return Find(reading, part, defaults, weights, exists, slots);
}

Status TieredTable::Contains(const ExecContext& context, const KeyBatch& batch,
                             bool* exists) const {
  const ReadLocks reading(locks_, context);
  const ExecContext inner = context.Holding(Held::kContent);
  Keys absent(options_.allocator);
  const uint64_t moves = moves_.load(std::memory_order_acquire);
  TF_EMBED_RETURN_IF_ERROR(cache_->Contains(inner, batch, exists));
  TF_EMBED_RETURN_IF_ERROR(Absent(batch, exists, &absent));
  if (absent.size == 0) return Status();
  Buffer<bool> stored(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(stored.Resize(absent.size));
  store_->Contains(absent.keys.data(), absent.size, stored.data());
  for (size_t i = 0; i < absent.size; ++i) exists[absent.positions[i]] = stored[i];
  if (moves == moves_.load(std::memory_order_acquire)) return Status();
  // A row that came up since the first look, and was erased below, is in the cache.
  Keys still(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(Absent(absent.Batch(batch), exists, &still));
  return still.size == 0 ? Status() : cache_->Contains(inner, still.Batch(batch), exists);
}

Status TieredTable::Prefetch(const ExecContext& context, const KeyBatch& batch) const {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    size_t wanted = 0;
    {
      const std::shared_lock<FairSharedMutex> writers(locks_.writers, std::try_to_lock);
      if (!writers.owns_lock()) return Status();
      const std::shared_lock<FairSharedMutex> content(locks_.content);
      if (store_->size() == 0) return Status();
      const ExecContext inner = context.Holding(Held::kWriting);
      Keys stored(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, batch, &stored));
      TF_EMBED_RETURN_IF_ERROR(KeepStored(&stored));
      stored.size = std::min(stored.size, std::max<size_t>(1, capacity_.load() / kBatchDivisor));
      if (cache_->size() + stored.size <= capacity_) return BringUp(inner, stored);
      wanted = stored.size;
    }
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, batch, wanted));
  }
  return Status();
}

Status TieredTable::MakeRoom(const ExecContext& context, const KeyBatch& batch,
                             size_t wanted) const {
  const ReplaceLocks alone(locks_, context);
  return MakeRoomAlone(context.Holding(Held::kWriting), batch, wanted);
}

Status TieredTable::MakeRoomAlone(const ExecContext& inner, const KeyBatch& batch,
                                  size_t wanted) const {
  const size_t size = cache_->size();
  if (size + wanted <= capacity_) return Status();
  const size_t most = std::min(size, size + wanted - capacity_ + capacity_ / kSpareDivisor);
  Buffer<int64_t> stay(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(stay.Resize(batch.size));
  std::copy_n(batch.keys, batch.size, stay.data());
  std::sort(stay.data(), stay.data() + batch.size);
  Buffer<int64_t> keys(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(kDemotedTogether));
  const auto stays = [&](int64_t key) {
    return std::binary_search(stay.data(), stay.data() + batch.size, key);
  };
  // A list of victims may have rows of the batch alone. After two such lists there are no others.
  int lists_in_vain = 0;
  for (size_t gone = 0; gone < most && lists_in_vain < 2;) {
    size_t found;
    bool collected;
    TF_EMBED_RETURN_IF_ERROR(victims_.Next(inner, *cache_, std::min(kDemotedTogether, most - gone),
                                           keys.data(), &found, &collected));
    const size_t leaving = std::remove_if(keys.data(), keys.data() + found, stays) - keys.data();
    TF_EMBED_RETURN_IF_ERROR(Demote(inner, keys.data(), leaving));
    gone += leaving;
    lists_in_vain = leaving > 0 ? 0 : lists_in_vain + (collected || found == 0 ? 1 : 0);
  }
  return Status();
}

Status TieredTable::Demote(const ExecContext& inner, const int64_t* keys, size_t count) const {
  if (count == 0) return Status();
  // Shared rows are below already.
  Buffer<bool> stored(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(stored.Resize(count));
  store_->Contains(keys, count, stored.data());
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  WholeRows rows(options_.allocator);
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(rows.Resize(count, layout.weight_bytes, layout.wide_slot_bytes, 0));
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(count));
  for (size_t i = 0; i < count; ++i) {
    if (!stored[i]) rows.keys[rows.size++] = keys[i];
  }
  if (rows.size > 0) {
    SlotsOut slots;
    if (rule_.slots_per_row() > 0) slots = {&rule_, rows.slots.data()};
    ExecContext reading = inner;
    reading.training = false;  // this is no use of the rows
    TF_EMBED_RETURN_IF_ERROR(cache_->Find(reading, KeyBatch{rows.keys.data(), rows.size},
                                          DefaultRows(), rows.weights.data(), exists.data(),
                                          slots));
    counters_.copied_down.fetch_add(rows.size, std::memory_order_relaxed);
    const Status status = store_->Put(inner, rows);
    if (!status.ok()) {
      store_->Erase(rows.keys.data(), rows.size);  // the cache has them still
      return status;
    }
  }
  KeyBatch batch{keys, count};
  batch.distinct = true;
  TF_EMBED_RETURN_IF_ERROR(cache_->Erase(inner, batch));
  store_->Unshare(keys, count);
  counters_.demoted.fetch_add(count, std::memory_order_relaxed);
  counters_.unwritten.fetch_add(count - rows.size, std::memory_order_relaxed);
  return Status();
}

Status TieredTable::Enter(const ExecContext& context, const KeyBatch& batch, Effect effect,
                          size_t* wanted) const {
  *wanted = 0;
  // Whoever holds several tables has called Prefetch before, and can't make room now.
  const bool bounded = context.held != Held::kWriting;
  if (bounded && store_->size() == 0 && cache_->size() + batch.size <= capacity_) return Status();
  const ExecContext inner = context.Holding(Held::kWriting);
  Keys absent(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, batch, &absent));
  if (absent.size == 0) return Status();
  if (bounded && cache_->size() + absent.size > capacity_) {
    *wanted = absent.size;
    return Status();
  }
  // If others could write, a row that comes up for them might replace one that is written here.
  if (effect == Effect::kOverwrites && context.held == Held::kPaused) return Status();
  return BringUp(inner, absent);
}

template <typename Verb>
Status TieredTable::Run(const ExecContext& inner, const KeyBatch& part, Effect effect,
                        const Verb& verb) {
  const auto erase = [&](const int64_t* keys, size_t count) {
    if (store_->size() == 0) return;
    const auto erase_some = [&](size_t begin, size_t end) {
      store_->Erase(keys + begin, end - begin);
    };
    inner.parallel_for(count, kEraseCost, std::cref(erase_some));
  };
  if (effect == Effect::kChanges && store_->shared() > 0) erase(part.keys, part.size);
  Status status = verb(inner, part);
  if (effect != Effect::kOverwrites) return status;
  if (status.ok()) {
    erase(part.keys, part.size);
    return status;
  }
  // Rows that were not written are still below.
  for (size_t i = 0; i < part.size; ++i) {
    bool exists = false;
    const KeyBatch key{part.keys + i, 1};
    if (cache_->Contains(inner.InSerial(), key, &exists).ok() && exists) store_->Erase(key.keys, 1);
  }
  return status;
}

template <typename Verb>
Status TieredTable::WritePart(const ExecContext& context, const KeyBatch& part,
                              const RuleSlots* rule, Effect effect, const Verb& verb) {
  const ExecContext inner = context.Holding(Held::kWriting);
  size_t wanted = 0;
  for (int attempt = 0; attempt < kMaxAttempts;) {
    bool has_rule = true;
    {
      const WriteLocks writing(locks_, context);
      has_rule = rule == nullptr || SameRuleAndInitialValues(rule_, *rule);
      if (!has_rule && context.held != Held::kNothing) return RuleWasChanged(options_.name);
      if (has_rule) {
        TF_EMBED_RETURN_IF_ERROR(Enter(context, part, effect, &wanted));
        if (wanted == 0) return Run(inner, part, effect, verb);
      }
    }
    if (has_rule) {
      TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, part, wanted));
      ++attempt;
    } else {  // another thread may set yet another rule before this one writes
      TF_EMBED_RETURN_IF_ERROR(SetRule(ExecContext::Serial(), *rule));
    }
  }
  // Other threads keep taking the room, or another rule has left less of it. Alone, the batch gets
  // what room there is, and more than the bound if need be.
  const ReplaceLocks alone(locks_, context);
  if (rule != nullptr && !SameRuleAndInitialValues(rule_, *rule)) {
    return RuleWasChanged(options_.name);
  }
  TF_EMBED_RETURN_IF_ERROR(MakeRoomAlone(inner, part, part.size));
  TF_EMBED_RETURN_IF_ERROR(Enter(context.Holding(Held::kWriting), part, effect, &wanted));
  return Run(inner, part, effect, verb);
}

template <typename Verb>
Status TieredTable::Write(const ExecContext& context, const KeyBatch& batch, const RuleSlots* rule,
                          Effect effect, const Verb& verb) {
  Status status;
  if (rule != nullptr && context.held == Held::kNothing) {
    TF_EMBED_RETURN_IF_ERROR(TakeRule(context, *rule));  // its slots decide how large a part may be
  }
  const size_t limit = std::max<size_t>(1, capacity_.load() / kBatchDivisor);
  if (batch.size <= limit || context.held == Held::kWriting) {
    status = WritePart(context, batch, rule, effect, verb);
  } else {
    // The places of the batch by key, those of equal keys in the order of the batch.
    struct Place {
      int64_t key;
      uint32_t position;
    };
    Buffer<Place> places(options_.allocator);
    Keys part(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(places.Resize(batch.size));
    TF_EMBED_RETURN_IF_ERROR(part.Resize(batch.size));
    for (size_t i = 0; i < batch.size; ++i) {
      places[i] = {batch.keys[i], static_cast<uint32_t>(batch.Position(i))};
    }
    std::stable_sort(places.data(), places.data() + batch.size,
                     [](const Place& a, const Place& b) { return a.key < b.key; });
    size_t distinct = 0;
    for (size_t i = 0; i < batch.size; ++i) {
      distinct += i == 0 || places[i].key != places[i - 1].key ? 1 : 0;
    }
    if (distinct <= limit) {
      status = WritePart(context, batch, rule, effect, verb);
    } else {
      for (size_t begin = 0, end; begin < batch.size && status.ok(); begin = end) {
        part.size = 0;
        size_t keys = 0;
        for (end = begin; end < batch.size; ++end) {
          const bool is_new = end == begin || places[end].key != places[end - 1].key;
          if (is_new && keys == limit) break;
          keys += is_new ? 1 : 0;
          part.keys[part.size] = places[end].key;
          part.positions[part.size++] = places[end].position;
        }
        status = WritePart(context, part.Batch(batch), rule, effect, verb);
      }
    }
  }
  if (context.held == Held::kNothing) DropOutgrown();
  return status;
}

Status TieredTable::TakeRule(const ExecContext& context, const RuleSlots& rule) {
  {
    const ReadLocks reading(locks_, context);
    if (SameRuleAndInitialValues(rule_, rule)) return Status();
  }
  return SetRule(ExecContext::Serial(), rule);
}

Status TieredTable::FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                                 const DefaultRows& defaults, void* weights, bool* exists) {
  return Write(context, batch, nullptr, Effect::kInserts,
               [&](const ExecContext& inner, const KeyBatch& part) {
                 return cache_->FindOrInsert(inner, part, defaults, weights, exists);
               });
}

Status TieredTable::InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                   const void* weights, const SlotsIn& slots) {
  const Effect effect = slots.slots != nullptr ? Effect::kOverwrites : Effect::kChanges;
  return Write(context, batch, nullptr, effect,
               [&](const ExecContext& inner, const KeyBatch& part) {
                 return cache_->InsertOrAssign(inner, part, weights, slots);
               });
}

Status TieredTable::Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
                          const void* new_rows, const bool* exists) {
  TF_EMBED_RETURN_IF_ERROR(CheckAccum(options_));
  return Write(context, batch, nullptr, Effect::kChanges,
               [&](const ExecContext& inner, const KeyBatch& part) {
                 return cache_->Accum(inner, part, old_rows, new_rows, exists);
               });
}

Status TieredTable::Apply(const ExecContext& context, const KeyBatch& batch,
                          const Gradients& gradients, const Rule& rule) {
  TF_EMBED_RETURN_IF_ERROR(CheckApply(options_, gradients.type, rule));
  return Write(context, batch, &rule.slots, Effect::kChanges,
               [&](const ExecContext& inner, const KeyBatch& part) {
                 return cache_->Apply(inner, part, gradients, rule);
               });
}

Status TieredTable::Erase(const ExecContext& context, const KeyBatch& batch) {
  const WriteLocks writing(locks_, context);
  // A row must not come up between the two.
  const std::lock_guard<OrderedMutex> lock(promotion_);
  TF_EMBED_RETURN_IF_ERROR(cache_->Erase(context.Holding(Held::kWriting).InSerial(), batch));
  store_->Erase(batch.keys, batch.size);
  return Status();
}

}  // namespace tf_embed
