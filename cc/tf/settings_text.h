// SPDX-License-Identifier: Apache-2.0
// The settings of a new table as text, in which form Python passes them:
//
//     max_rows=1000
//     eviction=lfu
//     path=/tmp/rows
//
// A setting without a line has its default. Values are C-escaped, so a path may contain a line
// break.
#ifndef TF_EMBED_CC_TF_SETTINGS_TEXT_H_
#define TF_EMBED_CC_TF_SETTINGS_TEXT_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tf_embed {

// The shortest text that reads as the same number.
std::string ExactText(float number);

class SettingsText {
 public:
  static absl::Status Parse(absl::string_view text, SettingsText* settings);

  // Each sets `value` if the text has a line for it. A wrong value is an error of Finish, after
  // which `value` must not be used.
  template <typename Integer>
  void Read(const char* name, Integer* value, int64_t least = 0) {
    constexpr int64_t kMost =
        sizeof(Integer) < sizeof(int64_t) ? INT32_MAX : std::numeric_limits<int64_t>::max();
    int64_t number = static_cast<int64_t>(*value);
    ReadNumber(name, least, kMost, &number);
    *value = static_cast<Integer>(number);
  }
  void Read(const char* name, float* value);
  void Read(const char* name, bool* value);
  void Read(const char* name, std::string* value);

  // Returns the first error, also if the text has a line that nothing read. Values of lines that
  // can't be read are never in the message, since they may be a password.
  absl::Status Finish() const;

 private:
  void ReadNumber(const char* name, int64_t least, int64_t most, int64_t* value);
  // Takes the value of a line; null if there is none.
  const std::string* Take(const char* name);
  void Refuse(const char* name, const char* wanted);

  struct Line {
    std::string value;
    bool was_read = false;
  };
  std::map<std::string, Line> lines_;
  absl::Status status_;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_SETTINGS_TEXT_H_
