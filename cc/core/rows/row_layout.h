// SPDX-License-Identifier: Apache-2.0
// The byte layout of a row, and the only place where offsets in it are computed.
//
//     | weights: dim x value type | pad to 8 | slots: slots_per_row x slot type | pad to 16 |
//     0                            slot_offset                                   stride
//
// Slots are of the compute type of rules, or groups of several types, whose offsets among the slots
// stored_slots.h computes.
//
// A row begins at a multiple of 16 bytes, and its weights and its slots share no 8-byte word, so
// that each can be copied in whole words. The statistics of a row (last use, frequency, score) are
// not in it: they lie in separate columns beside the rows, by the same row id, because a row that
// is no longer a multiple of a cache line costs every lookup.
#ifndef TF_EMBED_CC_CORE_ROWS_ROW_LAYOUT_H_
#define TF_EMBED_CC_CORE_ROWS_ROW_LAYOUT_H_

#include <cstddef>

#include "cc/core/base/data_type.h"
#include "cc/core/rows/stored_slots.h"
#include "cc/core/rules/rule_slots.h"

namespace tf_embed {

struct RowLayout {
  static constexpr size_t kWord = 8;
  static constexpr size_t kAlignment = 16;

  // Slots of the compute type.
  RowLayout(DataType value_type, size_t dim, size_t slots_per_row, size_t statistics_per_row = 0)
      : RowLayout(value_type, dim, slots_per_row, slots_per_row * SlotSize(value_type),
                  statistics_per_row, false) {}
  // The slots of a rule.
  RowLayout(DataType value_type, size_t dim, const RuleSlots& rule, size_t statistics_per_row = 0)
      : RowLayout(value_type, dim, rule.slots_per_row(),
                  rule.has_narrow_slots() ? RoundUp(StoredSlotBytes(rule, value_type), kWord)
                                          : rule.slots_per_row() * SlotSize(value_type),
                  statistics_per_row, rule.has_narrow_slots()) {}

  static size_t RoundUp(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
  }

  DataType value_type;
  size_t dim;
  size_t slots_per_row;
  size_t weight_bytes;
  size_t slot_offset;
  size_t slot_bytes;       // in the row; whole words if some are narrow
  size_t wide_slot_bytes;  // outside of the row
  size_t stride;
  size_t statistics_per_row;  // 64-bit words, outside of the row
  bool narrow_slots;          // whether some are not of the compute type
  bool has_marks = false;     // a byte each, outside of the row (row_mark.h)

 private:
  RowLayout(DataType value_type, size_t dim, size_t slots_per_row, size_t slot_bytes,
            size_t statistics_per_row, bool narrow_slots)
      : value_type(value_type),
        dim(dim),
        slots_per_row(slots_per_row),
        weight_bytes(dim * SizeOf(value_type)),
        slot_offset(RoundUp(weight_bytes, kWord)),
        slot_bytes(slot_bytes),
        wide_slot_bytes(slots_per_row * SlotSize(value_type)),
        stride(RoundUp(slot_offset + slot_bytes, kAlignment)),
        statistics_per_row(statistics_per_row),
        narrow_slots(narrow_slots) {}
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_ROWS_ROW_LAYOUT_H_
