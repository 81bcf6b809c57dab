// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/settings_text.h"

#include <charconv>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tf_embed {

std::string ExactText(float number) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

absl::Status SettingsText::Parse(absl::string_view text, SettingsText* settings) {
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t end = line.find('=');
    // Without a `=`, the line may be the rest of a value.
    const std::string name(end == absl::string_view::npos ? "" : line.substr(0, end));
    Line parsed;
    if (name.empty() || !absl::CUnescape(line.substr(end + 1), &parsed.value) ||
        !settings->lines_.emplace(name, std::move(parsed)).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`settings` must have a line `name=value` for each setting, with C escapes. Received: ",
          "a line of '", name, "'."));
    }
  }
  return absl::OkStatus();
}

const std::string* SettingsText::Take(const char* name) {
  const auto line = lines_.find(name);
  if (line == lines_.end()) return nullptr;
  line->second.was_read = true;
  return &line->second.value;
}

void SettingsText::Refuse(const char* name, const char* wanted) {
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must be ", wanted, ". Received: a line of '", name, "'.")));
}

void SettingsText::ReadNumber(const char* name, int64_t least, int64_t most, int64_t* value) {
  const std::string* const text = Take(name);
  if (text == nullptr) return;
  if (!absl::SimpleAtoi(*text, value)) return Refuse(name, "an integer");
  if (*value >= least && *value <= most) return;
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat("`", name, "` must be ", *value < least ? "at least " : "at most ",
                   *value < least ? least : most, ". Received: ", *value, ".")));
}

void SettingsText::Read(const char* name, float* value) {
  const std::string* const text = Take(name);
  if (text != nullptr && !absl::SimpleAtof(*text, value)) Refuse(name, "a number");
}

void SettingsText::Read(const char* name, bool* value) {
  const std::string* const text = Take(name);
  if (text != nullptr && !absl::SimpleAtob(*text, value)) Refuse(name, "0 or 1");
}

void SettingsText::Read(const char* name, std::string* value) {
  if (const std::string* const text = Take(name)) *value = *text;
}

absl::Status SettingsText::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, line] : lines_) {
    if (line.was_read) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("`settings` must have known settings. Received: a line of '", name, "'."));
  }
  return absl::OkStatus();
}

}  // namespace tf_embed
