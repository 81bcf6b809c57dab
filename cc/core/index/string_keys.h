// SPDX-License-Identifier: Apache-2.0
// A dictionary between texts and 64-bit keys, so that a table of 64-bit keys can be one of strings.
// Exact: texts that collide in 64 bits have different keys.
//
// A text's key is the first of its sequence, HashText(text, seed) for the seeds 0, 1, 2, ..., that
// no other text has. So it is a function of the text, but where 64 bits collide. A text that stands
// behind others in its sequence is *displaced*; each entry counts the displaced texts that passed
// over it. Where such an entry's text is removed, the entry stays, without a text and for nobody's
// use, until the last of them is removed: so no sequence ever has a gap before its text.
//
//     StripedIndex: key -> row id        row id: | size class : 3 | number of the record : 29 |
//     record: | texts that passed over : 4 | length : 4 | the text, or where it is |
//
// Records of seven sizes lie in RowStores, so a text of up to 200 bytes takes one line or few, and
// a longer one is a block of its own.
//
// Thread safety: const methods from many threads; the others want nobody else in the dictionary.
// Each of them spreads its own work over threads, and the outcome is the same for any number.
#ifndef TF_EMBED_CC_CORE_INDEX_STRING_KEYS_H_
#define TF_EMBED_CC_CORE_INDEX_STRING_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cc/core/base/allocator.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/base/status.h"
#include "cc/core/batch/text_batch.h"

namespace tf_embed {

class StringKeys {
 public:
  using HashFunction = uint64_t (*)(std::string_view text, uint64_t seed);

  // No text has this key.
  static constexpr int64_t kNoKey = 0;
  static constexpr size_t kLongestText = INT32_MAX;

  // Returns nullptr without memory for an empty dictionary. `hash`: for tests, another one.
  static std::unique_ptr<StringKeys> Create(Allocator* allocator, HashFunction hash = HashText);
  ~StringKeys();

  // Number of texts.
  size_t size() const;

  // Writes the key of each text. A text that is not there gets the one that it would have if it
  // were added now, alone. Returns whether all are there.
  bool Find(const ExecContext& context, const TextBatch& texts, int64_t* keys) const;

  // Writes the key of each text and adds those that are not there; writes the keys of these to
  // `added` [texts.size] and their number to `num_added`. On failure nothing has changed.
  Status Intern(const ExecContext& context, const TextBatch& texts, int64_t* keys, int64_t* added,
                size_t* num_added);

  // Removes the texts of keys. Keys that no text has are no error.
  void Remove(const int64_t* keys, size_t count);

  // The text of a key; its data is null where there is none. It moves never while it lives.
  std::string_view TextOf(int64_t key) const;

  // Calls visit(key) for each key that has a text. Nobody changes the dictionary meanwhile.
  template <typename Visit>
  void ForEachKey(const Visit& visit) const;

  // Removes all texts and gives the memory back.
  void Clear();

  // Gives memory back after many texts were removed. Needs room for a second copy meanwhile.
  Status Shrink();

 private:
  struct Content;
  struct Record;
  struct Probe;

  StringKeys(Allocator* allocator, HashFunction hash, std::unique_ptr<Content> content);

  int64_t KeyAt(std::string_view text, uint64_t seed) const {
    return static_cast<int64_t>(hash_(text, seed));
  }
  // As Find; writes how each text was found to `states` [texts.size], unless it is null.
  enum State : uint8_t { kThere, kNewAtFirst, kLater };
  bool LookAll(const ExecContext& context, const TextBatch& texts, int64_t* keys,
               State* states) const;
  // Looks for a text from seed 0 on, whose key is given.
  Probe Look(std::string_view text, int64_t first_key) const;
  // Adds a text that is not there under a key that has no entry.
  Status Add(std::string_view text, int64_t key);
  // Adds a text wherever it belongs, unless it is there.
  Status InternOne(std::string_view text, int64_t* key, bool* is_added);
  void RemoveOne(int64_t key);
  Status NoMemory() const;
  void KeysWithText(void (*visit)(void* argument, int64_t key), void* argument) const;

  Allocator* const allocator_;
  const HashFunction hash_;
  std::unique_ptr<Content> content_;
};

template <typename Visit>
void StringKeys::ForEachKey(const Visit& visit) const {
  KeysWithText([](void* argument, int64_t key) { (*static_cast<const Visit*>(argument))(key); },
               const_cast<void*>(static_cast<const void*>(&visit)));
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_INDEX_STRING_KEYS_H_
