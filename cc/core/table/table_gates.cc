#include "cc/core/table/table_gates.h"

#include <algorithm>

#include "cc/core/table/table.h"

namespace tf_embed {

template <typename Do>
void HeldTables::ForEach(const Do& act) const {
  for (size_t i = 0; i < count_; ++i) act(tables_[i]->gates());
}

template <typename Do>
void HeldTables::ForEachPlanned(const Do& act) const {
  for (size_t i = 0; i < count_; ++i) {
    if (tables_[i]->options().policy.plans_writes()) act(tables_[i]->gates());
  }
}

Status HeldTables::Take(const Table* const* tables, size_t count, Held held) {
  TF_EMBED_RETURN_IF_ERROR(tables_.Resize(count));
  std::copy_n(tables, count, tables_.data());
  std::sort(tables_.data(), tables_.data() + count,
            [](const Table* a, const Table* b) { return a->gates().number < b->gates().number; });
  count_ =
      static_cast<size_t>(std::unique(tables_.data(), tables_.data() + count) - tables_.data());
  held_ = held;
  const auto lock = [](const TableGates& gates, OperationGate* gate) {
    gates.writes == TableGates::Writes::kAlone ? gate->lock() : gate->lock_shared();
  };
  switch (held) {
    case Held::kNothing:
      break;
    case Held::kContent:
      ForEach([](const TableGates& gates) { gates.content.lock_shared(); });
      break;
    case Held::kWriting:
      ForEach([&](const TableGates& gates) { lock(gates, &gates.writers); });
      ForEach([&](const TableGates& gates) { lock(gates, &gates.content); });
      ForEachPlanned([](const TableGates& gates) { gates.policy.lock(); });
      break;
    case Held::kPaused:
      ForEach([](const TableGates& gates) { gates.writers.lock(); });
      break;
  }
  return Status();
}

void HeldTables::Release() {
  const auto unlock = [](const TableGates& gates, OperationGate* gate) {
    gates.writes == TableGates::Writes::kAlone ? gate->unlock() : gate->unlock_shared();
  };
  switch (held_) {
    case Held::kNothing:
      break;
    case Held::kContent:
      ForEach([](const TableGates& gates) { gates.content.unlock_shared(); });
      break;
    case Held::kWriting:
      ForEachPlanned([](const TableGates& gates) { gates.policy.unlock(); });
      ForEach([&](const TableGates& gates) { unlock(gates, &gates.content); });
      ForEach([&](const TableGates& gates) { unlock(gates, &gates.writers); });
      for (size_t i = 0; i < count_; ++i) tables_[i]->DropOutgrown();
      break;
    case Held::kPaused:
      ForEach([](const TableGates& gates) { gates.writers.unlock(); });
      break;
  }
  held_ = Held::kNothing;
  count_ = 0;
}

}  // namespace tf_embed
