// SPDX-License-Identifier: Apache-2.0
// HostStore's part in snapshots. It reports changed, used and evicted rows to its ChangeLog, and
// exports the other rows. Verbs on rows: host_store.cc.
#include <cstring>

#include "cc/core/base/hash.h"
#include "cc/stores/host/host_store.h"
#include "cc/stores/host/host_store_inl.h"

namespace tf_embed {

void HostStore::NoteTrackedChange(const Content& content, int64_t key, uint32_t row_id) const {
  RowChange::Word* const word = ChangeOf(content, row_id);
  const uint32_t period = changes_->period();
  if (RowChange::PeriodOf(word->load(std::memory_order_relaxed)) == period) return;
  if (IsWanted(content, row_id)) Give(content, key, row_id);
  RowChange::Note(word, period);
}

void HostStore::GiveBeforeUse(const Content& content, int64_t key) const {
  const uint64_t hash = HashKey(key);
  StripedIndex::Entry entry;
  do {
    entry = content.index.Find(key, hash);
    if (!entry.found()) return;
  } while (!entry.bucket->TryLock(entry.word));
  // Another thread may have handed it over meanwhile.
  if (IsWanted(content, entry.row_id)) Give(content, key, entry.row_id);
  entry.bucket->Unlock(entry.word);
}

void HostStore::NoteCame(const Content& content, uint32_t row_id) const {
  if (changes_ == nullptr) return;
  ChangeOf(content, row_id)->store(RowChange::Of(0, changes_->period()), std::memory_order_relaxed);
}

void HostStore::Give(const Content& content, int64_t key, uint32_t row_id) const {
  const RowLayout& layout = content.rows.layout();
  const auto copy = [&](size_t place, WholeRows* rows) {
    const char* const row = content.rows.Row(row_id);
    const char* const slots = row + layout.slot_offset;
    char* const to = rows->slots.data() + place * layout.wide_slot_bytes;
    std::memcpy(rows->weights.data() + place * layout.weight_bytes, row, layout.weight_bytes);
    if (layout.narrow_slots) {
      WidenSlots(content.rule, layout.value_type, slots, to);
    } else if (layout.slot_bytes > 0) {
      std::memcpy(to, slots, layout.slot_bytes);
    }
    CopyStatistics(content, row_id, rows->statistics.data() + place * layout.statistics_per_row);
    // After the copy: from here on, other threads may note uses.
    return RowChange::Take(ChangeOf(content, row_id), changes_->wanted());
  };
  changes_->Give(key, layout.weight_bytes, layout.wide_slot_bytes, layout.statistics_per_row,
                 options_.allocator, copy);
}

void HostStore::NoteLeaves(const Content& content, int64_t key, uint64_t hash) const {
  if (changes_ == nullptr) return;
  StripedIndex::Entry entry;
  do {
    entry = content.index.Find(key, hash);
    if (!entry.found()) return;
  } while (!entry.bucket->TryLock(entry.word));
  // Treat it as a change, so that the row is handed over before it leaves.
  NoteTrackedChange(content, key, entry.row_id);
  entry.bucket->Unlock(entry.word);
  changes_->NoteLeft(key);
}

Status HostStore::ExportSnapshot(const ExecContext& context, size_t max_rows, ExportCursor* cursor,
                                 WholeRows* rows) {
  // Keeps out callers that rearrange rows or pause writers, but not writers.
  const WriteLocks beside_writers(locks_, context);
  const WantedRows wanted = changes_->wanted();
  return ExportStripes(max_rows, cursor, rows,
                       [&](RowCopier* copier, const Bucket& bucket, int64_t key, uint32_t row_id) {
                         RowChange::Word* const word = ChangeOf(*content_, row_id);
                         const uint64_t present = word->load(std::memory_order_relaxed);
                         if (!RowChange::IsWanted(present, wanted)) return;
                         copier->Append(bucket, key, row_id, rows);
                         // A verb has claimed the row first and hands it over. This copy may be too
                         // new.
                         if (!RowChange::Take(word, wanted)) --rows->size;
                       });
}

}  // namespace tf_embed
