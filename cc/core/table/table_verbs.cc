// SPDX-License-Identifier: Apache-2.0
// The verbs of a table on a batch.
#include <memory>
#include <shared_mutex>

#include "cc/core/rules/rule_slots.h"
#include "cc/core/table/table.h"

namespace tf_embed {

// The keys of a batch, split over the shards.
class Table::SplitKeys {
 public:
  explicit SplitKeys(const Table& table) : table_(table), on_host_(table.allocator()) {}

  Status Build(const ExecContext& context, const TableKeys& keys) {
    keys_ = &keys;
    if (!keys.on_device) {
      return on_host_.Build(keys.keys, keys.size, keys.owners, table_.num_shards(),
                            keys.unsigned_keys);
    }
    on_device_ = table_.shards_.front().new_split();
    return on_device_->Build(context, keys.keys, keys.size, keys.owners, table_.num_shards(),
                             keys.unsigned_keys);
  }

  // Calls verb(store, batch) for each shard until one fails.
  template <typename Verb>
  Status ForEach(const Verb& verb) const {
    for (size_t number = 0; number < table_.num_shards(); ++number) {
      KeyBatch batch = keys_->on_device ? on_device_->shard(number) : on_host_.shard(number);
      batch.scores = keys_->scores;
      batch.distinct = keys_->distinct;
      const Shard& shard = table_.shards_[number];
      TF_EMBED_RETURN_IF_ERROR(verb(keys_->on_device ? shard.on_device : shard.store.get(), batch));
    }
    return Status();
  }

 private:
  const Table& table_;
  const TableKeys* keys_ = nullptr;
  ShardSplit on_host_;
  std::unique_ptr<DeviceSplit> on_device_;
};

ExecContext Table::Now(const ExecContext& context) const {
  ExecContext now = context;
  now.now = clock_.Now();
  return now;
}

ExecContext Table::BeginStep(const ExecContext& context) {
  ExecContext now = context;
  now.now = clock_.BeginStep();
  return now;
}

Status Table::FindIn(const SplitKeys& split, const ExecContext& context,
                     const DefaultRows& defaults, void* weights, bool* exists,
                     const SlotsOut& slots) const {
  std::shared_lock<FairSharedMutex> writing;
  // A use of rows writes their statistics.
  if (context.held == Held::kNothing && context.training && notes_uses()) {
    writing = std::shared_lock<FairSharedMutex>(shards_mutex_);
  }
  const ExecContext now = Now(context);
  return split.ForEach([&](const Store* store, const KeyBatch& batch) {
    return store->Find(now, batch, defaults, weights, exists, slots);
  });
}

Status Table::Find(const ExecContext& context, const TableKeys& keys, const DefaultRows& defaults,
                   void* weights, bool* exists) const {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  return FindIn(split, context, defaults, weights, exists, {});
}

Status Table::FindSlots(const ExecContext& context, const TableKeys& keys,
                        const DefaultRows& defaults, const RuleSlots& rule, void* weights,
                        void* slots, bool* exists) {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  // After the split, which may refuse the owners: a change of rule replaces the slots of all rows.
  // Before the lookup, not by it: slots of two rules have different widths.
  TF_EMBED_RETURN_IF_ERROR(SetRule(rule));
  ExecContext training = context;
  training.training = true;
  return FindIn(split, training, defaults, weights, exists, {&rule, slots});
}

Status Table::FindOrInsert(const ExecContext& context, const TableKeys& keys,
                           const DefaultRows& defaults, void* weights, bool* exists) {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  std::shared_lock<FairSharedMutex> writing(shards_mutex_);
  const ExecContext now = Now(context);
  return split.ForEach([&](Store* store, const KeyBatch& batch) {
    return store->FindOrInsert(now, batch, defaults, weights, exists);
  });
}

Status Table::InsertOrAssign(const ExecContext& context, const TableKeys& keys, const void* weights,
                             const SlotsIn& slots, bool sets_rule) {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  if (sets_rule && !HasRule(*slots.rule)) TF_EMBED_RETURN_IF_ERROR(SetRule(*slots.rule));
  // Check all shards before the first write. Each write checks again.
  for (const Shard& shard : shards_) {
    if (slots.rule == nullptr) break;
    // An empty batch changes nothing, and fails if the shard has another rule.
    TF_EMBED_RETURN_IF_ERROR(shard.store->InsertOrAssign(ExecContext::Serial(), KeyBatch(), nullptr,
                                                         {slots.rule, nullptr}));
  }
  std::shared_lock<FairSharedMutex> writing(shards_mutex_);
  const ExecContext step = BeginStep(context);
  return split.ForEach([&](Store* store, const KeyBatch& batch) {
    return store->InsertOrAssign(step, batch, weights, slots);
  });
}

Status Table::Accum(const ExecContext& context, const TableKeys& keys, const void* old_rows,
                    const void* new_rows, const bool* exists) {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  std::shared_lock<FairSharedMutex> writing(shards_mutex_);
  const ExecContext step = BeginStep(context);
  return split.ForEach([&](Store* store, const KeyBatch& batch) {
    return store->Accum(step, batch, old_rows, new_rows, exists);
  });
}

Status Table::Apply(const ExecContext& context, const TableKeys& keys, const Gradients& gradients,
                    const Rule& rule) {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  const bool is_held = context.held != Held::kNothing;
  // A single shard sets the rule itself.
  const auto set_rule = [&] {
    return is_held || num_shards() == 1 ? Status() : SetRule(rule.slots);
  };
  // Sets all shards together, so that an export does not find shards of two rules (PausedTables).
  TF_EMBED_RETURN_IF_ERROR(set_rule());
  std::shared_lock<FairSharedMutex> writing;
  if (!is_held) writing = std::shared_lock<FairSharedMutex>(shards_mutex_);
  const ExecContext step = BeginStep(context);
  TF_EMBED_RETURN_IF_ERROR(split.ForEach([&](Store* store, const KeyBatch& batch) {
    return store->Apply(step, batch, gradients, rule);
  }));
  // Sets it again: an import may have run between two shards. Later shards already have the rule.
  TF_EMBED_RETURN_IF_ERROR(set_rule());
  return split.ForEach(
      [&](Store* store, const KeyBatch&) { return store->UpdateAllRows(step, rule); });
}

Status Table::Erase(const ExecContext& context, const TableKeys& keys) {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  const ExecContext now = Now(context);
  std::shared_lock<FairSharedMutex> writing(shards_mutex_);
  return split.ForEach(
      [&](Store* store, const KeyBatch& batch) { return store->Erase(now, batch); });
}

Status Table::Prefetch(const ExecContext& context, const TableKeys& keys) const {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  const ExecContext now = Now(context);
  return split.ForEach([&](const Store* store, const KeyBatch& batch) {
    return store->tiers() == nullptr ? Status() : store->tiers()->Prefetch(now, batch);
  });
}

namespace {

// Fills the slots with which the rule's first step starts.
template <typename Compute>
void FillInitial(const RuleSlots& rule, const KeyBatch& batch, Compute* slots) {
  for (size_t i = 0; i < batch.size; ++i) {
    FillInitialSlots(rule, slots + batch.Position(i) * rule.slots_per_row());
  }
}

}  // namespace

Status Table::ReadSlots(const ExecContext& context, const TableKeys& keys, const RuleSlots& rule,
                        void* slots, bool* exists) const {
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  Buffer<char> weights(allocator());  // read together with the slots, and discarded
  TF_EMBED_RETURN_IF_ERROR(weights.Resize(keys.size * row_bytes()));
  const ExecContext now = Now(context);
  return split.ForEach([&](const Store* store, const KeyBatch& batch) {
    // Read once: another verb may change the rule before the Find, which then reports it.
    const RuleSlots present = store->rule();
    if (SameRule(present, rule)) {
      return store->Find(now, batch, DefaultRows(), weights.data(), exists, {&present, slots});
    }
    if (value_type() == DataType::kDouble) {
      FillInitial(rule, batch, static_cast<double*>(slots));
    } else {
      FillInitial(rule, batch, static_cast<float*>(slots));
    }
    return store->Contains(now, batch, exists);
  });
}

Status Table::FindStatistics(const ExecContext& context, const TableKeys& keys, uint64_t* words,
                             bool* exists) const {
  TF_EMBED_RETURN_IF_ERROR(CheckEviction());
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  const ExecContext now = Now(context);
  return split.ForEach([&](const Store* store, const KeyBatch& batch) {
    return store->eviction()->FindStatistics(now, batch, words, exists);
  });
}

Status Table::AssignStatistic(const ExecContext& context, const TableKeys& keys,
                              Statistic statistic, const uint64_t* words) {
  TF_EMBED_RETURN_IF_ERROR(CheckEviction());
  SplitKeys split(*this);
  TF_EMBED_RETURN_IF_ERROR(split.Build(context, keys));
  const ExecContext now = Now(context);
  std::shared_lock<FairSharedMutex> writing(shards_mutex_);
  return split.ForEach([&](Store* store, const KeyBatch& batch) {
    return store->eviction()->AssignStatistics(now, batch, StatisticSet().With(statistic), words);
  });
}

}  // namespace tf_embed
