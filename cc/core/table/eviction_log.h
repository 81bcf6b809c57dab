// SPDX-License-Identifier: Apache-2.0
// Evicted rows, kept until they are drained. For a table of strings it also has the keys whose
// strings may be removed. Rows keep the strings themselves, because dictionaries drop strings that
// no row uses. Thread-safe.
#ifndef TF_EMBED_CC_CORE_TABLE_EVICTION_LOG_H_
#define TF_EMBED_CC_CORE_TABLE_EVICTION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/base/allocator.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/status.h"
#include "cc/core/base/thread_annotations.h"
#include "cc/core/policy/row_policy.h"
#include "cc/core/store/store.h"
#include "cc/core/table/dictionaries.h"

namespace tf_embed {

class EvictionLog final : public EvictionSink {
 public:
  // Evicted rows as the table has them. String keys or values replace the numbers.
  struct Rows {
    explicit Rows(Allocator* allocator) : keys(allocator), weights(allocator) {}
    size_t size = 0;
    Buffer<int64_t> keys;  // the first `size` are used
    Buffer<char> weights;
    std::vector<std::string> key_strings;
    std::vector<std::string> value_strings;
  };

  // `keeps_rows`: whether rows can be drained. REQUIRES: the dictionaries outlive this object.
  EvictionLog(const Dictionaries& dictionaries, const StoreOptions& options, bool keeps_rows);

  Status Evict(const WholeRows& rows, const RuleSlots& rule) override;
  size_t size() const;

  // Calls `take(rows)`, and drops the rows if the status that it returns is ok.
  template <typename Take>
  auto Drain(const Take& take) {
    std::lock_guard<OrderedMutex> lock(mutex_);
    auto status = take(rows_);
    if (status.ok()) rows_ = Rows(allocator_);
    return status;
  }

  // Calls `take(keys, count)` for the string keys evicted since the last call.
  template <typename Take>
  void TakeStringKeys(const Take& take) {
    std::vector<int64_t> keys;
    {
      std::lock_guard<OrderedMutex> lock(mutex_);
      keys.swap(string_keys_);
    }
    // Outside the lock: `take` looks keys up in stores, whose locks rank before the log's.
    take(keys.data(), keys.size());
  }

 private:
  void KeepNumbers(size_t count, const int64_t* keys, const char* weights)
      TF_EMBED_REQUIRES(mutex_);
  Status MakeRoom(size_t count) TF_EMBED_REQUIRES(mutex_);

  const Dictionaries& dictionaries_;
  Allocator* const allocator_;
  const size_t dim_;
  const size_t row_bytes_;
  const bool keeps_rows_;
  mutable OrderedMutex mutex_{LockRank::kLog};
  Rows rows_ TF_EMBED_GUARDED_BY(mutex_);
  std::vector<int64_t> string_keys_ TF_EMBED_GUARDED_BY(mutex_);
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_TABLE_EVICTION_LOG_H_
