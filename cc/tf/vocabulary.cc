// SPDX-License-Identifier: Apache-2.0
// The names shared by the engine and Python, as JSON. Read by `_library.vocabulary()`.
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/policy/eviction_order.h"
#include "cc/core/pooling/bags.h"
#include "cc/core/rules/rule_list.h"
#include "cc/core/store/store_stats.h"
#include "cc/ops/key_types.h"

namespace tf_embed {
namespace {

// Names and numbers need no escapes.
std::string Quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

std::string List(const std::vector<std::string_view>& names) {
  std::string json;
  for (const std::string_view name : names) json += (json.empty() ? "" : ", ") + Quoted(name);
  return "[" + json + "]";
}

// A JSON object of names and JSON values.
std::string Object(const std::vector<std::pair<std::string_view, std::string>>& members) {
  std::string json;
  for (const auto& [name, value] : members) {
    json += (json.empty() ? "" : ", ") + Quoted(name) + ": " + value;
  }
  return "{" + json + "}";
}

std::string Rules() {
  std::vector<std::pair<std::string_view, std::string>> rules;
  for (const RuleFacts& rule : kRules) {
    rules.emplace_back(rule.name, Object({{"number", std::to_string(static_cast<int>(rule.kind))},
                                          {"hyper", List(HyperNames(rule))},
                                          {"wide_slots", std::to_string(rule.wide_slots)},
                                          {"row_slots", std::to_string(rule.row_slots)}}));
  }
  return Object(rules);
}

template <typename Enum, size_t kCount>
std::string Names(const NamedValue<Enum> (&list)[kCount]) {
  std::vector<std::string_view> names;
  for (const NamedValue<Enum>& known : list) names.push_back(known.name);
  return List(names);
}

// The statistics used by each eviction order.
std::string EvictionOrders() {
  std::vector<std::pair<std::string_view, std::string>> orders;
  for (const NamedValue<EvictionOrder>& order : kEvictionOrderNames) {
    std::vector<std::string_view> statistics;
    for (const NamedValue<Statistic>& statistic : kStatisticNames) {
      if (StatisticsOf(order.value).Has(statistic.value)) statistics.push_back(statistic.name);
    }
    orders.emplace_back(order.name, List(statistics));
  }
  return Object(orders);
}

// The bit of each statistic.
std::string Statistics() {
  std::vector<std::pair<std::string_view, std::string>> statistics;
  for (const NamedValue<Statistic>& statistic : kStatisticNames) {
    statistics.emplace_back(statistic.name, std::to_string(static_cast<int>(statistic.value)));
  }
  return Object(statistics);
}

std::string Stats() {
  std::vector<std::string_view> names;
  for (const StoreStat& stat : kStoreStats) names.push_back(stat.name);
  return List(names);
}

std::string Vocabulary() {
  return Object({{"change_bit", std::to_string(static_cast<int>(Statistic::kChange))},
                 {"combiners", Names(kCombinerNames)},
                 {"eviction_orders", EvictionOrders()},
                 {"key_types", List({std::begin(kKeyTypeNames), std::end(kKeyTypeNames)})},
                 {"rules", Rules()},
                 {"statistics", Statistics()},
                 {"stats", Stats()}});
}

}  // namespace
}  // namespace tf_embed

extern "C" __attribute__((visibility("default"))) const char* TfEmbedVocabulary() {
  // Never freed: Python may still read it while the process exits.
  static const std::string* const json = new std::string(tf_embed::Vocabulary());
  return json->c_str();
}
