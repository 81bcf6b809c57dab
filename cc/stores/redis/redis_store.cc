// SPDX-License-Identifier: Apache-2.0
// Verbs on rows. RedisStore's operations on its whole content: redis_store_content.cc.
#include "cc/stores/redis/redis_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "cc/core/rules/rule_list.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/redis/redis_store_inl.h"

namespace tf_embed {
namespace {

// Randomized exponential backoff for processes that write the same rows. A wait is at most this,
// times 2^tries.
constexpr int kFirstWaitMicroseconds = 50;
constexpr int kMostDoublings = 8;

void WaitToTryAgain(int tries) {
  thread_local std::minstd_rand random{std::random_device()()};
  const int most = kFirstWaitMicroseconds << std::min(tries, kMostDoublings);
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, most)(random)));
}

}  // namespace

RowInitializer RedisStore::initializer() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return initializer_;
}

Status RedisStore::CheckWeights(int64_t key, std::string_view value) const {
  const size_t least = sizeof(RedisRowHeader) + options_.dim * SizeOf(options_.value_type);
  if (value.size() >= least) return Status();
  return Status::DataLoss("The row of key " + std::to_string(key) + " of table '" + options_.name +
                          "' in Redis at " + rows_->address() + " has " +
                          std::to_string(value.size()) + " bytes, and must have at least " +
                          std::to_string(least) + ".");
}

Status RedisStore::ReadSlots(const KnownMeta& meta, int64_t key, std::string_view value,
                             char* slots) const {
  RedisRowHeader header;
  std::memcpy(&header, value.data(), sizeof(header));
  const RowLayout layout = LayoutOf(meta.rule);
  if (header.generation != meta.generation) {
    DispatchSlots(options_.value_type, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      FillInitialSlots(meta.first_rule, reinterpret_cast<T*>(slots));
    });
  } else if (value.size() == sizeof(header) + layout.weight_bytes + layout.wide_slot_bytes) {
    std::copy_n(value.data() + sizeof(header) + layout.weight_bytes, layout.wide_slot_bytes, slots);
  } else {
    return Status::DataLoss("The row of key " + std::to_string(key) + " of table '" +
                            options_.name + "' in Redis at " + rows_->address() + " has " +
                            std::to_string(value.size()) +
                            " bytes, which are not those of a row of its optimizer.");
  }
  if (!layout.narrow_slots) return Status();
  std::vector<uint64_t> stored(layout.slot_bytes / sizeof(uint64_t));
  NarrowSlots(meta.rule, options_.value_type, slots, reinterpret_cast<char*>(stored.data()));
  WidenSlots(meta.rule, options_.value_type, reinterpret_cast<const char*>(stored.data()), slots);
  return Status();
}

Status RedisStore::Find(const ExecContext& context, const KeyBatch& batch,
                        const DefaultRows& defaults, void* weights, bool* exists,
                        const SlotsOut& slots) const {
  return WithMemory(options_.name, [&]() -> Status {
    const ReadLocks reading(locks_, context);
    const RowLayout layout = LayoutOf(slots.rule == nullptr ? RuleSlots() : *slots.rule);
    const RowInitializer initializer = this->initializer();
    char* const rows = static_cast<char*>(weights);
    char* const all_slots = static_cast<char*>(slots.slots);
    size_t misses = 0;
    // The metadata determines the slot layout, so rows wait until it has arrived.
    std::vector<std::string> values;
    if (slots.slots != nullptr) values.resize(batch.size);
    const auto take = [&](size_t i, std::string_view value) -> Status {
      const int64_t key = batch.keys[i];
      const size_t position = batch.Position(i);
      char* const row = rows + position * layout.weight_bytes;
      if (exists != nullptr) exists[position] = value.data() != nullptr;
      if (value.data() == nullptr) {
        ++misses;
        DefaultRow(options_, initializer, defaults, key, position, row);
        return Status();
      }
      TF_EMBED_RETURN_IF_ERROR(CheckWeights(key, value));
      std::memcpy(row, value.data() + sizeof(RedisRowHeader), layout.weight_bytes);
      if (slots.slots != nullptr) values[i].assign(value);
      return Status();
    };
    if (slots.rule == nullptr) {
      TF_EMBED_RETURN_IF_ERROR(rows_->Get(batch.keys, batch.size, context.training, nullptr, take));
    } else {
      std::string bytes;
      TF_EMBED_RETURN_IF_ERROR(rows_->Get(batch.keys, batch.size, context.training, &bytes, take));
      TF_EMBED_RETURN_IF_ERROR(Learn(bytes));
      const std::shared_ptr<const KnownMeta> meta = Known();
      if (!SameRule(*slots.rule, meta->rule)) return RuleWasChanged(options_.name);
      for (size_t i = 0; i < values.size(); ++i) {
        char* const to = all_slots + batch.Position(i) * layout.wide_slot_bytes;
        if (!values[i].empty()) {
          TF_EMBED_RETURN_IF_ERROR(ReadSlots(*meta, batch.keys[i], values[i], to));
          continue;
        }
        DispatchSlots(options_.value_type, [&](auto tag) {
          using T = typename decltype(tag)::Type;
          FillInitialSlots(meta->rule, reinterpret_cast<T*>(to));
        });
      }
    }
    hits_.fetch_add(batch.size - misses, std::memory_order_relaxed);
    misses_.fetch_add(misses, std::memory_order_relaxed);
    return Status();
  });
}

Status RedisStore::Contains(const ExecContext& context, const KeyBatch& batch, bool* exists) const {
  return WithMemory(options_.name, [&] {
    const ReadLocks reading(locks_, context);
    return rows_->Get(batch.keys, batch.size, false, nullptr,
                      [&](size_t i, std::string_view value) {
                        exists[batch.Position(i)] = value.data() != nullptr;
                        return Status();
                      });
  });
}

Status RedisStore::Load(const std::vector<int64_t>& keys, Loaded* loaded) const {
  const size_t weight_bytes = options_.dim * SizeOf(options_.value_type);
  for (;;) {
    const std::shared_ptr<const KnownMeta> meta = Known();
    const RowLayout layout = LayoutOf(meta->rule);
    std::string bytes;
    bool is_old = false;  // a row's rule is newer than the metadata
    loaded->meta = meta;
    loaded->stamps.assign(keys.size(), 0);
    loaded->weights.resize(keys.size() * weight_bytes);
    loaded->slots.resize(keys.size() * layout.wide_slot_bytes);
    const auto take = [&](size_t i, std::string_view value) -> Status {
      if (value.data() == nullptr) return Status();
      TF_EMBED_RETURN_IF_ERROR(CheckWeights(keys[i], value));
      RedisRowHeader header;
      std::memcpy(&header, value.data(), sizeof(header));
      is_old = is_old || header.generation > meta->generation;
      if (is_old) return Status();
      loaded->stamps[i] = header.stamp;
      std::memcpy(loaded->weights.data() + i * weight_bytes, value.data() + sizeof(header),
                  weight_bytes);
      return ReadSlots(*meta, keys[i], value, loaded->slots.data() + i * layout.wide_slot_bytes);
    };
    const Status status = rows_->Get(keys.data(), keys.size(), false, &bytes, take);
    // Unreadable rows may have a rule that this process has not seen yet.
    if (bytes == meta->bytes && !is_old) return status;
    if (status.code() != StatusCode::kDataLoss) TF_EMBED_RETURN_IF_ERROR(status);
    if (bytes.empty()) {
      TF_EMBED_RETURN_IF_ERROR(MakeMeta(*meta));
    } else if (is_old && bytes == meta->bytes) {
      TF_EMBED_RETURN_IF_ERROR(rows_->GetMeta(&bytes));
      if (bytes == meta->bytes) {
        return Status::DataLoss("The rows of table '" + options_.name + "' in Redis at " +
                                rows_->address() + " are of a later optimizer than its meta.");
      }
    }
    TF_EMBED_RETURN_IF_ERROR(Learn(bytes));
  }
}

Status RedisStore::NewHostStore(const RuleSlots& rule, const std::vector<int64_t>& keys,
                                const Loaded& loaded, std::unique_ptr<Store>* store) const {
  StoreOptions options = options_;
  options.init_size = keys.size();
  options.initializer = initializer();
  options.policy = RowPolicy();
  *store = HostStore::Create(options, rule);
  if (*store == nullptr) return NoMemoryForRow(options_.name, keys.size());
  std::vector<int64_t> present;
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (loaded.stamps[i] == 0) continue;
    present.push_back(keys[i]);
    positions.push_back(static_cast<uint32_t>(i));
  }
  KeyBatch batch{present.data(), present.size(), positions.data()};
  batch.distinct = true;
  return (*store)->InsertOrAssign(ExecContext::Serial().InSerial().Holding(Held::kWriting), batch,
                                  loaded.weights.data(), {&rule, loaded.slots.data()});
}

Status RedisStore::Put(const std::vector<int64_t>& keys, const Loaded& loaded,
                       const RuleSlots& rule, const Store& store, bool uses,
                       std::vector<uint32_t>* lost) const {
  const RowLayout layout = LayoutOf(rule);
  std::vector<char> weights(keys.size() * layout.weight_bytes);
  std::vector<char> slots(keys.size() * layout.wide_slot_bytes);
  const auto exists = std::make_unique<bool[]>(keys.size() + 1);
  const KeyBatch batch{keys.data(), keys.size(), nullptr};
  TF_EMBED_RETURN_IF_ERROR(store.Find(ExecContext::Serial().InSerial().Holding(Held::kContent),
                                      batch, DefaultRows(), weights.data(), exists.get(),
                                      {&rule, slots.data()}));
  const size_t value_bytes = sizeof(RedisRowHeader) + layout.weight_bytes + layout.wide_slot_bytes;
  // The changes point into this array, so it gets its full size now.
  std::vector<char> values(keys.size() * value_bytes);
  const bool renews = uses && rows_->options().ttl_milliseconds > 0;
  std::vector<RedisRows::Change> changes;
  std::vector<uint32_t> numbers;
  for (size_t i = 0; i < keys.size(); ++i) {
    // The verb made no row. For example, the row has expired since UpdateAllRows scanned its key.
    if (!exists[i]) continue;
    const char* const row = weights.data() + i * layout.weight_bytes;
    const char* const its_slots = slots.data() + i * layout.wide_slot_bytes;
    // An unchanged row keeps its stamp. A needless write would make other writers lose the row.
    if (loaded.stamps[i] != 0 && !renews &&
        SameBytes(row, loaded.weights.data() + i * layout.weight_bytes, layout.weight_bytes) &&
        SameBytes(its_slots, loaded.slots.data() + i * layout.wide_slot_bytes,
                  layout.wide_slot_bytes)) {
      continue;
    }
    char* const value = values.data() + i * value_bytes;
    WriteValue({rows_->NewStamp(), loaded.meta->generation, 0}, row, layout.weight_bytes, its_slots,
               layout.wide_slot_bytes, value);
    // The server compares the stamp that was read. 0 means that the row must still be absent.
    changes.push_back({keys[i], loaded.stamps[i], {value, value_bytes}});
    numbers.push_back(static_cast<uint32_t>(i));
  }
  TF_EMBED_RETURN_IF_ERROR(rows_->Exchange(changes, uses, lost));
  // Exchange returns indices of changes, which leave out unchanged rows. The caller wants indices
  // of keys.
  for (uint32_t& number : *lost) number = numbers[number];
  return Status();
}

Status RedisStore::Write(const ExecContext& context, const KeyBatch& batch,
                         const RuleSlots* expected, bool uses, const Verb& verb) const {
  const ExecContext inside = context.Holding(Held::kWriting);
  // The keys still to write. keys[i] belongs to positions[i] in the caller's arrays. Both lists
  // shrink together, in the order of the batch, in which equal keys must be handled.
  std::vector<int64_t> keys(batch.keys, batch.keys + batch.size);
  std::vector<uint32_t> positions(batch.size);
  for (size_t i = 0; i < batch.size; ++i) positions[i] = static_cast<uint32_t>(batch.Position(i));
  // An empty batch makes one try too, which checks the rule.
  for (int tries = 0; !keys.empty() || tries == 0; ++tries) {
    if (tries > 0) WaitToTryAgain(tries);
    // A row is read and exchanged once, however often its key occurs. The order lets the search
    // below find a key's index in `distinct`, which is what `lost` holds.
    std::vector<int64_t> distinct = keys;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    Loaded loaded;
    TF_EMBED_RETURN_IF_ERROR(Load(distinct, &loaded));
    if (expected != nullptr && !SameRule(*expected, loaded.meta->rule)) {
      return RuleWasChanged(options_.name);
    }
    // The same slots, but the caller's initial values, which new rows get.
    const RuleSlots& rule = expected != nullptr ? *expected : loaded.meta->rule;
    std::unique_ptr<Store> rows;
    TF_EMBED_RETURN_IF_ERROR(NewHostStore(rule, distinct, loaded, &rows));
    // The verb gets every occurrence of the pending keys, not only the distinct keys: gradients of
    // equal keys are summed, and each position receives its output. A retry overwrites the outputs
    // of the last try.
    KeyBatch pending = batch;
    pending.keys = keys.data();
    pending.size = keys.size();
    pending.positions = positions.data();
    TF_EMBED_RETURN_IF_ERROR(verb(inside, pending, rows.get()));
    // Another process changed the lost rows after Load, so the verb ran on stale rows. Their
    // results vanish with `rows`, and the next try loads them again. The other rows are on the
    // server by now, and leave the lists: a second run would apply their gradients twice.
    std::vector<uint32_t> lost;
    TF_EMBED_RETURN_IF_ERROR(Put(distinct, loaded, rule, *rows, uses, &lost));
    std::sort(lost.begin(), lost.end());
    // All occurrences of a key share a row, so they are lost or done together. Compacts in place:
    // `left` never passes `i`, so no pair is overwritten before it is read.
    size_t left = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto number = std::lower_bound(distinct.begin(), distinct.end(), keys[i]);
      if (!std::binary_search(lost.begin(), lost.end(),
                              static_cast<uint32_t>(number - distinct.begin()))) {
        continue;
      }
      keys[left] = keys[i];
      positions[left++] = positions[i];
    }
    keys.resize(left);
  }
  return Status();
}

Status RedisStore::FindOrInsert(const ExecContext& context, const KeyBatch& batch,
                                const DefaultRows& defaults, void* weights, bool* exists) {
  return WithMemory(options_.name, [&] {
    const WriteLocks writing(locks_, context);
    return Write(context, batch, nullptr, /*uses=*/true,
                 [&](const ExecContext& inside, const KeyBatch& pending, Store* rows) {
                   return rows->FindOrInsert(inside, pending, defaults, weights, exists);
                 });
  });
}

Status RedisStore::InsertOrAssign(const ExecContext& context, const KeyBatch& batch,
                                  const void* weights, const SlotsIn& slots) {
  return WithMemory(options_.name, [&] {
    const WriteLocks writing(locks_, context);
    return Write(context, batch, slots.rule, /*uses=*/true,
                 [&](const ExecContext& inside, const KeyBatch& pending, Store* rows) {
                   return rows->InsertOrAssign(inside, pending, weights, slots);
                 });
  });
}

Status RedisStore::Accum(const ExecContext& context, const KeyBatch& batch, const void* old_rows,
                         const void* new_rows, const bool* exists) {
  TF_EMBED_RETURN_IF_ERROR(CheckAccum(options_));
  return WithMemory(options_.name, [&] {
    const WriteLocks writing(locks_, context);
    return Write(context, batch, nullptr, /*uses=*/true,
                 [&](const ExecContext& inside, const KeyBatch& pending, Store* rows) {
                   return rows->Accum(inside, pending, old_rows, new_rows, exists);
                 });
  });
}

Status RedisStore::Apply(const ExecContext& context, const KeyBatch& batch,
                         const Gradients& gradients, const Rule& rule) {
  TF_EMBED_RETURN_IF_ERROR(CheckApply(options_, gradients.type, rule));
  return WithMemory(options_.name, [&]() -> Status {
    if (!SameRuleAndInitialValues(Known()->rule, rule.slots)) {
      if (context.held != Held::kNothing) return RuleWasChanged(options_.name);
      TF_EMBED_RETURN_IF_ERROR(SetRule(ExecContext::Serial(), rule.slots));
    }
    const WriteLocks writing(locks_, context);
    return Write(context, batch, &rule.slots, /*uses=*/true,
                 [&](const ExecContext& inside, const KeyBatch& pending, Store* rows) {
                   return rows->Apply(inside, pending, gradients, rule);
                 });
  });
}

Status RedisStore::UpdateAllRows(const ExecContext& context, const Rule& rule) {
  if (!AllRowsUpdate(rule).IsDue()) return Status();
  return WithMemory(options_.name, [&]() -> Status {
    const WriteLocks writing(locks_, context);
    constexpr size_t kRows = 4096;
    for (RedisRows::Scan scan; !scan.done;) {
      std::vector<int64_t> keys;
      TF_EMBED_RETURN_IF_ERROR(rows_->ScanSome(kRows, &scan, [&](int64_t key, std::string_view) {
        keys.push_back(key);
        return Status();
      }));
      TF_EMBED_RETURN_IF_ERROR(Write(context, {keys.data(), keys.size(), nullptr}, &rule.slots,
                                     /*uses=*/false,
                                     [&](const ExecContext& inside, const KeyBatch&, Store* rows) {
                                       return rows->UpdateAllRows(inside, rule);
                                     }));
    }
    return Status();
  });
}

Status RedisStore::Erase(const ExecContext& context, const KeyBatch& batch) {
  return WithMemory(options_.name, [&] {
    const WriteLocks writing(locks_, context);
    return rows_->Erase(batch.keys, batch.size);
  });
}

}  // namespace tf_embed
