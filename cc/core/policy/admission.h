// SPDX-License-Identifier: Apache-2.0
// Admission of keys: a key that arrived in enough applies gets a row. Most keys of a stream occur
// once or twice and never again; a count of a few bytes, or a few bits, waits for them instead of a
// row.
//
//     CounterAdmission    exact; about 20 bytes for a key that waits
//     BloomAdmission      counting Bloom filters; may admit a key early, and never late
//
// A counter forgets a key when its row is inserted, so a key whose row was evicted waits again.
// Filters can't forget a single key: while they remember it, its row returns at once. With
// `max_keys` both forget old keys. Counts lie in two generations. When the young generation has
// half of `max_keys` keys, it becomes the old generation, and the previous old generation is
// forgotten. A key that arrives again moves to the young generation. So memory is bounded in a
// stream that never ends.
//
// Thread-safe. The answers only depend on the order in which keys arrive.
#ifndef TF_EMBED_CC_CORE_POLICY_ADMISSION_H_
#define TF_EMBED_CC_CORE_POLICY_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/status.h"

namespace tf_embed {

class Admission {
 public:
  // The kinds, with the numbers that they have in files.
  enum class Kind : uint8_t { kCounter = 1, kBloom = 2 };

  virtual ~Admission() = default;

  // `threshold`: the number of applies, from 1. `error_rate` in (0, 1), for Bloom filters: the
  // chance that a key is admitted early. `max_keys`: the most keys that wait, or 0 for no limit.
  // Returns nullptr without memory.
  static std::shared_ptr<Admission> NewCounter(Allocator* allocator, uint32_t threshold,
                                               size_t max_keys);
  static std::shared_ptr<Admission> NewBloom(Allocator* allocator, uint32_t threshold,
                                             double error_rate, size_t max_keys);

  // Counts an apply with these distinct keys, and returns whether each is admitted. Admitted keys
  // stay so until they are forgotten.
  virtual Status Count(const int64_t* keys, size_t count, bool* admitted) = 0;

  // The answers of Count, without counting.
  virtual void Peek(const int64_t* keys, size_t count, bool* admitted) const = 0;

  // Forgets keys that now have rows.
  virtual void Forget(const int64_t* keys, size_t count) = 0;

  // Forgets all keys.
  virtual Status Clear() = 0;

  virtual size_t bytes() const = 0;

  // Saves the counts, or restores them. Load fails, and changes nothing, if the numbers are damaged
  // or from another kind.
  virtual Status Save(std::vector<int64_t>* numbers) const = 0;
  virtual Status Load(const int64_t* numbers, size_t count) = 0;

  // Adds the counts of `other`, whose keys must be different. Fails, and changes nothing, if
  // `other` is of another kind, or has filters of other sizes. REQUIRES: no other thread uses
  // `other`.
  virtual Status Merge(const Admission& other) = 0;

  virtual Kind kind() const = 0;

  // Adds the keys in a counter's saved counts to `keys`. Filters can't list keys. REQUIRES: Load
  // has accepted these numbers.
  static void SavedKeys(const std::vector<int64_t>& numbers, std::vector<int64_t>* keys);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_ADMISSION_H_
