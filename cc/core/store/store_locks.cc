// SPDX-License-Identifier: Apache-2.0
#include "cc/core/store/store_locks.h"

#include <algorithm>

#include "cc/core/store/store.h"

namespace tf_embed {

template <typename Do>
void HeldStores::ForEach(const Do& act) const {
  for (size_t i = 0; i < count_; ++i) act(stores_[i]->locks());
}

template <typename Do>
void HeldStores::ForEachPlanned(const Do& act) const {
  for (size_t i = 0; i < count_; ++i) {
    if (stores_[i]->options().policy.plans_writes()) act(stores_[i]->locks());
  }
}

Status HeldStores::Take(const Store* const* stores, size_t count, Held held) {
  TF_EMBED_RETURN_IF_ERROR(stores_.Resize(count));
  std::copy_n(stores, count, stores_.data());
  std::sort(stores_.data(), stores_.data() + count,
            [](const Store* a, const Store* b) { return a->locks().number < b->locks().number; });
  count_ =
      static_cast<size_t>(std::unique(stores_.data(), stores_.data() + count) - stores_.data());
  held_ = held;
  const auto lock = [](const StoreLocks& locks, FairSharedMutex* mutex) {
    locks.writes == StoreLocks::Writes::kAlone ? mutex->lock() : mutex->lock_shared();
  };
  switch (held) {
    case Held::kNothing:
      break;
    case Held::kUsing:
      ForEach([](const StoreLocks& locks) { locks.writers.lock_shared(); });
      [[fallthrough]];
    case Held::kContent:
      ForEach([](const StoreLocks& locks) { locks.content.lock_shared(); });
      break;
    case Held::kWriting:
      ForEach([&](const StoreLocks& locks) { lock(locks, &locks.writers); });
      ForEach([&](const StoreLocks& locks) { lock(locks, &locks.content); });
      ForEachPlanned([](const StoreLocks& locks) { locks.policy.lock(); });
      break;
    case Held::kPaused:
      ForEach([](const StoreLocks& locks) { locks.writers.lock(); });
      break;
  }
  return Status();
}

void HeldStores::Release() {
  const auto unlock = [](const StoreLocks& locks, FairSharedMutex* mutex) {
    locks.writes == StoreLocks::Writes::kAlone ? mutex->unlock() : mutex->unlock_shared();
  };
  switch (held_) {
    case Held::kNothing:
      break;
    case Held::kContent:
    case Held::kUsing:
      ForEach([](const StoreLocks& locks) { locks.content.unlock_shared(); });
      if (held_ == Held::kUsing) {
        ForEach([](const StoreLocks& locks) { locks.writers.unlock_shared(); });
      }
      break;
    case Held::kWriting:
      ForEachPlanned([](const StoreLocks& locks) { locks.policy.unlock(); });
      ForEach([&](const StoreLocks& locks) { unlock(locks, &locks.content); });
      ForEach([&](const StoreLocks& locks) { unlock(locks, &locks.writers); });
      for (size_t i = 0; i < count_; ++i) stores_[i]->DropOutgrown();
      break;
    case Held::kPaused:
      ForEach([](const StoreLocks& locks) { locks.writers.unlock(); });
      break;
  }
  held_ = Held::kNothing;
  count_ = 0;
}

}  // namespace tf_embed
