// SPDX-License-Identifier: Apache-2.0
// The description of a table without its rows, as a checkpoint stores it: a vector of int64
// numbers.
//
//     | format = 2 | seed | table id | rule kind | rule id | value type | dim | slots of a row |
//     | number of slot groups | width + (slot type << 32), initial value (bits of a double) of each
//     group ... |
//
// Slot types describe the rows of the saved table. The slots themselves are always saved in the
// compute type.
#ifndef TF_EMBED_CC_CORE_FILES_TABLE_META_H_
#define TF_EMBED_CC_CORE_FILES_TABLE_META_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "cc/core/base/data_type.h"
#include "cc/core/base/status.h"
#include "cc/core/rules/rule_list.h"

namespace tf_embed {

struct TableMeta {
  static constexpr int64_t kFormat = 2;
  static constexpr size_t kFixedNumbers = 9;
  static constexpr size_t kMaxNumbers = kFixedNumbers + 2 * RuleSlots::kMaxGroups;
  static constexpr int64_t kMaxDim = INT32_MAX;
  static constexpr int kTypeShift = 32;

  // The most slots of a row that an external rule may ask for, of any table. A description with
  // more is refused before memory is allocated for it.
  static constexpr size_t MostSlots(size_t dim) {
    return RuleSlots::kMaxGroups * std::max<size_t>(dim, 4096);
  }

  uint64_t seed = 0;
  uint64_t table_id = 0;
  RuleSlots rule;
  DataType value_type = DataType::kFloat;
  size_t dim = 0;

  // The number of numbers that Encode writes.
  size_t count() const { return kFixedNumbers + 2 * rule.num_groups; }

  void Encode(int64_t* numbers) const {
    numbers[0] = kFormat;
    numbers[1] = static_cast<int64_t>(seed);
    numbers[2] = static_cast<int64_t>(table_id);
    numbers[3] = static_cast<int64_t>(rule.kind);
    numbers[4] = static_cast<int64_t>(rule.id);
    numbers[5] = static_cast<int64_t>(value_type);
    numbers[6] = static_cast<int64_t>(dim);
    numbers[7] = static_cast<int64_t>(rule.slots_per_row());
    numbers[8] = rule.num_groups;
    for (uint32_t i = 0; i < rule.num_groups; ++i) {
      int64_t* const group = numbers + kFixedNumbers + 2 * i;
      group[0] = rule.groups[i].width + (static_cast<int64_t>(rule.groups[i].type) << kTypeShift);
      std::memcpy(&group[1], &rule.groups[i].initial_value, sizeof(group[1]));
    }
  }

  // Reads the output of Encode. Any other numbers are refused.
  static Status Decode(const int64_t* numbers, size_t count, TableMeta* meta) {
    if (count < kFixedNumbers) {
      return Damaged("at least " + std::to_string(kFixedNumbers) + " numbers", "count",
                     static_cast<int64_t>(count));
    }
    const auto check = [&](bool good, const char* wanted, size_t place) {
      return good ? Status() : Damaged(wanted, "number " + std::to_string(place), numbers[place]);
    };
    const int64_t groups = numbers[8];
    TF_EMBED_RETURN_IF_ERROR(check(numbers[0] == kFormat, "format 2", 0));
    TF_EMBED_RETURN_IF_ERROR(check(numbers[3] >= 0 && numbers[3] < kRuleKinds, "a known rule", 3));
    TF_EMBED_RETURN_IF_ERROR(
        check(numbers[5] >= 0 && numbers[5] <= static_cast<int64_t>(kLastDataType),
              "a known value type", 5));
    TF_EMBED_RETURN_IF_ERROR(check(numbers[6] >= 1 && numbers[6] <= kMaxDim, "a dim", 6));
    TF_EMBED_RETURN_IF_ERROR(
        check(groups >= 0 && groups <= static_cast<int64_t>(RuleSlots::kMaxGroups),
              "at most 16 slot groups", 8));
    if (count != kFixedNumbers + 2 * static_cast<size_t>(groups)) {
      return Damaged("two numbers for each slot group", "count", static_cast<int64_t>(count));
    }
    TableMeta read;
    read.seed = static_cast<uint64_t>(numbers[1]);
    read.table_id = static_cast<uint64_t>(numbers[2]);
    read.rule.kind = static_cast<RuleKind>(numbers[3]);
    read.rule.id = static_cast<uint64_t>(numbers[4]);
    read.value_type = static_cast<DataType>(numbers[5]);
    read.dim = static_cast<size_t>(numbers[6]);
    for (size_t place = kFixedNumbers; place < count; place += 2) {
      const int64_t width = numbers[place] & INT32_MAX;
      const int64_t type = numbers[place] >> kTypeShift;
      TF_EMBED_RETURN_IF_ERROR(check(numbers[place] == type * (int64_t{1} << kTypeShift) + width &&
                                         width >= 1 && type >= 0 &&
                                         type <= static_cast<int64_t>(kLastSlotType),
                                     "a width and a known type of a slot group", place));
      double initial_value;
      std::memcpy(&initial_value, &numbers[place + 1], sizeof(initial_value));
      read.rule.AddGroup(static_cast<size_t>(width), initial_value, static_cast<SlotType>(type));
    }
    TF_EMBED_RETURN_IF_ERROR(check(static_cast<size_t>(numbers[7]) == read.rule.slots_per_row(),
                                   "as many slots in a row as its groups have", 7));
    if (read.rule.kind == RuleKind::kExternal) {
      TF_EMBED_RETURN_IF_ERROR(check(read.rule.slots_per_row() <= MostSlots(read.dim),
                                     "no more slots than a rule may have", 7));
    } else {
      TF_EMBED_RETURN_IF_ERROR(check(SameRule(read.rule, FusedSlots(read.rule.kind, read.dim)),
                                     "the slot groups of its rule", 3));
    }
    *meta = read;
    return Status();
  }

 private:
  static Status Damaged(const std::string& wanted, const std::string& what, int64_t received) {
    return Status::InvalidArgument(
        "The meta numbers of a saved table are damaged or of another version: they must have " +
        wanted + ". Received: " + what + " = " + std::to_string(received) + ".");
  }
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_FILES_TABLE_META_H_
