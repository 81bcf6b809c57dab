// SPDX-License-Identifier: Apache-2.0
// TieredStore's part in snapshots. The cache reports its own changes, uses and evictions. This file
// adds cold rows that are promoted, used or evicted before the snapshot has passed them. The
// snapshot scans the cache first, then the lower tier, so it meets a row demoted meanwhile in at
// least one tier. Before both scans, it links files of the lower tier, and so takes their cold rows
// without reading them.
//
// Verbs on rows: tiered_store.cc.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "cc/core/rows/row_layout.h"
#include "cc/stores/tiered/tiered_store.h"

namespace tf_embed {
namespace {

// Rows exported at a time, during which no row is promoted.
constexpr size_t kMostExported = 2048;

// The index of a row's change word, the last of its statistics.
size_t ChangeWord(StatisticSet set, size_t row) {
  return row * set.size() + set.IndexOf(Statistic::kChange);
}

}  // namespace

Status TieredStore::TakeWanted(WholeRows* rows, Keys* wanted) const {
  if (changes_ == nullptr) return Status();
  const WantedRows wants = changes_->wanted();
  if (wants.snapshot == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(wanted->Resize(rows->size));
  for (size_t i = 0; i < rows->size; ++i) {
    uint64_t& word = rows->statistics[ChangeWord(options_.policy.statistics, i)];
    if (!RowChange::IsWanted(word, wants)) continue;
    word = RowChange::Of(wants.snapshot, RowChange::PeriodOf(word));
    wanted->positions[wanted->size++] = static_cast<uint32_t>(i);
  }
  return Status();
}

void TieredStore::GiveWanted(const WholeRows& rows, const Keys& wanted) const {
  for (size_t i = 0; i < wanted.size; ++i) GiveRow(rows, wanted.positions[i]);
}

void TieredStore::GiveCold(const WholeRows& rows) const {
  if (changes_ == nullptr) return;
  const WantedRows wants = changes_->wanted();
  for (size_t i = 0; i < rows.size; ++i) {
    const uint64_t word = rows.statistics[ChangeWord(options_.policy.statistics, i)];
    // The lower tier decides between several threads. If there is nothing to claim, another thread
    // has promoted or handed over the row.
    if (RowChange::IsWanted(word, wants) && lower_->TakeForSnapshot(rows.keys[i], wants)) {
      GiveRow(rows, i);
    }
  }
}

void TieredStore::GiveRow(const WholeRows& rows, size_t place) const {
  const RowLayout layout(options_.value_type, options_.dim, rule_);
  const size_t slot_bytes = layout.wide_slot_bytes;
  const size_t words = options_.policy.statistics.size();
  const auto copy = [&](size_t to, WholeRows* given) {
    std::memcpy(given->weights.data() + to * layout.weight_bytes,
                rows.weights.data() + place * layout.weight_bytes, layout.weight_bytes);
    if (slot_bytes > 0) {
      std::memcpy(given->slots.data() + to * slot_bytes, rows.slots.data() + place * slot_bytes,
                  slot_bytes);
    }
    std::memcpy(given->statistics.data() + to * words, rows.statistics.data() + place * words,
                words * sizeof(uint64_t));
    return true;
  };
  changes_->Give(rows.keys[place], layout.weight_bytes, slot_bytes, words, options_.allocator,
                 copy);
}

Status TieredStore::NoteColdLeave(const ExecContext& inner, const KeyBatch& batch) const {
  if (changes_ == nullptr) return Status();
  Keys cold(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(ColdKeys(inner, batch, &cold));
  if (cold.size > 0 && changes_->wanted().snapshot != 0) {
    WholeRows rows(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(
        lower_->Get(inner, cold.keys.data(), cold.size, LowerTier::After::kCold, &rows));
    GiveCold(rows);
  }
  for (size_t i = 0; i < cold.size; ++i) changes_->NoteLeft(cold.keys[i]);
  return Status();
}

Status TieredStore::ColdKeys(const ExecContext& inner, const KeyBatch& batch, Keys* cold) const {
  TF_EMBED_RETURN_IF_ERROR(NotCached(inner, batch, cold));
  cold->MakeDistinct();
  return KeepStored(cold);
}

Status TieredStore::NoteColdAssign(const ExecContext& inner, const KeyBatch& batch,
                                   StatisticSet set) const {
  const bool changes = set.Has(Statistic::kScore);  // as in HostStore::AssignStatistics
  if (changes_ == nullptr || (!changes && changes_->wanted().snapshot == 0)) return Status();
  Keys cold(options_.allocator);
  WholeRows rows(options_.allocator);
  TF_EMBED_RETURN_IF_ERROR(ColdKeys(inner, batch, &cold));
  if (cold.size == 0) return Status();
  TF_EMBED_RETURN_IF_ERROR(
      lower_->Get(inner, cold.keys.data(), cold.size, LowerTier::After::kCold, &rows));
  if (!changes) {
    GiveCold(rows);
    return Status();
  }
  NoteColdChange(&rows);
  return lower_->Put(inner, rows);
}

void TieredStore::NoteColdChange(WholeRows* rows) const {
  if (changes_ == nullptr) return;
  GiveCold(*rows);
  for (size_t i = 0; i < rows->size; ++i) {
    uint64_t& word = rows->statistics[ChangeWord(options_.policy.statistics, i)];
    word = RowChange::Of(changes_->wanted().snapshot, changes_->period());
  }
}

Status TieredStore::ExportLinks(const ExecContext& context, FileLinker* linker,
                                ExportCursor* cursor, LinkedRows* rows) {
  const WriteLocks beside_writers(locks_, context);
  const WantedRows wants = changes_ != nullptr ? changes_->wanted() : WantedRows();
  rows->size = 0;
  while (!cursor->done && rows->size == 0) {
    if (rows->ended) {
      TF_EMBED_RETURN_IF_ERROR(lower_->LinkNext(wants, linker, cursor, rows));
    } else {
      // Rows promoted since then have been handed over.
      const std::lock_guard<OrderedMutex> lock(promotion_);
      TF_EMBED_RETURN_IF_ERROR(lower_->TakeLinked(wants, cursor, rows));
    }
  }
  return Status();
}

Status TieredStore::ExportSnapshot(const ExecContext& context, size_t max_rows,
                                   ExportCursor* cursor, WholeRows* rows) {
  const WriteLocks beside_writers(locks_, context);
  const ExecContext inner = context.Holding(Held::kWriting).InSerial();
  const StatisticSet set = options_.policy.statistics;
  rows->size = 0;
  max_rows = std::min(max_rows, kMostExported);
  while (!cursor->done && rows->size == 0) {
    ExportCursor part{cursor->next & ~kInLowerTier, false};
    if ((cursor->next & kInLowerTier) == 0) {
      const std::lock_guard<OrderedMutex> lock(promotion_);
      TF_EMBED_RETURN_IF_ERROR(cache_->maintenance()->ExportSnapshot(inner, max_rows, &part, rows));
      cursor->next = part.done ? kInLowerTier : part.next;
      continue;
    }
    const WantedRows wants = changes_->wanted();
    TF_EMBED_RETURN_IF_ERROR(lower_->Scan(max_rows, wants, &part, rows));
    // Rows promoted since then have been handed over.
    const std::lock_guard<OrderedMutex> lock(promotion_);
    Keys kept(options_.allocator);
    TF_EMBED_RETURN_IF_ERROR(kept.Resize(rows->size));
    for (size_t i = 0; i < rows->size; ++i) {
      if (!lower_->TakeForSnapshot(rows->keys[i], wants)) continue;
      kept.positions[kept.size++] = static_cast<uint32_t>(i);
    }
    const RowLayout layout(options_.value_type, options_.dim, rule_);
    rows->Keep(kept.positions.data(), kept.size, layout.weight_bytes, layout.wide_slot_bytes,
               set.size());
    cursor->next = part.next | kInLowerTier;
    cursor->done = part.done;
  }
  return Status();
}

}  // namespace tf_embed
