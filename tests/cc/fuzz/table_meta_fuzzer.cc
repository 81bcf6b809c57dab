// SPDX-License-Identifier: Apache-2.0
// The metadata of a table, as numbers in a checkpoint and in Redis.
#include <string>
#include <string_view>
#include <vector>

#include "cc/core/files/table_meta.h"
#include "cc/stores/redis/redis_meta.h"
#include "tests/cc/fuzz/target.h"
#include "tests/cc/fuzz/tools.h"

namespace tf_embed::fuzz {
namespace {

bool ReadMeta(std::string_view bytes) {
  const std::vector<int64_t> numbers = NumbersOf(bytes);
  TableMeta meta;
  if (!TableMeta::Decode(numbers.data(), numbers.size(), &meta).ok()) return false;
  std::vector<int64_t> again(meta.count());
  meta.Encode(again.data());
  Require(again == numbers, "a meta that is taken is what it would be written as");
  Require(meta.rule.slots_per_row() <= TableMeta::MostSlots(meta.dim), "slots are bounded");
  return bytes.size() % sizeof(int64_t) == 0;
}

bool ReadRedisMeta(std::string_view bytes) {
  RedisMeta meta;
  if (!RedisMeta::Decode(bytes, &meta).ok()) return false;
  RedisMeta again;
  Require(RedisMeta::Decode(meta.Encode(), &again).ok(), "a meta can be written again");
  Require(again.Encode() == meta.Encode(), "a meta is written in one way");
  Require(meta.slices >= 1 && meta.slices <= RedisOptions::kMaxSlices, "slices are bounded");
  return true;
}

}  // namespace

bool Read(std::string_view bytes) {
  const bool taken = ReadMeta(bytes);
  return ReadRedisMeta(bytes) || taken;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const RuleKind kind : {RuleKind::kNone, RuleKind::kAdam, RuleKind::kAdagrad}) {
    TableMeta meta;
    meta.seed = 7;
    meta.dim = 5;
    meta.rule = FusedSlots(kind, meta.dim, 0.5);
    std::vector<int64_t> numbers(meta.count());
    meta.Encode(numbers.data());
    seeds.push_back(BytesOf(numbers));
    RedisMeta redis;
    redis.dim = meta.dim;
    redis.slices = 3;
    redis.generation = 9;
    redis.rule = redis.first_rule = meta.rule;
    seeds.push_back(redis.Encode());
  }
  return seeds;
}

}  // namespace tf_embed::fuzz
