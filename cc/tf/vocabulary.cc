// The names that the engine and Python have in common, as JSON. `_library.vocabulary()` reads it.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/rules/rule_list.h"

namespace tf_embed {
namespace {

// Names and numbers need no escapes.
std::string Text(std::string_view name) { return "\"" + std::string(name) + "\""; }

std::string List(const std::vector<std::string_view>& names) {
  std::string json;
  for (const std::string_view name : names) json += (json.empty() ? "" : ", ") + Text(name);
  return "[" + json + "]";
}

// Of names and their values, which are JSON.
std::string Object(const std::vector<std::pair<std::string_view, std::string>>& members) {
  std::string json;
  for (const auto& [name, value] : members) {
    json += (json.empty() ? "" : ", ") + Text(name) + ": " + value;
  }
  return "{" + json + "}";
}

std::string Rules() {
  std::vector<std::pair<std::string_view, std::string>> rules;
  for (const RuleFacts& rule : kRules) {
    rules.emplace_back(rule.name, Object({{"hyper", List(HyperNames(rule))},
                                          {"wide_slots", std::to_string(rule.wide_slots)},
                                          {"row_slots", std::to_string(rule.row_slots)}}));
  }
  return Object(rules);
}

}  // namespace
}  // namespace tf_embed

extern "C" __attribute__((visibility("default"))) const char* TfEmbedVocabulary() {
  static const std::string* const json =
      new std::string(tf_embed::Object({{"rules", tf_embed::Rules()}}));
  return json->c_str();
}
