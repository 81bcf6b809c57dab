// SPDX-License-Identifier: Apache-2.0
// What a table in Redis is besides its rows, as the server keeps it: the kind of rows, where they
// are, and the rule whose slots they have. All processes with the table go by it.
//
// Each row names the generation of the rule that its slots are of. Another rule is another
// generation, so to change the rule takes one write: slots of an earlier generation are no longer
// read, and count as initial ones.
#ifndef TF_EMBED_CC_REDIS_REDIS_META_H_
#define TF_EMBED_CC_REDIS_REDIS_META_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "cc/core/base/data_type.h"
#include "cc/core/base/status.h"
#include "cc/core/rules/rule_slots.h"
#include "cc/redis/redis_options.h"

namespace tf_embed {

struct RedisMeta {
  DataType value_type = DataType::kFloat;
  size_t dim = 0;
  uint32_t slices = 1;
  bool expires = false;     // rows are keys of their own, else fields of a hash for each slice
  uint32_t generation = 0;  // of the rule
  RuleSlots rule;
  RuleSlots first_rule;  // with the initial values that the generation began with

  // That of the next generation, or with the same slots and other initial values or types.
  RedisMeta With(const RuleSlots& other) const;

  std::string Encode() const;
  // `text` as Encode wrote it. Whatever else it is, it is refused.
  static Status Decode(std::string_view text, RedisMeta* meta);
};

// A generation that comes after all earlier ones of a table, even if its meta was lost.
uint32_t NextGeneration(uint32_t present);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_REDIS_REDIS_META_H_
