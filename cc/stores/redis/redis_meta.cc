// SPDX-License-Identifier: Apache-2.0
#include "cc/stores/redis/redis_meta.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cc/core/files/table_meta.h"

namespace tf_embed {
namespace {

constexpr int64_t kMagic = 0x7365646952464554;  // "TEFRedis"
constexpr int64_t kFormat = 1;
constexpr size_t kOwnNumbers = 5;

}  // namespace

uint32_t NextGeneration(uint32_t present) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return std::max(present + 1, static_cast<uint32_t>(seconds));
}

RedisMeta RedisMeta::With(const RuleSlots& other) const {
  RedisMeta meta = *this;
  meta.rule = other;
  if (!SameRule(rule, other)) {
    meta.generation = NextGeneration(generation);
    meta.first_rule = other;
  }
  return meta;
}

std::string RedisMeta::Encode() const {
  TableMeta store;
  store.rule = rule;
  store.value_type = value_type;
  store.dim = dim;
  std::vector<int64_t> numbers = {kMagic, kFormat, slices, expires ? 1 : 0, generation};
  for (uint32_t i = 0; i < first_rule.num_groups; ++i) {
    int64_t bits;
    std::memcpy(&bits, &first_rule.groups[i].initial_value, sizeof(bits));
    numbers.push_back(bits);
  }
  numbers.resize(numbers.size() + store.count());
  store.Encode(numbers.data() + numbers.size() - store.count());
  return std::string(reinterpret_cast<const char*>(numbers.data()),
                     numbers.size() * sizeof(int64_t));
}

Status RedisMeta::Decode(std::string_view text, RedisMeta* meta) {
  const auto damaged = [] {
    return Status::DataLoss("It is not of a table of this version of tf_embed.");
  };
  std::vector<int64_t> numbers(text.size() / sizeof(int64_t));
  if (numbers.size() * sizeof(int64_t) != text.size()) return damaged();
  // memcpy requires non-null pointers.
  if (!text.empty()) std::memcpy(numbers.data(), text.data(), text.size());
  // Each group of slots has one number here and two in TableMeta.
  if (numbers.size() < kOwnNumbers + TableMeta::kFixedNumbers || numbers[0] != kMagic ||
      numbers[1] != kFormat) {
    return damaged();
  }
  const size_t groups = (numbers.size() - kOwnNumbers - TableMeta::kFixedNumbers) / 3;
  const size_t begin = kOwnNumbers + groups;
  TableMeta store;
  if (groups > RuleSlots::kMaxGroups || numbers[2] < 1 || numbers[2] > RedisOptions::kMaxSlices ||
      numbers[3] < 0 || numbers[3] > 1 || numbers[4] < 0 || numbers[4] > UINT32_MAX ||
      !TableMeta::Decode(numbers.data() + begin, numbers.size() - begin, &store).ok() ||
      store.rule.num_groups != groups) {
    return damaged();
  }
  meta->value_type = store.value_type;
  meta->dim = store.dim;
  meta->slices = static_cast<uint32_t>(numbers[2]);
  meta->expires = numbers[3] != 0;
  meta->generation = static_cast<uint32_t>(numbers[4]);
  meta->rule = meta->first_rule = store.rule;
  for (size_t i = 0; i < groups; ++i) {
    std::memcpy(&meta->first_rule.groups[i].initial_value, &numbers[kOwnNumbers + i],
                sizeof(double));
  }
  return Status();
}

}  // namespace tf_embed
