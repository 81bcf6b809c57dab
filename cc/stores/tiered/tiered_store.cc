// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/tiered/tiered_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>

#include "cc/core/rows/row_layout.h"

namespace tf_embed {
namespace {

// Rough nanoseconds to look up a key in the lower tier.
constexpr size_t kEraseCost = 100;

}  // namespace

Status TieredStore::Keys::Resize(size_t count) {
  TF_EMBED_RETURN_IF_ERROR(keys.Resize(count));
  return positions.Resize(count);
}

void TieredStore::Keys::MakeDistinct() {
  std::sort(keys.data(), keys.data() + size);
  size = std::unique(keys.data(), keys.data() + size) - keys.data();
}

KeyBatch TieredStore::Keys::Batch(const KeyBatch& of) const {
  KeyBatch batch = of;
  batch.keys = keys.data();
  batch.size = size;
  batch.positions = positions.data();
  return batch;
}

TieredStore::TieredStore(const StoreOptions& options, const TierOptions& tiers)
    : options_(options),
      tiers_(tiers),
      victims_(options.allocator),
      planner_(options_.policy, options.allocator, &planned_) {
  options_.policy = options.policy.WithNeeds();
  if (options_.policy.statistics.Has(Statistic::kChange)) {
    changes_ = std::make_shared<ChangeLog>(options.name);
    options_.changes = changes_;  // shared with the cache
  }
}

Status TieredStore::Create(const StoreOptions& options, const TierOptions& tiers,
                           std::unique_ptr<TieredStore>* store) {
  try {
    store->reset(new TieredStore(options, tiers));
    return (*store)->Init();
  } catch (const std::bad_alloc&) {
    return NoMemoryForRow(options.name, 0);
  }
}

Status TieredStore::Init() {
  size_t capacity;
  TF_EMBED_RETURN_IF_ERROR(CheckCapacity(rule_, &capacity));
  capacity_ = capacity;
  StoreOptions options = options_;
  options.is_cache = true;
  options.init_size = std::min(options.init_size, capacity);
  options.policy = RowPolicy();
  options.policy.statistics = options_.policy.statistics;
  options.policy.ttl_milliseconds = options_.policy.ttl_milliseconds;
  TF_EMBED_RETURN_IF_ERROR(tiers_.new_cache(options, &cache_));
  return tiers_.new_lower(options_.policy.statistics, &lower_);
}

size_t TieredStore::RowBytes(const RuleSlots& rule) const {
  const size_t statistics = options_.policy.statistics.size();
  const RowLayout layout(options_.value_type, options_.dim, rule, statistics);
  return layout.stride + statistics * sizeof(uint64_t) + sizeof(RowMark::Byte);
}

Status TieredStore::CheckCapacity(const RuleSlots& rule, size_t* capacity) const {
  *capacity = tiers_.cache_bytes / RowBytes(rule);
  if (*capacity > 0) return Status();
  const std::string argument = tiers_.cache_bytes_argument;
  return Status::InvalidArgument("`" + argument + "` must have room for a row of table '" +
                                 options_.name + "', which takes " +
                                 std::to_string(RowBytes(rule)) + " bytes. Received: " + argument +
                                 "=" + std::to_string(tiers_.cache_bytes) + " for each shard.");
}

RowInitializer TieredStore::initializer() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  return cache_->initializer();
}

RuleSlots TieredStore::rule() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  return rule_;
}

size_t TieredStore::size() const {
  const std::shared_lock<FairSharedMutex> lock(locks_.content);
  const std::lock_guard<OrderedMutex> none_moves(promotion_);
  return SizeInside();
}

size_t TieredStore::SizeInside() const {
  const size_t in_lower_tier = lower_->size();
  return NumCached() + in_lower_tier - std::min(in_lower_tier, lower_->shared());
}

Status TieredStore::Absent(const KeyBatch& batch, const bool* exists, Keys* absent) const {
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

Status TieredStore::AbsentInCache(const ExecContext& inner, const KeyBatch& batch,
                                  Keys* absent) const {
  const KeyBatch keys{batch.keys, batch.size};
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(cache_->cache()->Touch(inner, keys, exists.data()));
  TF_EMBED_RETURN_IF_ERROR(Absent(keys, exists.data(), absent));
  absent->MakeDistinct();
  return Status();
}

Status TieredStore::KeepStored(Keys* keys) const {
  Buffer<bool> exists(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(exists.Resize(keys->size));
  lower_->Contains(keys->keys.data(), keys->size, exists.data());
  size_t kept = 0;
  for (size_t i = 0; i < keys->size; ++i) {
    if (exists[i]) keys->keys[kept++] = keys->keys[i];
  }
  keys->size = kept;
  return Status();
}

Status TieredStore::BringUp(const ExecContext& inner, const Keys& keys) const {
  if (keys.size == 0 || lower_->size() == 0) return Status();
  const ExecContext serial = inner.InSerial();
  const std::lock_guard<OrderedMutex> lock(promotion_);
  // Another thread may have promoted some of them.
  Keys absent(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(AbsentInCache(serial, KeyBatch{keys.keys.data(), keys.size}, &absent));
  if (absent.size == 0) return Status();
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(
      lower_->Get(serial, absent.keys.data(), absent.size, LowerTier::After::kShared, &rows));
  if (rows.size == 0) return Status();
  Keys wanted(options_.allocator);
  Status status = TakeWanted(&rows, &wanted);
  if (status.ok()) {
    status = cache_->cache()->AddUnchanged(serial, rows);
    moves_.fetch_add(1, std::memory_order_release);
    // The lower tier's words are unclaimed. If rows stay there, the snapshot would get them twice.
    if (status.ok()) {
      GiveWanted(rows, wanted);
    } else if (wanted.size > 0) {
      changes_->Fail(status);
    }
  }
  if (status.ok()) {
    counters_.promoted.fetch_add(rows.size, std::memory_order_relaxed);
    return status;
  }
  // If memory ran out, some rows may have been inserted.
  for (size_t i = 0; i < rows.size; ++i) {
    bool exists = false;
    const KeyBatch key{rows.keys.data() + i, 1};
    if (!cache_->Contains(serial, key, &exists).ok() || !exists) {
      lower_->Unshare(key.keys, 1, nullptr);
    }
  }
  return status;
}

Status TieredStore::Contains(const ExecContext& context, const KeyBatch& batch,
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
  lower_->Contains(absent.keys.data(), absent.size, stored.data());
  for (size_t i = 0; i < absent.size; ++i) exists[absent.positions[i]] = stored[i];
  if (moves == moves_.load(std::memory_order_acquire)) return Status();
  // A row promoted since the first lookup and erased below is in the cache.
  Keys still(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(Absent(absent.Batch(batch), exists, &still));
  return still.size == 0 ? Status() : cache_->Contains(inner, still.Batch(batch), exists);
}

Status TieredStore::Prefetch(const ExecContext& context, const KeyBatch& batch) const {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    size_t wanted = 0;
    {
      const std::shared_lock<FairSharedMutex> writers(locks_.writers, std::try_to_lock);
      if (!writers.owns_lock()) return Status();
      const std::shared_lock<FairSharedMutex> content(locks_.content);
      if (lower_->size() == 0) return Status();
      const ExecContext inner = context.Holding(Held::kWriting);
      Keys stored(options_.allocator);
      TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, batch, &stored));
      TF_EMBED_RETURN_IF_ERROR(KeepStored(&stored));
      stored.size = std::min(stored.size, std::max<size_t>(1, capacity_.load() / kBatchDivisor));
      if (NumCached() + stored.size <= capacity_) return BringUp(inner, stored);
      wanted = stored.size;
    }
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(context, batch, wanted));
  }
  return Status();
}

Status TieredStore::Replace(const ExecContext& inner, const Write& write, const KeyBatch& batch,
                            const Keys& keys) {
  Status status = write.verb(inner, batch);
  if (lower_->size() == 0) return status;
  // A lookup that missed the cache earlier must retry, because the lower tier lacks the row now.
  moves_.fetch_add(1, std::memory_order_release);
  if (status.ok()) {
    const auto erase = [&](size_t begin, size_t end) {
      lower_->Erase(keys.keys.data() + begin, end - begin);
    };
    inner.parallel_for(keys.size, kEraseCost, std::cref(erase));
    return status;
  }
  // Rows that were not written are still in the lower tier.
  for (size_t i = 0; i < keys.size; ++i) {
    bool exists = false;
    const KeyBatch key{keys.keys.data() + i, 1};
    if (cache_->Contains(inner.InSerial(), key, &exists).ok() && exists) lower_->Erase(key.keys, 1);
  }
  return status;
}

Status TieredStore::RunUnplanned(const ExecContext& context, bool bounded, const Write& write,
                                 KeyBatch* todo, Keys* rest, size_t* wanted) {
  *wanted = 0;
  const ExecContext inner = context.Holding(Held::kWriting);
  if (lower_->size() == 0 && (!bounded || NumCached() + todo->size <= capacity_)) {
    return write.verb(inner, *todo);
  }
  // If a write finds no room because the disk is full, it must not have changed anything.
  if (bounded && NumCached() + todo->size > capacity_ && !seen_.Has(*todo)) {
    Keys absent(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(AbsentInCache(inner, *todo, &absent));
    if (absent.size > 0 && NumCached() + absent.size > capacity_) {
      *wanted = absent.size;
      return Status();
    }
    if (Replaces(context, write)) return Replace(inner, write, *todo, absent);
    TF_EMBED_RETURN_IF_ERROR(BringUp(inner, absent));
    return write.verb(inner, *todo);
  }
  const size_t places = todo->NumPositions();
  Buffer<bool> left(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(left.Resize(places));
  std::fill_n(left.data(), places, false);
  KeyBatch present = *todo;
  present.absent = left.data();
  TF_EMBED_RETURN_IF_ERROR(write.verb(inner, present));
  if (places == 0 || std::memchr(left.data(), 1, places) == nullptr) return Status();

  // The remaining positions.
  for (size_t i = 0; i < places; ++i) left[i] = !left[i];
  Keys now(options_.allocator);
  Keys keys(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(Absent(*todo, left.data(), &now));
  *todo = now.Batch(*todo);
  std::swap(*rest, now);
  TF_EMBED_RETURN_IF_ERROR(SortedKeys(KeyBatch{rest->keys.data(), rest->size}, &keys));
  if (write.finds) counters_.found_again.fetch_add(rest->size, std::memory_order_relaxed);
  if (bounded && NumCached() + keys.size > capacity_) {
    *wanted = keys.size;
    return Status();
  }
  if (Replaces(context, write)) return Replace(inner, write, *todo, keys);
  TF_EMBED_RETURN_IF_ERROR(BringUp(inner, keys));
  return write.verb(inner, *todo);
}

Status TieredStore::NoRoom(const Write& write, const Status& status) {
  if (*write.has_run) return status;
  const auto describe = [&] {
    return status.message() + " No row of the batch was changed in this shard.";
  };
  if (status.code() == StatusCode::kResourceExhausted) return Status::ResourceExhausted(describe);
  if (status.code() == StatusCode::kUnavailable) return Status::Unavailable(describe());
  return status;
}

Status TieredStore::RunPart(const ExecContext& context, const KeyBatch& part, const Write& write) {
  const bool planned = options_.policy.plans_writes() && !context.restoring;
  // A caller that holds several stores has called Prefetch, and can't make room now.
  const bool bounded = context.held != Held::kWriting;
  const size_t limit = std::max<size_t>(1, capacity_.load() / kBatchDivisor);
  Keys rest(options_.allocator);
  KeyBatch todo = part;
  size_t wanted = 0;
  for (int attempt = 0; attempt < kMaxAttempts;) {
    bool has_rule;
    {
      const WriteLocks writing(locks_, context);
      has_rule = HasRule(write.rule);
      if (!has_rule && context.held != Held::kNothing) return RuleWasChanged(options_.name);
      if (has_rule) {
        const Status status = planned
                                  ? RunPlanned(context, bounded, write, todo, &wanted)
                                  : RunUnplanned(context, bounded, write, &todo, &rest, &wanted);
        NoteGrowth();
        if (!status.ok() || wanted == 0) return status;
      }
    }
    if (has_rule && wanted > limit) {
      const auto run = [&](const KeyBatch& some) { return RunPart(context, some, write); };
      return ForEachPart(todo, limit, std::cref(run));
    }
    if (has_rule) {
      const Status made = MakeRoom(context, todo, wanted);
      if (!made.ok()) return NoRoom(write, made);
      ++attempt;
    } else {  // another thread may set another rule before this write runs
      TF_EMBED_RETURN_IF_ERROR(SetRule(ExecContext::Serial(), *write.rule));
    }
  }
  // Other threads keep taking the room, or a new rule has reduced it. With exclusive access, the
  // batch gets all the room there is, and exceeds the bound if it must.
  const ReplaceLocks alone(locks_, context);
  if (!HasRule(write.rule)) return RuleWasChanged(options_.name);
  const Status made = MakeRoomAlone(context.Holding(Held::kWriting), todo, todo.size);
  if (!made.ok()) return NoRoom(write, made);
  // Not as Held::kWriting: RunPlanned takes the policy's lock itself.
  return planned ? RunPlanned(context, false, write, todo, &wanted)
                 : RunUnplanned(context, false, write, &todo, &rest, &wanted);
}

Status TieredStore::ForEachPart(const KeyBatch& batch, size_t limit,
                                const std::function<Status(const KeyBatch& part)>& run) const {
  // Keys go to parts in order of first occurrence.
  Buffer<std::pair<int64_t, uint32_t>> places(options_.allocator);
  Buffer<uint32_t> parts(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(places.Resize(batch.size));
  TF_EMBED_RETURN_IF_ERROR(parts.Resize(batch.size));
  for (size_t i = 0; i < batch.size; ++i) places[i] = {batch.keys[i], static_cast<uint32_t>(i)};
  std::sort(places.data(), places.data() + batch.size);
  // By position: the first position of its key, later its part number.
  for (size_t i = 0; i < batch.size; ++i) {
    const bool again = i > 0 && places[i].first == places[i - 1].first;
    parts[places[i].second] = again ? parts[places[i - 1].second] : places[i].second;
  }
  size_t distinct = 0;
  for (size_t i = 0; i < batch.size; ++i) {
    parts[i] = parts[i] == i ? static_cast<uint32_t>(distinct++ / limit) : parts[parts[i]];
  }
  const size_t count = (distinct + limit - 1) / limit;
  if (count == 1) return run(batch);
  Keys part(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(part.Resize(batch.size));
  for (size_t number = 0; number < count; ++number) {
    part.size = 0;
    for (size_t i = 0; i < batch.size; ++i) {
      if (parts[i] != number) continue;
      part.keys[part.size] = batch.keys[i];
      part.positions[part.size++] = static_cast<uint32_t>(batch.Position(i));
    }
    TF_EMBED_RETURN_IF_ERROR(run(part.Batch(batch)));
  }
  return Status();
}

Status TieredStore::Run(const ExecContext& context, const KeyBatch& batch, const Write& write) {
  if (write.rule != nullptr && context.held == Held::kNothing) {
    // The slots of the rule determine the size of a part.
    TF_EMBED_RETURN_IF_ERROR(TakeRule(context, *write.rule));
  }
  const size_t limit = std::max<size_t>(1, capacity_.load() / kBatchDivisor);
  const bool planned = options_.policy.plans_writes() && !context.restoring;
  bool has_run = false;
  const auto verb = [&](const ExecContext& inner, const KeyBatch& part) {
    has_run = true;
    return write.verb(inner, part);
  };
  Write noted = write;
  noted.verb = std::cref(verb);
  noted.has_run = &has_run;
  const Status status = planned && batch.size > limit && context.held != Held::kWriting
                            ? RunPlannedInParts(context, batch, noted, limit)
                            : RunPart(context, batch, noted);
  if (context.held == Held::kNothing) DropOutgrown();
  return status;
}

Status TieredStore::TakeRule(const ExecContext& context, const RuleSlots& rule) {
  {
    const ReadLocks reading(locks_, context);
    if (SameRuleAndInitialValues(rule_, rule)) return Status();
  }
  return SetRule(ExecContext::Serial(), rule);
}

Status TieredStore::FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                                 const DefaultRows& defaults, void* weights, bool* exists) {
  const bool plans = options_.policy.plans_writes();
  Write write;
  const auto verb = [&](const ExecContext& inner, const KeyBatch& part) {
    // The find below has counted the keys.
    if (plans) counters_.found_again.fetch_add(part.size, std::memory_order_relaxed);
    return cache_->FindOrInsert(inner, part, defaults, weights, exists);
  };
  write.verb = std::cref(verb);
  write.finds = !plans;
  if (!plans) return Run(context, batch, write);
  // Takes the flags if the caller wants none.
  Buffer<bool> own(options_.allocator);
  Keys absent(options_.allocator);
  if (exists == nullptr) {
    TF_EMBED_RETURN_IF_ERROR(own.Resize(batch.NumPositions()));
    exists = own.data();
  }
  TF_EMBED_RETURN_IF_ERROR(Find(context, batch, defaults, weights, exists, {}));
  TF_EMBED_RETURN_IF_ERROR(Absent(batch, exists, &absent));
  if (absent.size == 0) return Status();
  write.admits = context.training ? Admits::kPeeked : Admits::kAll;
  return Run(context, absent.Batch(batch), write);
}

Status TieredStore::InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                   const void* weights, const SlotsIn& slots) {
  Write write;
  const auto verb = [&](const ExecContext& inner, const KeyBatch& part) {
    return cache_->InsertOrAssign(inner, part, weights, slots);
  };
  write.verb = std::cref(verb);
  write.overwrites = slots.slots != nullptr;
  write.admits = context.training ? Admits::kCounted : Admits::kAll;
  return Run(context, batch, write);
}

Status TieredStore::Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
                          const void* new_rows, const bool* exists) {
  TF_EMBED_RETURN_IF_ERROR(CheckAccum(options_));
  Write write;
  const auto verb = [&](const ExecContext& inner, const KeyBatch& part) {
    return cache_->Accum(inner, part, old_rows, new_rows, exists);
  };
  const auto wants = [&](const KeyGroup& group) {
    return std::any_of(group.positions, group.positions + group.count,
                       [&](uint32_t position) { return !exists[position]; });
  };
  write.verb = std::cref(verb);
  write.wants = std::cref(wants);
  return Run(context, batch, write);
}

Status TieredStore::Apply(const ExecContext& context, const KeyBatch& batch,
                          const Gradients& gradients, const Rule& rule) {
  TF_EMBED_RETURN_IF_ERROR(CheckApply(options_, gradients.type, rule));
  Write write;
  const auto verb = [&](const ExecContext& inner, const KeyBatch& part) {
    return cache_->Apply(inner, part, gradients, rule);
  };
  write.verb = std::cref(verb);
  write.rule = &rule.slots;
  write.admits = Admits::kCounted;
  return Run(context, batch, write);
}

}  // namespace tf_embed
