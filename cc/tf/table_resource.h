// SPDX-License-Identifier: Apache-2.0
// The object behind a table handle: the shards of one variable and their shared admission and
// eviction state. If keys or values are strings, it also has the dictionaries between strings and
// the 64-bit numbers in the shards.
//
// Invariant: the key of every row has a string in the dictionary. So an operation on a table of
// strings first locks the strings mutex, before any shard's lock. It locks shared if it neither
// adds a string nor removes a row, otherwise exclusively. A table without strings takes no such
// lock. The stores, the clock and the log do their own locking.
#ifndef TF_EMBED_CC_TF_TABLE_RESOURCE_H_
#define TF_EMBED_CC_TF_TABLE_RESOURCE_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/base/applied_steps.h"
#include "cc/core/base/fair_shared_mutex.h"
#include "cc/core/base/lock_order.h"
#include "cc/core/base/turn_queue.h"
#include "cc/core/index/string_keys.h"
#include "cc/core/store/store.h"
#include "cc/stores/device/device_store.h"
#include "cc/tf/table_policy.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/types.h"

namespace tf_embed {

// The core type for a TensorFlow type that a table can hold.
DataType CoreType(tensorflow::DataType type);

// The TensorFlow type of a core type.
tensorflow::DataType TensorFlowType(DataType type);

// Converts a core status to a TensorFlow status.
absl::Status ToTensorFlow(const Status& status);

// A status whose message is the concatenated arguments.
template <typename... Parts>
absl::Status InvalidArgumentError(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status ResourceExhaustedError(const Parts&... parts) {
  return absl::ResourceExhaustedError(absl::StrCat(parts...));
}

// Parses decimal numbers separated by blanks, exactly and independent of the locale. Accepts "nan"
// and "inf".
absl::Status ReadNumbers(const std::string& text, const char* attribute,
                         std::vector<double>* numbers);

// Makes the initializer named `kind`, a value of the ops' attribute.
absl::Status NewInitializer(const std::string& kind, std::vector<double> numbers, int64_t dim,
                            int64_t seed, int64_t table_id, RowInitializer* initializer);

struct StorageSettings;

class TableResource : public tensorflow::ResourceBase {
 public:
  // Arguments of the handle op. A second op of the same shared_name must repeat them.
  struct Signature {
    tensorflow::DataType key_dtype = tensorflow::DT_INVALID;
    tensorflow::DataType value_dtype = tensorflow::DT_INVALID;
    int64_t dim = 0;
    int64_t num_shards = 0;
    PolicySettings policy;

    std::string DebugString() const;
    bool operator==(const Signature& other) const;
  };

  // Reads the attributes for types and sizes. The policy's settings are read separately.
  static absl::Status ReadSignature(tensorflow::OpKernelConstruction* construction,
                                    Signature* signature);
  // Everything except the initializer. REQUIRES: init_size >= 0.
  static absl::Status NewOptions(const Signature& signature, std::string name, int64_t init_size,
                                 StoreOptions* options);

  // Creates the stores on GPU `gpu`, or on the host if it is -1.
  static absl::Status Create(const Signature& signature, const StoreOptions& options,
                             const StorageSettings& storage, int gpu, TableResource** resource);

  const Signature& signature() const { return signature_; }
  const std::string& name() const { return shards_.front()->options().name; }
  size_t dim() const { return static_cast<size_t>(signature_.dim); }
  size_t row_bytes() const { return dim() * SizeOf(shards_.front()->options().value_type); }
  Allocator* allocator() const { return shards_.front()->options().allocator; }

  bool has_string_keys() const { return signature_.key_dtype == tensorflow::DT_STRING; }
  bool has_string_values() const { return signature_.value_dtype == tensorflow::DT_STRING; }
  // Null if keys (or values) are not strings. REQUIRES: the strings mutex is held as long as the
  // pointer is used, because Import replaces the dictionaries.
  StringKeys* key_strings() const { return key_strings_.get(); }
  StringKeys* value_strings() const { return value_strings_.get(); }
  FairSharedMutex* strings_mutex() { return &strings_mutex_; }

  // REQUIRES: strings_mutex() held exclusively, for the methods up to ReplaceStrings.

  // Removes the strings of keys without a row. If a shard can't answer, the remaining strings stay.
  void DropStringsWithoutRows(const int64_t* keys, size_t count);
  // The same for the keys of evicted rows.
  void DropStringsOfEvicted();
  // Removes strings of values that no row holds, once they may be half of all. If memory is short,
  // leaves that to the next call.
  void DropUnusedValueStrings();
  // Takes over new dictionaries.
  void ReplaceStrings(std::unique_ptr<StringKeys>* key_strings,
                      std::unique_ptr<StringKeys>* value_strings);

  size_t num_shards() const { return shards_.size(); }
  // Whether other processes also change rows (Store::is_shared).
  bool is_shared() const { return shards_.front()->is_shared(); }
  // Fail if the store has no maintenance, or no eviction, interface. After success, maintenance()
  // or eviction() is non-null for every shard.
  absl::Status CheckMaintenance() const;
  absl::Status CheckEviction() const;
  // Takes arrays on the host, wherever the rows of the shard are.
  Store* shard(size_t number) const { return shards_[number].get(); }
  // The same shard for arrays in GPU memory. REQUIRES: is_on_gpu().
  bool is_on_gpu() const { return gpu_ >= 0; }
  int gpu() const { return gpu_; }  // -1: on the host
  Store* device_shard(size_t number) const { return device_shards_[number]; }
  size_t size() const;
  // The same shards as a vector of pointers.
  std::vector<Store*> shards() const;

  StepClock* clock() { return &clock_; }
  // Serializes operations on all shards that must not interleave: saves, exports, loads, imports,
  // clears.
  OrderedMutex* save_mutex() { return &save_mutex_; }
  // Held shared by ops that write. Exclusive holders keep all writers out, and never find an op
  // between two shards.
  FairSharedMutex* shards_mutex() const { return &shards_mutex_; }
  // The lock order of the shards_mutex() of several tables.
  static bool IsLockedBefore(const TableResource* one, const TableResource* other) {
    return one->number_ < other->number_;
  }
  // Turns of steps that read rows and write them back.
  TurnQueue* turns() { return &turns_; }
  // Step numbers applied so far, for each sender.
  AppliedSteps* applied_steps() { return &applied_steps_; }
  Admission* admission() const { return shards_.front()->options().policy.admission.get(); }
  // The number of rows that saves have written to files since the table was made, including saves
  // that failed. Any thread may read it while a save runs.
  uint64_t rows_saved() const { return rows_saved_.load(std::memory_order_relaxed); }
  void AddRowsSaved(size_t count) { rows_saved_.fetch_add(count, std::memory_order_relaxed); }
  // Null unless evicted rows are kept for draining.
  EvictionLog* evicted() {
    return evicted_ != nullptr && evicted_->keeps_rows() ? evicted_.get() : nullptr;
  }
  // Whether a write may evict rows other than its own.
  bool evicts() const {
    const RowPolicy& policy = shards_.front()->options().policy;
    return policy.max_rows > 0 || policy.ttl_milliseconds > 0;
  }
  StatisticSet statistics() const { return shards_.front()->options().policy.statistics; }

  std::string DebugString() const override;

 private:
  TableResource(const Signature& signature, int gpu)
      : signature_(signature), gpu_(gpu), clock_(signature.policy.steps_per_epoch) {}

  static uint64_t NextNumber() {
    static std::atomic<uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  Status CollectValues(Buffer<int64_t>* values) const;

  const Signature signature_;
  const int gpu_;
  StepClock clock_;
  const uint64_t number_ = NextNumber();
  OrderedMutex save_mutex_{LockRank::kSave};
  mutable FairSharedMutex shards_mutex_{LockRank::kShards, number_};
  TurnQueue turns_;
  AppliedSteps applied_steps_;
  std::atomic<uint64_t> rows_saved_{0};
  std::unique_ptr<EvictionLog> evicted_;  // outlives the stores
  std::vector<std::unique_ptr<Store>> shards_;
  std::vector<Store*> device_shards_;  // point into `shards_`, or `own_device_shards_`
  std::vector<std::unique_ptr<DeviceStore>> own_device_shards_;  // over several tiers
  FairSharedMutex strings_mutex_{LockRank::kStrings};
  std::unique_ptr<StringKeys> key_strings_;
  std::unique_ptr<StringKeys> value_strings_;
  size_t value_strings_limit_ = kFewStrings;  // size that triggers a search for unused strings

  static constexpr size_t kFewStrings = 1024;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_RESOURCE_H_
