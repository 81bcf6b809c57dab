// SPDX-License-Identifier: Apache-2.0
// A dictionary between strings and 64-bit keys, which makes a table of 64-bit keys a table of
// strings. Exact: strings that collide in 64 bits have different keys.
//
// A string's key is the first of its sequence, HashString(string, seed) for the seeds 0, 1, 2, ...,
// that no other string has. So it is a function of the string, unless 64 bits collide. A string
// that stands behind others in its sequence is *displaced*; each entry counts the displaced strings
// that passed over it. If the string of such an entry is removed, the entry stays, without a string
// and unused, until the last of them is removed. So no sequence has a gap before its string.
//
//     StripedIndex: key -> row id        row id: | size class : 3 | number of the record : 29 |
//     record: | strings that passed over : 4 | length : 4 | the string, or where it is |
//
// Records have seven sizes, with a RowMemory for each. So a string of up to 200 bytes takes few
// cache lines, and a longer string is a separate block.
//
// Thread safety: const methods from many threads; the others REQUIRE that no other thread is in the
// dictionary. Each of them spreads its own work over threads, and the outcome is the same for any
// number.
#ifndef TF_EMBED_CC_CORE_INDEX_STRING_KEYS_H_
#define TF_EMBED_CC_CORE_INDEX_STRING_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/string_batch.h"

namespace tf_embed {

class StringKeys {
 public:
  using HashFunction = uint64_t (*)(std::string_view string, uint64_t seed);

  // No string has this key.
  static constexpr int64_t kNoKey = 0;
  static constexpr size_t kLongestString = INT32_MAX;

  // Returns nullptr without memory for an empty dictionary. `hash`: another hash, for tests.
  static std::unique_ptr<StringKeys> Create(Allocator* allocator, HashFunction hash = HashString);
  ~StringKeys();

  // Number of strings.
  size_t size() const;

  // Writes the key of each string. An absent string gets the key that it would have if it alone
  // were added now. Returns whether all strings are present.
  bool Find(const ExecContext& context, const StringBatch& strings, int64_t* keys) const;

  // Writes the key of each string and adds the absent strings. Writes their keys to `added`
  // [strings.size] and their number to `num_added`. On failure nothing has changed.
  Status Intern(const ExecContext& context, const StringBatch& strings, int64_t* keys,
                int64_t* added, size_t* num_added);

  // Removes the strings of keys. Keys without a string are not an error.
  void Remove(const int64_t* keys, size_t count);

  // The string of a key; its data is null if there is none. It does not move while it lives.
  std::string_view StringOf(int64_t key) const;

  // Calls visit(key) for each key that has a string. REQUIRES: the dictionary does not change
  // meanwhile.
  template <typename Visit>
  void ForEachKey(const Visit& visit) const;

  // Removes all strings and frees the memory.
  void Clear();

  // Frees memory after many strings were removed. Needs room for a second copy meanwhile.
  Status Shrink();

 private:
  struct Content;
  struct Record;
  struct Probe;

  StringKeys(Allocator* allocator, HashFunction hash, std::unique_ptr<Content> content);

  int64_t KeyAt(std::string_view string, uint64_t seed) const {
    return static_cast<int64_t>(hash_(string, seed));
  }
  // As Find; writes how each string was found to `states` [strings.size], unless it is null.
  enum State : uint8_t { kThere, kNewAtFirst, kLater };
  bool LookAll(const ExecContext& context, const StringBatch& strings, int64_t* keys,
               State* states) const;
  // Looks a string up from seed 0 on, whose key is given.
  Probe Look(std::string_view string, int64_t first_key) const;
  // Adds an absent string under a key that has no entry.
  Status Add(std::string_view string, int64_t key);
  // Adds a string under the key that it gets, unless it is present.
  Status InternOne(std::string_view string, int64_t* key, bool* is_added);
  void RemoveOne(int64_t key);
  Status NoMemory() const;
  void KeysWithString(void (*visit)(void* argument, int64_t key), void* argument) const;

  Allocator* const allocator_;
  const HashFunction hash_;
  std::unique_ptr<Content> content_;
};

template <typename Visit>
void StringKeys::ForEachKey(const Visit& visit) const {
  KeysWithString([](void* argument, int64_t key) { (*static_cast<const Visit*>(argument))(key); },
                 const_cast<void*>(static_cast<const void*>(&visit)));
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_INDEX_STRING_KEYS_H_
