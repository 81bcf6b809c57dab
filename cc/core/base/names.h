// SPDX-License-Identifier: Apache-2.0
// Names of the values of an enumeration, as ops and Python use them.
#ifndef TF_EMBED_CC_CORE_BASE_NAMES_H_
#define TF_EMBED_CC_CORE_BASE_NAMES_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace tf_embed {

template <typename Enum>
struct NamedValue {
  const char* name;
  Enum value;
};

// Finds the value of a name; false if there is none.
template <typename Enum, size_t kCount>
bool FindByName(const NamedValue<Enum> (&list)[kCount], std::string_view name, Enum* value) {
  for (const NamedValue<Enum>& known : list) {
    if (known.name != name) continue;
    *value = known.value;
    return true;
  }
  return false;
}

// 'a', 'b', 'c': for an op's attribute, or a message.
template <typename Enum, size_t kCount>
std::string QuotedNames(const NamedValue<Enum> (&list)[kCount]) {
  std::string names;
  for (const NamedValue<Enum>& known : list) {
    if (!names.empty()) names += ", ";
    names += "'" + std::string(known.name) + "'";
  }
  return names;
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_NAMES_H_
