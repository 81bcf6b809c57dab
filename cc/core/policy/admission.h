// SPDX-License-Identifier: Apache-2.0
// Admission of keys: a key that came in enough applies gets a row. Most keys of a stream come once
// or twice and never again; a number of a few bytes, or of a few bits, waits for them in place of a
// row.
//
//     CounterAdmission    exact; about 20 bytes for a key that waits
//     BloomAdmission      counting Bloom filters; may admit a key early, and never late
//
// A counter forgets a key when its row is inserted, so a key whose row was evicted waits again.
// Filters can't forget one key alone: while they remember it, its row comes back at once. With
// `max_keys` both forget keys when so many others have come since: counts lie in two generations,
// and when the young one has half of `max_keys` keys it becomes the old one, and the old one is
// forgotten. A key that comes again moves to the young one. So memory is bounded in a stream that
// never ends.
//
// Thread-safe. The answers depend on the order in which keys come, and on nothing else.
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
  // The kinds by the numbers that they have in files.
  enum class Kind : uint8_t { kCounter = 1, kBloom = 2 };

  virtual ~Admission() = default;

  // `threshold`: the number of applies, from 1. `error_rate` in (0, 1), of Bloom filters: the
  // chance that a key is admitted early. `max_keys`: 0, or how many keys wait at most. Returns
  // nullptr without memory.
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

  // Adds the counts of `other`, whose keys must be different ones. Fails, and changes nothing, if
  // that is of another kind, or has filters of other sizes. REQUIRES: no other thread uses `other`.
  virtual Status Merge(const Admission& other) = 0;

  virtual Kind kind() const = 0;

  // Adds the keys in a counter's saved counts to `keys`. Filters can't list keys. REQUIRES: Load
  // has accepted these numbers.
  static void SavedKeys(const std::vector<int64_t>& numbers, std::vector<int64_t>* keys);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_POLICY_ADMISSION_H_
