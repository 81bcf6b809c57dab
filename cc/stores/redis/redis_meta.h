// SPDX-License-Identifier: Apache-2.0
// Metadata of a Redis store, kept on the server: the kind of rows, their layout, and the rule of
// their slots. All processes that share the store follow it.
//
// Each row names the rule generation of its slots. A new rule is a new generation, so a rule change
// takes one write. Slots of an earlier generation are not read: such rows have initial slots.
#ifndef TF_EMBED_CC_STORES_REDIS_REDIS_META_H_
#define TF_EMBED_CC_STORES_REDIS_REDIS_META_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "cc/core/base/data_type.h"
#include "cc/core/base/status.h"
#include "cc/core/rules/rule_slots.h"
#include "cc/stores/redis/redis_options.h"

namespace tf_embed {

struct RedisMeta {
  DataType value_type = DataType::kFloat;
  size_t dim = 0;
  uint32_t slices = 1;
  bool expires = false;     // rows are separate keys; otherwise fields of a hash per slice
  uint32_t generation = 0;  // of the rule
  RuleSlots rule;
  RuleSlots first_rule;  // with the initial values at the start of the generation

  // Metadata with another rule. A rule with different slots starts a new generation. Different
  // initial values or types do not.
  RedisMeta With(const RuleSlots& other) const;

  std::string Encode() const;
  // Decodes the output of Encode. Rejects any other text.
  static Status Decode(std::string_view text, RedisMeta* meta);
};

// A generation later than all earlier generations of a store, even if its metadata was lost.
uint32_t NextGeneration(uint32_t present);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_STORES_REDIS_REDIS_META_H_
