// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/table.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "cc/core/policy/rank_list.h"
#include "cc/core/table/paused_tables.h"
#include "cc/core/table/restrict.h"

namespace tf_embed {

Table::Table(const TableOptions& options)
    : options_(options), clock_(options.policy.steps_per_epoch) {}

Status Table::NoMemory(const char* purpose) const {
  return Status::ResourceExhausted(
      [&] { return "No memory " + std::string(purpose) + " table '" + name() + "'."; });
}

Status Table::MakeShards(const ShardMaker& make) {
  const PolicySettings& policy = options_.policy;
  TF_EMBED_RETURN_IF_ERROR(policy.NewAdmission(allocator(), &admission_));
  if (policy.log_evicted || has_string_keys()) {
    log_ = std::make_unique<EvictionLog>(dictionaries_, options_.shard, policy.log_evicted);
  }
  for (size_t number = 0; number < options_.num_shards; ++number) {
    StoreOptions options = options_.shard;
    options.policy = policy.ForShard(number, options_.num_shards, admission_, log_.get());
    shards_.emplace_back();
    TF_EMBED_RETURN_IF_ERROR(make(number, options, &shards_.back()));
    on_host_.push_back(shards_.back().store.get());
    on_device_.push_back(shards_.back().on_device);
  }
  if (dictionaries_.Create(allocator(), has_string_keys(), has_string_values())) {
    return Status();
  }
  return NoMemory("for an empty");
}

Status Table::CheckMaintenance() const {
  StoreMaintenance* maintenance;
  return store(0)->GetMaintenance(&maintenance);
}

Status Table::CheckEviction() const {
  StoreEviction* eviction;
  return store(0)->GetEviction(&eviction);
}

size_t Table::size() const {
  size_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.store->size();
  return sum;
}

Status Table::Count(int64_t shard, size_t* count) const {
  *count = 0;
  for (size_t number = 0; number < shards_.size(); ++number) {
    if (shard >= 0 && number != static_cast<size_t>(shard)) continue;
    size_t of_shard;
    TF_EMBED_RETURN_IF_ERROR(store(number)->Count(&of_shard));
    *count += of_shard;
  }
  return Status();
}

Status Table::Stats(StoreStats* stats) const {
  for (const Shard& shard : shards_) {
    // In this order, because CheckReachable also reports the error of the count in the statistics.
    stats->Add(shard.store->Stats());
    TF_EMBED_RETURN_IF_ERROR(shard.store->CheckReachable());
  }
  if (admission_ != nullptr) stats->admission_bytes = admission_->bytes();
  if (policy().log_evicted) stats->undrained = log_->size();
  return Status();
}

Status Table::Clear() {
  // Serialize, so that no other such verb sees only some shards cleared.
  std::lock_guard<OrderedMutex> turn(save_mutex_);
  StringScope strings(this, KeyUse::kErase);
  PausedTables paused(allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(*this));
  const ExecContext exec = ExecContext::Serial().Holding(Held::kPaused);
  for (const Shard& shard : shards_) TF_EMBED_RETURN_IF_ERROR(shard.store->Clear(exec));
  if (key_strings() != nullptr) key_strings()->Clear();
  if (value_strings() != nullptr) value_strings()->Clear();
  // Waiting keys are content too.
  return admission_ == nullptr ? Status() : admission_->Clear();
}

Status Table::Shrink(const ExecContext& context) {
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  const ExecContext now = Now(context);
  for (const Shard& shard : shards_) {
    TF_EMBED_RETURN_IF_ERROR(shard.store->maintenance()->Shrink(now));
  }
  StringScope strings(this, KeyUse::kErase);
  for (StringKeys* const dictionary : {key_strings(), value_strings()}) {
    if (dictionary != nullptr) TF_EMBED_RETURN_IF_ERROR(dictionary->Shrink());
  }
  return Status();
}

Status Table::Restrict(const ExecContext& context, EvictionOrder order, size_t num_reserved,
                       size_t* removed) {
  // Exclusive: strings of removed rows are dropped at its end.
  StringScope strings(this, KeyUse::kErase);
  return RestrictRows(Now(context), on_host_.data(), num_shards(), order, num_reserved, removed);
}

Status Table::KeepBounds(const ExecContext& context) {
  for (Store* const store : on_host_) {
    const RowPolicy& policy = store->options().policy;
    if (policy.max_rows == 0 || store->size() <= policy.max_rows) continue;
    size_t removed = 0;
    TF_EMBED_RETURN_IF_ERROR(
        RestrictRows(context, &store, 1, policy.eviction, policy.max_rows, &removed));
  }
  return Status();
}

Status Table::CountExpired(const ExecContext& context, size_t* count) const {
  *count = 0;
  const uint64_t ttl = options().policy.ttl_milliseconds;
  if (ttl == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(CheckEviction());
  const ExecContext now = Now(context);
  if (now.now.milliseconds < ttl) return Status();
  // The rank of a row that is not expired yet.
  std::atomic<uint64_t> word{now.now.milliseconds - ttl + 1};
  const RowStatistics earliest(StatisticSet().With(Statistic::kLastTime), &word);
  const Rank limit(TtlOrder::Score(earliest, 0), 0);
  for (const Shard& shard : shards_) {
    RankList none(allocator());
    TF_EMBED_RETURN_IF_ERROR(shard.store->eviction()->CollectRanks(now, EvictionOrder::kTtl, 1,
                                                                   limit, limit, &none, count));
  }
  return Status();
}

Status Table::RenewUses(const ExecContext& context) {
  constexpr size_t kTogether = size_t{1} << 16;
  if (options().policy.ttl_milliseconds == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  TF_EMBED_RETURN_IF_ERROR(CheckEviction());
  const ExecContext now = Now(context).Holding(Held::kPaused);
  // Keeps out exports and loads, which see all shards before or after this.
  std::lock_guard<OrderedMutex> turn(save_mutex_);
  PausedTables paused(allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(*this));
  WholeRows rows(allocator());
  Buffer<uint64_t> times(allocator());
  for (const Shard& shard : shards_) {
    for (ExportCursor cursor; !cursor.done;) {
      TF_EMBED_RETURN_IF_ERROR(shard.store->maintenance()->ExportBatch(kTogether, &cursor, &rows));
      if (times.size() < rows.size) TF_EMBED_RETURN_IF_ERROR(times.Resize(rows.size));
      std::fill_n(times.data(), rows.size, now.now.milliseconds);
      KeyBatch batch{rows.keys.data(), rows.size};
      batch.distinct = true;
      TF_EMBED_RETURN_IF_ERROR(shard.store->eviction()->AssignStatistics(
          now, batch, StatisticSet().With(Statistic::kLastTime), times.data()));
    }
  }
  return Status();
}

bool Table::HasRule(const RuleSlots& rule) const {
  return std::all_of(shards_.begin(), shards_.end(),
                     [&](const Shard& shard) { return SameRule(shard.store->rule(), rule); });
}

bool Table::HasRuleAndInitialValues(const RuleSlots& rule) const {
  return std::all_of(shards_.begin(), shards_.end(), [&](const Shard& shard) {
    return SameRuleAndInitialValues(shard.store->rule(), rule);
  });
}

Status Table::SetRule(const RuleSlots& rule) {
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  // Check first, because setting a rule waits for all readers and writers.
  if (HasRuleAndInitialValues(rule)) return Status();
  HeldStores paused(allocator());
  TF_EMBED_RETURN_IF_ERROR(paused.Take(stores(), num_shards(), Held::kPaused));
  const ExecContext exec = ExecContext::Serial().Holding(Held::kPaused);
  for (const Shard& shard : shards_) {
    if (SameRuleAndInitialValues(shard.store->rule(), rule)) continue;
    TF_EMBED_RETURN_IF_ERROR(shard.store->maintenance()->SetRule(exec, rule));
  }
  return Status();
}

size_t Table::RowsOfOtherRule(const RuleSlots& rule) const {
  size_t rows = 0;
  for (const Shard& shard : shards_) {
    const RuleSlots present = shard.store->rule();
    if (!SameRule(present, rule) && present.slots_per_row() > 0) rows += shard.store->size();
  }
  return rows;
}

Status Table::LargestSlot(const ExecContext& context, const RuleSlots& rule, size_t slot,
                          double* largest) const {
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  *largest = 0.0;
  for (const Shard& shard : shards_) {
    double of_shard;
    TF_EMBED_RETURN_IF_ERROR(
        shard.store->maintenance()->LargestSlot(context, rule, slot, &of_shard));
    *largest = std::max(*largest, of_shard);
  }
  return Status();
}

Status Table::SetOrigin(const TableMeta& saved) {
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  for (const Shard& shard : shards_) {
    RowInitializer initializer = shard.store->initializer();
    if (initializer.seed == saved.seed && initializer.table_id == saved.table_id) continue;
    initializer.seed = saved.seed;
    initializer.table_id = saved.table_id;
    shard.store->maintenance()->SetInitializer(initializer);
  }
  return Status();
}

void Table::DropStrings(const int64_t* keys, size_t count) {
  if (key_strings() != nullptr) {
    log_->TakeStringKeys([&](const int64_t* evicted, size_t num_evicted) {
      DropStringsWithoutRows(evicted, num_evicted);
    });
    DropStringsWithoutRows(keys, count);
  }
  DropUnusedValueStrings();
}

void Table::DropStringsWithoutRows(const int64_t* keys, size_t count) {
  constexpr size_t kChunk = 1024;
  bool is_in_shard[kChunk];
  bool has_row[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const KeyBatch batch{keys + begin, std::min(kChunk, count - begin), nullptr};
    std::fill(has_row, has_row + batch.size, false);
    for (const Shard& shard : shards_) {
      // If a shard can't answer, all strings stay. A string too many costs memory; a row without
      // its string would be lost.
      if (!shard.store->Contains(ExecContext::Serial(), batch, is_in_shard).ok()) return;
      for (size_t i = 0; i < batch.size; ++i) has_row[i] = has_row[i] || is_in_shard[i];
    }
    for (size_t i = 0; i < batch.size; ++i) {
      if (!has_row[i]) key_strings()->Remove(&batch.keys[i], 1);
    }
  }
}

Status Table::CollectValues(Buffer<int64_t>* values) const {
  constexpr size_t kRows = size_t{1} << 14;
  TF_EMBED_RETURN_IF_ERROR(values->Resize(size() * dim()));
  size_t count = 0;
  return ForEachBlock(kRows, [&](const WholeRows* rows) {
    std::memcpy(values->data() + count, rows->weights.data(), rows->size * row_bytes());
    count += rows->size * dim();
    return Status();
  });
}

void Table::DropUnusedValueStrings() {
  StringKeys* const strings = value_strings();
  if (strings == nullptr || strings->size() <= value_strings_limit_) return;
  const size_t num_strings = strings->size();
  const size_t num_values = size() * dim();
  Buffer<int64_t> used(allocator());
  Buffer<int64_t> numbers(allocator());
  // Without memory to look, unused strings simply stay until the next time.
  if (!CollectValues(&used).ok() || !numbers.Resize(num_strings).ok()) return;
  std::sort(used.data(), used.data() + num_values);
  size_t unused = 0;
  strings->ForEachKey([&](int64_t number) {
    if (!std::binary_search(used.data(), used.data() + num_values, number)) {
      numbers[unused++] = number;
    }
  });
  strings->Remove(numbers.data(), unused);
  // The search passes over the whole table. Doubling the limit makes it a constant cost for each
  // added string.
  value_strings_limit_ = std::max(kFewStrings, 2 * strings->size());
}

}  // namespace tf_embed
