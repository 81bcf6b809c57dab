// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/table_locks.h"

#include <algorithm>

#include "cc/core/table/table.h"

namespace tf_embed {

template <typename Do>
void HeldTables::ForEach(const Do& act) const {
  for (size_t i = 0; i < count_; ++i) act(tables_[i]->locks());
}

template <typename Do>
void HeldTables::ForEachPlanned(const Do& act) const {
  for (size_t i = 0; i < count_; ++i) {
    if (tables_[i]->options().policy.plans_writes()) act(tables_[i]->locks());
  }
}

Status HeldTables::Take(const Table* const* tables, size_t count, Held held) {
  TF_EMBED_RETURN_IF_ERROR(tables_.Resize(count));
  std::copy_n(tables, count, tables_.data());
  std::sort(tables_.data(), tables_.data() + count,
            [](const Table* a, const Table* b) { return a->locks().number < b->locks().number; });
  count_ =
      static_cast<size_t>(std::unique(tables_.data(), tables_.data() + count) - tables_.data());
  held_ = held;
  const auto lock = [](const TableLocks& locks, FairSharedMutex* mutex) {
    locks.writes == TableLocks::Writes::kAlone ? mutex->lock() : mutex->lock_shared();
  };
  switch (held) {
    case Held::kNothing:
      break;
    case Held::kUsing:
      ForEach([](const TableLocks& locks) { locks.writers.lock_shared(); });
      [[fallthrough]];
    case Held::kContent:
      ForEach([](const TableLocks& locks) { locks.content.lock_shared(); });
      break;
    case Held::kWriting:
      ForEach([&](const TableLocks& locks) { lock(locks, &locks.writers); });
      ForEach([&](const TableLocks& locks) { lock(locks, &locks.content); });
      ForEachPlanned([](const TableLocks& locks) { locks.policy.lock(); });
      break;
    case Held::kPaused:
      ForEach([](const TableLocks& locks) { locks.writers.lock(); });
      break;
  }
  return Status();
}

void HeldTables::Release() {
  const auto unlock = [](const TableLocks& locks, FairSharedMutex* mutex) {
    locks.writes == TableLocks::Writes::kAlone ? mutex->unlock() : mutex->unlock_shared();
  };
  switch (held_) {
    case Held::kNothing:
      break;
    case Held::kContent:
    case Held::kUsing:
      ForEach([](const TableLocks& locks) { locks.content.unlock_shared(); });
      if (held_ == Held::kUsing) {
        ForEach([](const TableLocks& locks) { locks.writers.unlock_shared(); });
      }
      break;
    case Held::kWriting:
      ForEachPlanned([](const TableLocks& locks) { locks.policy.unlock(); });
      ForEach([&](const TableLocks& locks) { unlock(locks, &locks.content); });
      ForEach([&](const TableLocks& locks) { unlock(locks, &locks.writers); });
      for (size_t i = 0; i < count_; ++i) tables_[i]->DropOutgrown();
      break;
    case Held::kPaused:
      ForEach([](const TableLocks& locks) { locks.writers.unlock(); });
      break;
  }
  held_ = Held::kNothing;
  count_ = 0;
}

}  // namespace tf_embed
