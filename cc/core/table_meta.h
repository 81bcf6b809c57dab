// What a table is besides its rows, as it stands in a checkpoint: eight int64 numbers.
//
//     | format = 1 | seed | table id | rule | initial slot value (bits of a double) |
//     | value type | dim | slots of a row |
#ifndef TF_EMBED_CC_CORE_TABLE_META_H_
#define TF_EMBED_CC_CORE_TABLE_META_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "cc/core/data_type.h"
#include "cc/core/optimizer_rule.h"
#include "cc/core/status.h"

namespace tf_embed {

struct TableMeta {
  static constexpr int64_t kFormat = 1;
  static constexpr size_t kNumbers = 8;

  uint64_t seed = 0;
  uint64_t table_id = 0;
  RuleSlots rule;
  DataType value_type = DataType::kFloat;
  size_t dim = 0;
  size_t slots_per_row = 0;

  void Encode(int64_t* numbers) const {
    numbers[0] = kFormat;
    numbers[1] = static_cast<int64_t>(seed);
    numbers[2] = static_cast<int64_t>(table_id);
    numbers[3] = static_cast<int64_t>(rule.kind);
    std::memcpy(&numbers[4], &rule.initial_value, sizeof(numbers[4]));
    numbers[5] = static_cast<int64_t>(value_type);
    numbers[6] = static_cast<int64_t>(dim);
    numbers[7] = static_cast<int64_t>(slots_per_row);
  }

  static Status Decode(const int64_t* numbers, size_t count, TableMeta* meta) {
    if (count != kNumbers || numbers[0] != kFormat) {
      return Status::InvalidArgument(
          "A saved table must have " + std::to_string(kNumbers) + " meta numbers of format " +
          std::to_string(kFormat) + ". Received: " + std::to_string(count) + " numbers" +
          (count > 0 ? ", format " + std::to_string(numbers[0]) : std::string()) + ".");
    }
    if (numbers[3] < 0 || numbers[3] >= kRuleKinds || numbers[5] < 0 ||
        numbers[5] > static_cast<int64_t>(DataType::kInt64) || numbers[6] < 1) {
      return Status::InvalidArgument(
          "A saved table's meta numbers must name a known rule, value type and dim. Received: "
          "rule=" +
          std::to_string(numbers[3]) + ", value type=" + std::to_string(numbers[5]) +
          ", dim=" + std::to_string(numbers[6]) + ".");
    }
    meta->seed = static_cast<uint64_t>(numbers[1]);
    meta->table_id = static_cast<uint64_t>(numbers[2]);
    meta->rule.kind = static_cast<RuleKind>(numbers[3]);
    std::memcpy(&meta->rule.initial_value, &numbers[4], sizeof(numbers[4]));
    meta->value_type = static_cast<DataType>(numbers[5]);
    meta->dim = static_cast<size_t>(numbers[6]);
    meta->slots_per_row = static_cast<size_t>(numbers[7]);
    const size_t expected = SlotsPerRow(meta->rule.kind, meta->dim);
    if (meta->slots_per_row != expected) {
      return Status::InvalidArgument(
          "A saved table of rule " + std::to_string(numbers[3]) + " and dim " +
          std::to_string(numbers[6]) + " must have " + std::to_string(expected) +
          " slots in a row. Received: " + std::to_string(numbers[7]) + ".");
    }
    return Status();
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_META_H_
