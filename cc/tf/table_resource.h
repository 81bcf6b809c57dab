// SPDX-License-Identifier: Apache-2.0
// What a table handle points to: the shards of one variable, what they share for rows that come and
// go and, if keys or values are strings, the dictionaries between them and the 64-bit numbers that
// the shards hold.
//
// A row's key has a string in the dictionary at any time. To keep it so, an operation on a table of
// strings holds the strings mutex, before any lock of a shard: shared, if it adds no string and
// removes no row; else alone. Without strings there is no lock to pass. The tables, the clock and
// the log see to themselves.
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
#include "cc/core/table/table.h"
#include "cc/device/device_table.h"
#include "cc/tf/table_policy.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/types.h"

namespace tf_embed {

// The type of the core for one of TensorFlow that a table can hold.
DataType CoreType(tensorflow::DataType type);

// How a status of the core is told to TensorFlow.
absl::Status ToTensorFlow(const Status& status);

// Statuses whose message is the text of all arguments.
template <typename... Parts>
absl::Status InvalidArgumentError(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}
template <typename... Parts>
absl::Status ResourceExhaustedError(const Parts&... parts) {
  return absl::ResourceExhaustedError(absl::StrCat(parts...));
}

// Reads decimal numbers with blanks between them, to the last bit and in no locale; "nan" and "inf"
// are numbers.
absl::Status ReadNumbers(const std::string& text, const char* attribute,
                         std::vector<double>* numbers);

// Reads an initializer of a name that the ops' attribute takes.
absl::Status NewInitializer(const std::string& kind, std::vector<double> numbers, int64_t dim,
                            int64_t seed, int64_t table_id, RowInitializer* initializer);

struct StorageSettings;

class TableResource : public tensorflow::ResourceBase {
 public:
  // As given to the handle op; what a second op of the same shared_name must repeat.
  struct Signature {
    tensorflow::DataType key_dtype = tensorflow::DT_INVALID;
    tensorflow::DataType value_dtype = tensorflow::DT_INVALID;
    int64_t dim = 0;
    int64_t num_shards = 0;
    PolicySettings policy;

    std::string DebugString() const;
    bool operator==(const Signature& other) const;
  };

  // The types and sizes, which are attributes. The policy's settings are read by themselves.
  static absl::Status ReadSignature(tensorflow::OpKernelConstruction* construction,
                                    Signature* signature);
  static absl::Status ReadOptions(tensorflow::OpKernelConstruction* construction,
                                  const Signature& signature, TableOptions* options);
  // Everything but the initializer. REQUIRES: init_size >= 0.
  static absl::Status NewOptions(const Signature& signature, std::string name, int64_t init_size,
                                 TableOptions* options);

  // Creates the tables, on the GPU of that number, or with -1 on the host.
  static absl::Status Create(const Signature& signature, const TableOptions& options,
                             const StorageSettings& storage, int gpu, TableResource** resource);

  const Signature& signature() const { return signature_; }
  const std::string& name() const { return shards_.front()->options().name; }
  size_t dim() const { return static_cast<size_t>(signature_.dim); }
  size_t row_bytes() const { return dim() * SizeOf(shards_.front()->options().value_type); }
  Allocator* allocator() const { return shards_.front()->options().allocator; }

  bool has_string_keys() const { return signature_.key_dtype == tensorflow::DT_STRING; }
  bool has_string_values() const { return signature_.value_dtype == tensorflow::DT_STRING; }
  // Null if keys, or values, are no strings. REQUIRES: the strings mutex held, and still held
  // wherever the pointer is used: Import replaces the dictionaries.
  StringKeys* key_strings() const { return key_strings_.get(); }
  StringKeys* value_strings() const { return value_strings_.get(); }
  FairSharedMutex* strings_mutex() { return &strings_mutex_; }

  // The rest wants the strings mutex held alone.

  // Removes the strings of those keys that have no row. If a shard can't say, they stay.
  void DropStringsWithoutRows(const int64_t* keys, size_t count);
  // The same of all rows that left by the table's policy.
  void DropStringsOfEvicted();
  // Removes the strings of values that no row holds, once there may be as many as of others.
  // Without memory for it they stay until the next time.
  void DropUnusedValueStrings();
  // Takes other dictionaries over.
  void ReplaceStrings(std::unique_ptr<StringKeys>* key_strings,
                      std::unique_ptr<StringKeys>* value_strings);

  size_t num_shards() const { return shards_.size(); }
  // Whether other processes change rows too (Table::is_shared).
  bool is_shared() const { return shards_.front()->is_shared(); }
  // Refuse a table whose store can't be exported, shrunk or given another rule, or whose rows have
  // no statistics; after them the maintenance(), or the eviction(), of no shard is null.
  absl::Status CheckMaintenance() const;
  absl::Status CheckEviction() const;
  // Takes arrays that are on the host, wherever its rows are.
  Table* shard(size_t number) const { return shards_[number].get(); }
  // The same table, where it is on a GPU, for arrays in the GPU's memory.
  bool is_on_gpu() const { return gpu_ >= 0; }
  int gpu() const { return gpu_; }  // -1: on the host
  Table* device_shard(size_t number) const { return device_shards_[number]; }
  size_t size() const;
  // For who wants them in a row.
  std::vector<Table*> shards() const;

  StepClock* clock() { return &clock_; }
  // Held by operations on all shards that must not meet half of one another: saves, exports, loads,
  // imports, clears.
  OrderedMutex* save_mutex() { return &save_mutex_; }
  // Shared by ops that write to several shards, and exclusive to who keeps writers out of all of
  // them: it meets no op between two shards.
  FairSharedMutex* shards_mutex() const { return &shards_mutex_; }
  uint64_t number() const { return number_; }  // in whose order those of several are taken
  // Of steps that read rows and write them back.
  TurnQueue* turns() { return &turns_; }
  // Of senders that number their steps.
  AppliedSteps* applied_steps() { return &applied_steps_; }
  Admission* admission() const { return shards_.front()->options().policy.admission.get(); }
  // The number of rows that saves have written to files since the table was made, also those of
  // saves that failed. Any thread may read it while a save runs.
  uint64_t rows_saved() const { return rows_saved_.load(std::memory_order_relaxed); }
  void AddRowsSaved(size_t count) { rows_saved_.fetch_add(count, std::memory_order_relaxed); }
  // Null where nobody asks for rows that left.
  EvictionLog* evicted() {
    return evicted_ != nullptr && evicted_->keeps_rows() ? evicted_.get() : nullptr;
  }
  // Whether a write may take out other rows than its own.
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
  std::unique_ptr<EvictionLog> evicted_;  // outlives the tables
  std::vector<std::unique_ptr<Table>> shards_;
  std::vector<Table*> device_shards_;  // within those, or own ones, if they are on a GPU
  std::vector<std::unique_ptr<DeviceTable>> own_device_shards_;  // those over several tiers
  FairSharedMutex strings_mutex_{LockRank::kStrings};
  std::unique_ptr<StringKeys> key_strings_;
  std::unique_ptr<StringKeys> value_strings_;
  size_t value_strings_limit_ = kFewStrings;  // more than these, and the unused ones are looked for

  static constexpr size_t kFewStrings = 1024;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_RESOURCE_H_
