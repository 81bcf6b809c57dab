// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/table_policy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cc/tf/settings_text.h"
#include "cc/tf/table_resource.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Doubles at least, as push_back does: a vector that is given room for each batch alone is copied
// by each.
template <typename T>
void MakeRoomFor(size_t count, std::vector<T>* values) {
  const size_t needed = values->size() + count;
  if (needed > values->capacity()) values->reserve(std::max(needed, 2 * values->capacity()));
}

}  // namespace

absl::Status ReadEvictionOrder(tf::OpKernelConstruction* construction, const char* name,
                               EvictionOrder* order) {
  std::string wanted;
  TF_RETURN_IF_ERROR(construction->GetAttr(name, &wanted));
  if (FindByName(kEvictionOrderNames, wanted, order)) return absl::OkStatus();
  return InvalidArgumentError("`", name, "` must be a known order. Received: ", wanted, ".");
}

void PolicySettings::Read(SettingsText* text) {
  ForEachField(*this, [text](const char* name, auto& field, auto... least) {
    text->Read(name, &field, least...);
  });
}

absl::Status PolicySettings::Check(int64_t num_shards) const {
  EvictionOrder order;
  if (eviction != "none" && !FindByName(kEvictionOrderNames, eviction, &order)) {
    return InvalidArgumentError("`eviction` must be a known order. Received: ", eviction, ".");
  }
  if (admission != "none" && admission != "counter" && admission != "bloom") {
    return InvalidArgumentError(
        "`admission` must be 'none', 'counter' or 'bloom'. Received: ", admission, ".");
  }
  if (statistics != StatisticSet::OfBits(static_cast<uint8_t>(statistics)).bits()) {
    return InvalidArgumentError("`statistics` must be from 0 to ", (1 << StatisticSet::kMax) - 1,
                                ". Received: ", statistics, ".");
  }
  // A shard with a bound of 0 would count as unbounded.
  if (max_rows > 0 && max_rows < num_shards) {
    return InvalidArgumentError("`max_rows` must be at least one row for each of ", num_shards,
                                " shards. Received: ", max_rows, ".");
  }
  const int64_t most = admission == "bloom" ? UINT16_MAX : UINT32_MAX;
  if (admission_threshold > most) {
    return InvalidArgumentError("`admission_threshold` must be at most ", most,
                                ". Received: ", admission_threshold, ".");
  }
  // Written so that NaN fails too.
  if (!(admission_error_rate > 0.0f && admission_error_rate < 1.0f)) {
    return InvalidArgumentError(
        "`admission_error_rate` must be between 0 and 1. Received: ", admission_error_rate, ".");
  }
  return absl::OkStatus();
}

std::string PolicySettings::DebugString() const {
  std::string text;
  ForEachField(*this, [&text](const char* name, const auto& field, auto...) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ");
    if constexpr (std::is_same_v<decltype(field), const float&>) {
      text += ExactText(field);
    } else {
      absl::StrAppend(&text, field);
    }
  });
  return text;
}

absl::Status PolicySettings::NewAdmission(Allocator* allocator,
                                          std::shared_ptr<Admission>* made) const {
  made->reset();
  if (admission == "none") return absl::OkStatus();
  const uint32_t threshold = static_cast<uint32_t>(admission_threshold);
  const size_t max_keys = static_cast<size_t>(admission_max_keys);
  *made = admission == "counter"
              ? Admission::NewCounter(allocator, threshold, max_keys)
              : Admission::NewBloom(allocator, threshold, admission_error_rate, max_keys);
  if (*made != nullptr) return absl::OkStatus();
  return ResourceExhaustedError("No memory to count the keys that wait for a row.");
}

RowPolicy PolicySettings::ForShard(int64_t shard, int64_t num_shards,
                                   std::shared_ptr<Admission> shared, EvictionSink* sink) const {
  RowPolicy policy;
  policy.statistics = StatisticSet::OfBits(static_cast<uint8_t>(statistics));
  // The first shards have a row more, so the bounds add up to max_rows exactly.
  policy.max_rows =
      static_cast<size_t>(max_rows / num_shards + (shard < max_rows % num_shards ? 1 : 0));
  // Without an order the default stays: a restore of more rows than the bound goes by it.
  policy.evicts = FindByName(kEvictionOrderNames, eviction, &policy.eviction);
  policy.ttl_milliseconds = static_cast<uint64_t>(ttl_milliseconds);
  policy.admission = std::move(shared);
  policy.sink = sink;
  return policy;
}

Moment StepClock::At(uint64_t step) const {
  Moment now;
  now.step = step;
  now.epoch = EpochOf(now.step);
  const int64_t time = time_.load(std::memory_order_relaxed);
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  now.milliseconds = static_cast<uint64_t>(
      time >= 0 ? time : std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
  return now;
}

uint64_t StepClock::EpochOf(uint64_t step) const {
  const int64_t epoch = EpochsBefore(step) + epochs_ahead_.load(std::memory_order_relaxed);
  return std::min(static_cast<uint64_t>(std::max<int64_t>(epoch, 0)), kMaxEpoch);
}

std::vector<int64_t> SavedPolicy::Encode() const {
  const bool has_epochs = statistics.Has(Statistic::kEpoch);
  std::vector<int64_t> numbers = {has_epochs ? 2 : 1, static_cast<int64_t>(step),
                                  statistics.bits()};
  if (has_epochs) numbers.push_back(static_cast<int64_t>(epoch));
  numbers.insert(numbers.end(), admission.begin(), admission.end());
  return numbers;
}

absl::Status SavedPolicy::Decode(const int64_t* numbers, size_t count, SavedPolicy* saved) {
  // The format tells whether there is an epoch.
  const bool has_epochs = count > 3 && numbers[0] == 2;
  const size_t fixed_numbers = has_epochs ? 4 : 3;
  if (count < 3 || numbers[0] != (has_epochs ? 2 : 1) || numbers[1] < 0 ||
      numbers[1] > StepClock::kMaxStep || numbers[2] < 0 ||
      numbers[2] != StatisticSet::OfBits(static_cast<uint8_t>(numbers[2])).bits() ||
      StatisticSet::OfBits(static_cast<uint8_t>(numbers[2])).Has(Statistic::kEpoch) != has_epochs ||
      (has_epochs && (numbers[3] < 0 || numbers[3] > static_cast<int64_t>(kMaxEpoch)))) {
    return InvalidArgumentError("The saved policy is damaged, or of an unknown format. It has ",
                                count, " numbers.");
  }
  saved->step = static_cast<uint64_t>(numbers[1]);
  saved->statistics = StatisticSet::OfBits(static_cast<uint8_t>(numbers[2]));
  saved->epoch = has_epochs ? static_cast<uint64_t>(numbers[3]) : 0;
  saved->admission.assign(numbers + fixed_numbers, numbers + count);
  return absl::OkStatus();
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

EvictionLog::EvictionLog(const TableResource* table, const StoreOptions& options, bool keeps_rows)
    : table_(table),
      allocator_(options.allocator),
      row_bytes_(options.dim * SizeOf(options.value_type)),
      keeps_rows_(keeps_rows),
      rows_(allocator_) {}

Status EvictionLog::Evict(const WholeRows& rows, const RuleSlots&) {
  const size_t count = rows.size;
  const int64_t* const keys = rows.keys.data();
  const char* const weights = rows.weights.data();
  const auto string_of = [](const StringKeys& dictionary, int64_t number) {
    return std::string(dictionary.StringOf(number));
  };
  std::lock_guard<OrderedMutex> lock(mutex_);
  try {  // allocate first: nothing may fail after this
    std::vector<std::string> key_strings, value_strings;
    if (const StringKeys* const dictionary = table_->key_strings()) {
      MakeRoomFor(count, &string_keys_);
      for (size_t i = 0; keeps_rows_ && i < count; ++i) {
        // Copied now: the dictionary drops the string once its row is gone, and the log is drained
        // later.
        key_strings.push_back(string_of(*dictionary, keys[i]));
      }
      MakeRoomFor(key_strings.size(), &rows_.key_strings);
    }
    if (const StringKeys* const dictionary = table_->value_strings()) {
      const int64_t* const numbers = reinterpret_cast<const int64_t*>(weights);
      for (size_t i = 0; keeps_rows_ && i < count * table_->dim(); ++i) {
        value_strings.push_back(string_of(*dictionary, numbers[i]));
      }
      MakeRoomFor(value_strings.size(), &rows_.value_strings);
    }
    if (keeps_rows_) {
      TF_EMBED_RETURN_IF_ERROR(MakeRoom(count));
      KeepNumbers(count, keys, weights);
    }
    if (table_->key_strings() != nullptr) {
      string_keys_.insert(string_keys_.end(), keys, keys + count);
    }
    std::move(key_strings.begin(), key_strings.end(), std::back_inserter(rows_.key_strings));
    std::move(value_strings.begin(), value_strings.end(), std::back_inserter(rows_.value_strings));
    return Status();
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted([] { return "No memory to log rows that leave a table."; });
  }
}

Status EvictionLog::MakeRoom(size_t count) {
  if (rows_.size + count <= rows_.keys.size()) return Status();
  const size_t room = std::max(rows_.size + count, 2 * rows_.size);
  Buffer<int64_t> more_keys(allocator_);
  Buffer<char> more_weights(allocator_);
  TF_EMBED_RETURN_IF_ERROR(more_keys.Resize(room));
  TF_EMBED_RETURN_IF_ERROR(more_weights.Resize(room * row_bytes_));
  if (rows_.size > 0) {
    std::memcpy(more_keys.data(), rows_.keys.data(), rows_.size * sizeof(int64_t));
    std::memcpy(more_weights.data(), rows_.weights.data(), rows_.size * row_bytes_);
  }
  rows_.keys = std::move(more_keys);
  rows_.weights = std::move(more_weights);
  return Status();
}

void EvictionLog::KeepNumbers(size_t count, const int64_t* keys, const char* weights) {
  if (count == 0) return;
  std::memcpy(rows_.keys.data() + rows_.size, keys, count * sizeof(int64_t));
  std::memcpy(rows_.weights.data() + rows_.size * row_bytes_, weights, count * row_bytes_);
  rows_.size += count;
}

size_t EvictionLog::size() const {
  std::lock_guard<OrderedMutex> lock(mutex_);
  return rows_.size;
}

}  // namespace tf_embed
