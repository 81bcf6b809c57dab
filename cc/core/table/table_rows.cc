// SPDX-License-Identifier: Apache-2.0
// What a save takes from a table, and a load brings back.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/core/table/paused_tables.h"
#include "cc/core/table/table.h"

namespace tf_embed {

Status Table::GetMeta(bool with_slots, TableMeta* meta) const {
  const RowInitializer initializer = store(0)->initializer();
  meta->seed = initializer.seed;
  meta->table_id = initializer.table_id;
  meta->value_type = value_type();
  meta->dim = dim();
  if (!with_slots) return Status();
  meta->rule = store(0)->rule();
  if (HasRule(meta->rule)) return Status();
  return Status::FailedPrecondition(
      "Table '" + name() + "' is changing from one optimizer to another. Save it after the step.");
}

Status Table::GetPolicy(SavedPolicy* policy) const {
  policy->statistics = statistics().OfUse();
  if (policy->statistics.size() > 0) policy->step = clock_.step();
  if (policy->statistics.Has(Statistic::kEpoch)) policy->epoch = clock_.epoch();
  return admission_ == nullptr ? Status() : admission_->Save(&policy->admission);
}

// Fills an empty store for each shard.
Status Table::FillAside(const ExecContext& context, const TableContent& content,
                        std::vector<std::unique_ptr<Store>>* stores) const {
  ShardSplit split(allocator());
  TF_EMBED_RETURN_IF_ERROR(split.Build(content.keys.keys, content.keys.size, content.keys.owners,
                                       num_shards(), content.keys.unsigned_keys));
  const StatisticSet saved = content.policy.statistics;
  for (size_t number = 0; number < num_shards(); ++number) {
    KeyBatch batch = split.shard(number);
    batch.distinct = true;  // as in any export; repeated keys would yield fewer rows
    RowInitializer initializer = store(number)->initializer();
    initializer.seed = content.meta.seed;
    initializer.table_id = content.meta.table_id;
    stores->push_back(store(number)->maintenance()->NewEmpty(batch.size, initializer));
    Store* const fresh = stores->back().get();
    if (fresh == nullptr) return NoMemory("to restore");
    TF_EMBED_RETURN_IF_ERROR(fresh->maintenance()->SetRule(content.meta.rule));
    TF_EMBED_RETURN_IF_ERROR(fresh->InsertOrAssign(context, batch, content.weights,
                                                   {&content.meta.rule, content.slots}));
    if (fresh->size() != batch.size) {
      return Status::DataLoss("The saved rows of table '" + name() +
                              "' hold a key twice: " + std::to_string(batch.size) + " rows, " +
                              std::to_string(fresh->size()) + " keys.");
    }
    if (saved.size() == 0) continue;
    StoreEviction* eviction;
    TF_EMBED_RETURN_IF_ERROR(fresh->GetEviction(&eviction));
    TF_EMBED_RETURN_IF_ERROR(eviction->AssignStatistics(context, batch, saved, content.statistics));
  }
  return Status();
}

Status Table::Import(const ExecContext& context, TableContent* content) {
  TF_EMBED_RETURN_IF_ERROR(CheckMaintenance());
  const SavedPolicy& saved = content->policy;
  ExecContext exec = Now(context);
  if (saved.step > 0) exec.now.step = saved.step;
  if (saved.statistics.Has(Statistic::kEpoch)) exec.now.epoch = saved.epoch;
  std::vector<std::unique_ptr<Store>> fresh;
  TF_EMBED_RETURN_IF_ERROR(FillAside(exec, *content, &fresh));
  if (admission_ != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(saved.CountsFor(policy())
                                 ? admission_->Load(saved.admission.data(), saved.admission.size())
                                 : admission_->Clear());
  }
  // The shards take the rows over once nothing in this process can fail. Serialize, so that no
  // other such verb sees only some shards imported.
  std::lock_guard<OrderedMutex> turn(save_mutex_);
  StringScope strings(this, KeyUse::kErase);
  {
    PausedTables paused(allocator());
    TF_EMBED_RETURN_IF_ERROR(paused.Take(*this));
    const ExecContext holding = ExecContext::Serial().Holding(Held::kPaused);
    for (size_t number = 0; number < num_shards(); ++number) {
      TF_EMBED_RETURN_IF_ERROR(
          store(number)->maintenance()->TakeContent(holding, fresh[number].get()));
    }
  }
  // Swapped, so the caller frees the old dictionaries, without the locks of the table.
  std::swap(dictionaries_, content->dictionaries);
  value_strings_limit_ =
      std::max(kFewStrings, value_strings() == nullptr ? 0 : 2 * value_strings()->size());
  clock_.SetStep(exec.now.step);
  clock_.SetEpoch(exec.now.epoch);
  // Rows whose statistics begin with this import count as used in a finished step.
  if (!HasAllStatistics(saved.statistics)) clock_.BeginStep();
  return KeepBounds(exec);
}

Status Table::LoadRows(const ExecContext& context, const SavedBatch& saved) {
  const bool has_statistics = notes_uses();
  if (has_statistics) TF_EMBED_RETURN_IF_ERROR(CheckEviction());
  ExecContext exec = Now(context);
  // Admission and the bound do not apply: these rows had their place when they were saved.
  // KeepBounds sees to the bound afterwards.
  exec.restoring = true;
  // Rows without statistics count as used in a finished step. As used in the present step they
  // could not be evicted.
  if (!HasAllStatistics(saved.statistics)) exec.now = clock_.LastStep();

  const TableKeys& keys = saved.keys;
  const int32_t left_out = static_cast<int32_t>(num_shards());
  Buffer<int32_t> places(allocator());
  if (keys.owners != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(places.Resize(keys.size));
    for (size_t i = 0; i < keys.size; ++i) {
      const int32_t owner = keys.owners[i];
      if (owner == SavedBatch::kTablesChoice) {
        places[i] =
            static_cast<int32_t>(DefaultShard(keys.keys[i], num_shards(), keys.unsigned_keys));
      } else if (owner == SavedBatch::kLeftOut) {
        places[i] = left_out;
      } else {
        // The split reports -1 as an invalid shard.
        places[i] = owner == left_out ? -1 : owner;
      }
    }
  }
  // With owners there is one extra part, which nothing loads.
  ShardSplit split(allocator());
  const size_t num_parts = num_shards() + (keys.owners == nullptr ? 0 : 1);
  TF_EMBED_RETURN_IF_ERROR(split.Build(keys.keys, keys.size,
                                       keys.owners == nullptr ? nullptr : places.data(), num_parts,
                                       keys.unsigned_keys));
  for (size_t number = 0; number < num_shards(); ++number) {
    KeyBatch batch = split.shard(number);
    batch.distinct = true;  // the keys of a table are distinct
    TF_EMBED_RETURN_IF_ERROR(
        store(number)->InsertOrAssign(exec, batch, saved.weights, saved.slots));
    if (has_statistics) {
      TF_EMBED_RETURN_IF_ERROR(
          store(number)->eviction()->AssignStatistics(exec, batch, saved.statistics, saved.words));
    }
    // These keys have rows now and wait no longer.
    if (admission_ != nullptr) admission_->Forget(batch.keys, batch.size);
  }
  return KeepBounds(exec);
}

}  // namespace tf_embed
