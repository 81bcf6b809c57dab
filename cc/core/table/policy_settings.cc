// SPDX-License-Identifier: Apache-2.0
#include "cc/core/table/policy_settings.h"

#include <charconv>
#include <utility>

#include "cc/core/table/step_clock.h"

namespace tf_embed {
namespace {

// The shortest text that reads as the same number.
template <typename Number>
std::string TextOf(Number number) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}
std::string TextOf(bool flag) { return flag ? "1" : "0"; }
std::string TextOf(const std::string& text) { return text; }

// An error about a setting.
template <typename Value>
Status Wrong(const char* name, const std::string& wanted, const Value& received) {
  return Status::InvalidArgument("`" + std::string(name) + "` must be " + wanted +
                                 ". Received: " + TextOf(received) + ".");
}

}  // namespace

Status PolicySettings::Check(size_t num_shards) const {
  EvictionOrder order;
  if (eviction != "none" && !FindByName(kEvictionOrderNames, eviction, &order)) {
    return Wrong("eviction", "a known order", eviction);
  }
  if (admission != "none" && admission != "counter" && admission != "bloom") {
    return Wrong("admission", "'none', 'counter' or 'bloom'", admission);
  }
  if (statistics != kept_statistics().bits()) {
    return Wrong("statistics", "from 0 to " + TextOf((1 << StatisticSet::kMax) - 1), statistics);
  }
  // A shard with a bound of 0 would count as unbounded.
  if (max_rows > 0 && static_cast<uint64_t>(max_rows) < num_shards) {
    return Wrong("max_rows", "at least one row for each of " + TextOf(num_shards) + " shards",
                 max_rows);
  }
  const int64_t most = admission == "bloom" ? UINT16_MAX : UINT32_MAX;
  if (admission_threshold > most) {
    return Wrong("admission_threshold", "at most " + TextOf(most), admission_threshold);
  }
  // Written so that NaN fails too.
  if (!(admission_error_rate > 0.0f && admission_error_rate < 1.0f)) {
    return Wrong("admission_error_rate", "between 0 and 1", admission_error_rate);
  }
  return Status();
}

std::string PolicySettings::DebugString() const {
  std::string text;
  ForEachField(*this, [&text](const char* name, const auto& field, auto...) {
    text += std::string(text.empty() ? "" : ", ") + name + " " + TextOf(field);
  });
  return text;
}

Status PolicySettings::NewAdmission(Allocator* allocator, std::shared_ptr<Admission>* made) const {
  made->reset();
  if (admission == "none") return Status();
  const uint32_t threshold = static_cast<uint32_t>(admission_threshold);
  const size_t max_keys = static_cast<size_t>(admission_max_keys);
  *made = admission == "counter"
              ? Admission::NewCounter(allocator, threshold, max_keys)
              : Admission::NewBloom(allocator, threshold, admission_error_rate, max_keys);
  if (*made != nullptr) return Status();
  return Status::ResourceExhausted(
      [] { return std::string("No memory to count the keys that wait for a row."); });
}

RowPolicy PolicySettings::ForShard(size_t shard, size_t num_shards,
                                   std::shared_ptr<Admission> shared, EvictionSink* sink) const {
  RowPolicy policy;
  policy.statistics = kept_statistics();
  // The first shards have a row more, so the bounds add up to max_rows exactly.
  const size_t bound = static_cast<size_t>(max_rows);
  policy.max_rows = bound / num_shards + (shard < bound % num_shards ? 1 : 0);
  // Without an order the default stays: a restore of more rows than the bound goes by it.
  policy.evicts = FindByName(kEvictionOrderNames, eviction, &policy.eviction);
  policy.ttl_milliseconds = static_cast<uint64_t>(ttl_milliseconds);
  policy.admission = std::move(shared);
  policy.sink = sink;
  return policy;
}

std::vector<int64_t> SavedPolicy::Encode() const {
  const bool has_epochs = statistics.Has(Statistic::kEpoch);
  std::vector<int64_t> numbers = {has_epochs ? 2 : 1, static_cast<int64_t>(step),
                                  statistics.bits()};
  if (has_epochs) numbers.push_back(static_cast<int64_t>(epoch));
  numbers.insert(numbers.end(), admission.begin(), admission.end());
  return numbers;
}

Status SavedPolicy::Decode(const int64_t* numbers, size_t count, SavedPolicy* saved) {
  // The format tells whether there is an epoch.
  const bool has_epochs = count > 3 && numbers[0] == 2;
  const size_t fixed_numbers = has_epochs ? 4 : 3;
  if (count < 3 || numbers[0] != (has_epochs ? 2 : 1) || numbers[1] < 0 ||
      numbers[1] > StepClock::kMaxStep || numbers[2] < 0 ||
      numbers[2] != StatisticSet::OfBits(static_cast<uint8_t>(numbers[2])).bits() ||
      StatisticSet::OfBits(static_cast<uint8_t>(numbers[2])).Has(Statistic::kEpoch) != has_epochs ||
      (has_epochs && (numbers[3] < 0 || numbers[3] > static_cast<int64_t>(kMaxEpoch)))) {
    return Status::InvalidArgument("The saved policy is damaged, or of an unknown format. It has " +
                                   TextOf(count) + " numbers.");
  }
  saved->step = static_cast<uint64_t>(numbers[1]);
  saved->statistics = StatisticSet::OfBits(static_cast<uint8_t>(numbers[2]));
  saved->epoch = has_epochs ? static_cast<uint64_t>(numbers[3]) : 0;
  saved->admission.assign(numbers + fixed_numbers, numbers + count);
  return Status();
}

bool SavedPolicy::CountsFor(const PolicySettings& policy) const {
  if (admission.empty()) return false;
  if (admission[0] == static_cast<int64_t>(Admission::Kind::kCounter)) {
    return policy.admission == "counter";
  }
  // A filter's cells are just wide enough for its own threshold.
  return policy.admission == "bloom" && admission.size() > 1 &&
         admission[1] == policy.admission_threshold;
}

}  // namespace tf_embed
