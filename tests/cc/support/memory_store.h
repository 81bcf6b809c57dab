// SPDX-License-Identifier: Apache-2.0
// A BackingStore in a map, and tables over it whose cache has room for few rows.
#ifndef TF_EMBED_TESTS_CC_SUPPORT_MEMORY_STORE_H_
#define TF_EMBED_TESTS_CC_SUPPORT_MEMORY_STORE_H_

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/base/hash.h"
#include "cc/core/index/striped_index.h"
#include "cc/core/rows/row_layout.h"
#include "cc/core/rows/stored_slots.h"
#include "cc/core/table/backing_store.h"
#include "cc/device/copying_table.h"
#include "cc/device/device_table.h"
#include "cc/host/host_table.h"
#include "cc/tiered/tiered_table.h"

namespace tf_embed {

class MemoryStore final : public BackingStore {
 public:
  MemoryStore(const TableOptions& options, StatisticSet statistics)
      : options_(options), statistics_(statistics) {}

  // Fails the verbs Get and Put after so many more of them; -1: never.
  void FailAfter(int verbs) {
    const std::lock_guard<std::mutex> lock(mutex_);
    verbs_left_ = verbs;
  }

  size_t size() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return rows_.size();
  }
  size_t shared() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stats_.shared_rows;
  }
  void Contains(const int64_t* keys, size_t count, bool* exists) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < count; ++i) exists[i] = rows_.count(keys[i]) > 0;
  }
  Status Get(const ExecContext&, const int64_t* keys, size_t count, After after,
             WholeRows* rows) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TF_EMBED_RETURN_IF_ERROR(Fault("read"));
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(count, rows));
    for (size_t i = 0; i < count; ++i) {
      const auto found = rows_.find(keys[i]);
      if (found == rows_.end()) continue;
      if (after == After::kShared) Share(&found->second, true);
      Append(found->first, found->second, rows);
    }
    stats_.rows_read += rows->size;
    return Status();
  }
  using BackingStore::Put;
  Status Put(const ExecContext&, const WholeRows& rows, After after) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TF_EMBED_RETURN_IF_ERROR(Fault("written"));
    const RowLayout layout(options_.value_type, options_.dim, rule_);
    try {
      for (size_t i = 0; i < rows.size; ++i) {
        const char* const weights = rows.weights.data() + i * layout.weight_bytes;
        const char* const slots = rows.slots.data() + i * layout.wide_slot_bytes;
        std::vector<char> new_weights(weights, weights + layout.weight_bytes);
        std::vector<char> new_slots(slots, slots + layout.wide_slot_bytes);
        if (rows_.count(rows.keys[i]) == 0) order_[++last_number_] = rows.keys[i];
        Row& row = rows_[rows.keys[i]];
        if (row.number == 0) row.number = last_number_;
        Share(&row, after == After::kShared);
        row.weights.swap(new_weights);
        row.slots.swap(new_slots);
        SetStatistics(rows.statistics.data() + i * statistics_.size(), &row);
      }
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
    stats_.rows_written += rows.size;
    return Status();
  }
  void Unshare(const int64_t* keys, size_t count, const uint64_t* statistics) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      const auto found = rows_.find(keys[i]);
      if (found == rows_.end() || !found->second.shared) continue;
      Share(&found->second, false);
      if (statistics != nullptr) {
        SetStatistics(statistics + i * statistics_.size(), &found->second);
      }
    }
  }
  bool FindStatistics(int64_t key, uint64_t* statistics) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = rows_.find(key);
    if (found == rows_.end() || found->second.shared) return false;
    for (size_t i = 0; i < statistics_.size(); ++i) statistics[i] = found->second.statistics[i];
    return true;
  }
  bool AssignStatistics(int64_t key, StatisticSet set, const uint64_t* statistics) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = rows_.find(key);
    if (found == rows_.end() || found->second.shared) return false;
    RowStatistics row(statistics_, found->second.statistics);
    for (const Statistic statistic : kAllStatistics) {
      if (set.Has(statistic)) row.Set(statistic, statistics[set.IndexOf(statistic)]);
    }
    return true;
  }
  bool TakeForSnapshot(int64_t key, const WantedRows& wanted) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = rows_.find(key);
    if (found == rows_.end() || found->second.shared) return false;
    const size_t word = statistics_.IndexOf(Statistic::kChange);
    return RowChange::Take(&found->second.statistics[word], wanted);
  }
  Status CollectRanks(EvictionOrder order, size_t one_in, const Rank& low, const Rank& high,
                      RankList* ranks, size_t* below) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, row] : rows_) {
      const uint64_t hash = HashKey(key);
      if (row.shared || StripedIndex::StripeOf(hash) % one_in != 0) continue;
      const Rank rank = RankOf(order, StatisticsOf(row), hash);
      if (rank < low) {
        ++*below;
      } else if (rank < high || high == kHighestRank) {
        TF_EMBED_RETURN_IF_ERROR(ranks->Append(rank));
      }
    }
    return Status();
  }
  Status FindExpired(const RowPolicy& policy, const Moment& now, size_t,
                     RankList* expired) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, row] : rows_) {
      if (row.shared || !policy.Expired(StatisticsOf(row), now)) continue;
      TF_EMBED_RETURN_IF_ERROR(expired->Append(Rank(0, HashKey(key))));
    }
    return Status();
  }
  void Erase(const int64_t* keys, size_t count) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      const auto found = rows_.find(keys[i]);
      if (found == rows_.end()) continue;
      Share(&found->second, false);
      order_.erase(found->second.number);
      rows_.erase(found);
    }
  }
  using BackingStore::Scan;
  Status Scan(size_t max_rows, const WantedRows&, ExportCursor* cursor,
              WholeRows* rows) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    max_rows = std::max<size_t>(1, max_rows);
    TF_EMBED_RETURN_IF_ERROR(MakeRoom(std::min(max_rows, rows_.size()), rows));
    // Rows come in the order in which their keys did.
    auto next = order_.lower_bound(cursor->next);
    for (; next != order_.end() && rows->size < max_rows; ++next) {
      const auto row = rows_.find(next->second);
      if (row != rows_.end() && !row->second.shared) Append(row->first, row->second, rows);
    }
    cursor->done = next == order_.end();
    if (!cursor->done) cursor->next = next->first;
    return Status();
  }
  using BackingStore::SetRule;
  Status SetRule(const RuleSlots& rule, const std::function<Status()>& change_cache) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::vector<char>> each;
    try {
      if (!SameRule(rule_, rule)) each.assign(rows_.size(), InitialSlots(rule));
    } catch (const std::bad_alloc&) {
      return NoMemory();
    }
    TF_EMBED_RETURN_IF_ERROR(change_cache());
    auto next = each.begin();
    for (auto row = rows_.begin(); next != each.end(); ++row) row->second.slots.swap(*next++);
    rule_ = rule;
    return Status();
  }
  Status Clear() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    rows_.clear();
    order_.clear();
    stats_.shared_rows = 0;
    return Status();
  }
  Status Compact(const ExecContext&) override { return Status(); }
  BackingStoreStats Stats() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    BackingStoreStats stats = stats_;
    stats.rows = rows_.size();
    return stats;
  }
  const std::string& name() const override { return name_; }

 private:
  struct Row {
    std::vector<char> weights, slots;
    mutable RowStatistics::Word statistics[StatisticSet::kMax] = {};
    bool shared = false;
    uint64_t number = 0;  // in the order in which keys came
  };

  RowStatistics StatisticsOf(const Row& row) const {
    return RowStatistics(statistics_, row.statistics);
  }
  void SetStatistics(const uint64_t* words, Row* row) const {
    for (size_t i = 0; i < statistics_.size(); ++i) row->statistics[i] = words[i];
  }

  Status Fault(const char* what) {
    if (verbs_left_ < 0 || verbs_left_-- > 0) return Status();
    verbs_left_ = 0;
    return Status::Unavailable(name_ + " can't be " + what + ".");
  }
  std::vector<char> InitialSlots(RuleSlots rule) const {
    const RowLayout layout(options_.value_type, options_.dim, rule.slots_per_row());
    std::vector<char> slots(layout.slot_bytes);
    for (uint32_t i = 0; i < rule.num_groups; ++i) rule.groups[i].type = SlotType::kCompute;
    DispatchSlots(options_.value_type, [&](auto tag) {
      StoreInitialSlots<typename decltype(tag)::Type>(rule, slots.data());
    });
    return slots;
  }
  static Status NoMemory() {
    return Status::ResourceExhausted([] { return "No memory in the map of a test."; });
  }
  Status MakeRoom(size_t count, WholeRows* rows) const {
    const RowLayout layout(options_.value_type, options_.dim, rule_);
    rows->size = 0;
    return rows->Resize(count, layout.weight_bytes, layout.wide_slot_bytes, statistics_.size());
  }
  void Share(Row* row, bool shared) {
    stats_.shared_rows += (shared ? 1 : 0) - (row->shared ? 1 : 0);
    row->shared = shared;
  }
  void Append(int64_t key, const Row& row, WholeRows* rows) const {
    const size_t i = rows->size++;
    rows->keys[i] = key;
    std::copy(row.weights.begin(), row.weights.end(),
              rows->weights.data() + i * row.weights.size());
    std::copy(row.slots.begin(), row.slots.end(), rows->slots.data() + i * row.slots.size());
    std::copy_n(row.statistics, statistics_.size(),
                rows->statistics.data() + i * statistics_.size());
  }

  const TableOptions options_;
  const StatisticSet statistics_;
  const std::string name_ = "the map of a test";
  mutable std::mutex mutex_;
  RuleSlots rule_;
  std::map<int64_t, Row> rows_;
  std::map<uint64_t, int64_t> order_;  // keys by the numbers of their rows
  uint64_t last_number_ = 0;
  BackingStoreStats stats_;
  int verbs_left_ = -1;
};

// A table over a MemoryStore, which `store` points to if it is given, with a cache of `cache_rows`
// rows of three slots a weight; so without slots there is room for more.
inline Status NewHostCache(const TableOptions& options, std::unique_ptr<Table>* cache) {
  *cache = HostTable::Create(options);
  return *cache != nullptr ? Status() : NoMemoryForRow(options.name, 0);
}

// A cache in the memory of a device that is the host.
inline Status NewDeviceCache(const TableOptions& options, std::unique_ptr<Table>* cache) {
  std::unique_ptr<Table> on_device;
  TF_EMBED_RETURN_IF_ERROR(NewEmulatedDeviceTable(options, DeviceOptions(), &on_device));
  *cache = NewCopyingTable(std::move(on_device), EmulatedDeviceMemory());
  return Status();
}

using NewCache = Status (*)(const TableOptions& options, std::unique_ptr<Table>* cache);

inline std::unique_ptr<TieredTable> NewTieredTable(const TableOptions& options, size_t cache_rows,
                                                   MemoryStore** store = nullptr,
                                                   NewCache new_cache = NewHostCache) try {
  const size_t words = options.policy.WithNeeds().statistics.size();
  const RowLayout layout(options.value_type, options.dim, 3 * options.dim, words);
  TierOptions tiers;
  tiers.cache_bytes = cache_rows * (layout.stride + words * sizeof(uint64_t) + 1);
  tiers.new_cache = new_cache;
  tiers.new_store = [options, store](StatisticSet statistics, std::unique_ptr<BackingStore>* made) {
    auto memory = std::make_unique<MemoryStore>(options, statistics);
    if (store != nullptr && *store == nullptr) *store = memory.get();
    *made = std::move(memory);
    return Status();
  };
  std::unique_ptr<TieredTable> table;
  if (!TieredTable::Create(options, tiers, &table).ok()) return nullptr;
  return table;
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace tf_embed

#endif  // TF_EMBED_TESTS_CC_SUPPORT_MEMORY_STORE_H_
