// SPDX-License-Identifier: Apache-2.0
// What the kernels share: each unpacks tensors, calls one verb on each shard, and returns the
// status.
#ifndef TF_EMBED_CC_TF_TABLE_OP_H_
#define TF_EMBED_CC_TF_TABLE_OP_H_

#include <memory>
#include <optional>
#include <shared_mutex>

#include "cc/core/base/exec_context.h"
#include "cc/core/shards/shard_split.h"
#include "cc/device/device_split.h"
#include "cc/tf/string_key_scope.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_embed {

// An op whose first input is a table.
class TableOp : public tensorflow::OpKernel {
 public:
  explicit TableOp(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) final;

 protected:
  virtual absl::Status Run(tensorflow::OpKernelContext* context, TableResource* table) = 0;

 private:
  int64_t dim_ = 0;  // what the op says of the table's; 0: nothing
};

// Gives keys of any integer key type as int64: those of the tensor, or copied to `widened`.
absl::Status WidenedKeys(const tensorflow::Tensor& tensor, Buffer<int64_t>* widened,
                         const int64_t** keys);

// Puts keys [count] that WidenedKeys gave, or a table, into `tensor` from place `at` on.
void NarrowKeys(const int64_t* keys, size_t count, size_t at, tensorflow::Tensor* tensor);

// The inputs `keys` and `owners` of an op, spread over a table's shards. While it lives, the op is
// within the strings mutex of a table of strings.
class KeysInput {
 public:
  // Reads inputs 1 and 2.
  static absl::Status Read(tensorflow::OpKernelContext* context, TableResource* table, KeyUse use,
                           KeysInput* keys);
  // As Read, for whoever spreads the keys by himself: shard() has none, and no owner is checked.
  static absl::Status ReadUnspread(tensorflow::OpKernelContext* context, TableResource* table,
                                   KeyUse use, KeysInput* keys);
  // As Read, but adds strings to a dictionary that is no table's yet, and enters no lock.
  static absl::Status ReadAside(tensorflow::OpKernelContext* context, const TableResource& table,
                                StringKeys* dictionary, KeysInput* keys);

  explicit KeysInput(Allocator* allocator) : widened_(allocator), split_(allocator) {}

  size_t size() const { return size_; }
  const tensorflow::TensorShape& shape() const { return shape_; }
  // Whether the arrays of the op are in the memory of its device. The keys are then of 64 bits.
  bool on_device() const { return on_device_; }
  const int64_t* keys() const { return keys_; }
  const int32_t* owners() const { return owners_; }  // null: the table chooses
  bool unsigned_keys() const { return unsigned_keys_; }
  KeyBatch shard(size_t number) const {
    KeyBatch batch = device_split_ != nullptr ? device_split_->shard(number) : split_.shard(number);
    batch.scores = scores_;
    batch.distinct = distinct_;
    return batch;
  }
  StringKeyScope* string_scope() { return &*string_scope_; }

  // Reads the input that follows all others of an op that writes, if there is one: the scores that
  // rows get.
  absl::Status ReadScores(tensorflow::OpKernelContext* context, const TableResource& table,
                          int input);

  // Says that no key comes twice, as KeyBatch::distinct has it.
  void TakeAsDistinct(bool distinct) { distinct_ = distinct; }

  // Gives each of `strings`, from which the keys were read, that is `replaced` the key `key`.
  void ReplaceString(const tensorflow::Tensor& strings, std::string_view replaced, int64_t key);

  // keys.shape + [dim].
  const tensorflow::TensorShape& rows_shape() const { return rows_shape_; }

 private:
  absl::Status ReadShapes(tensorflow::OpKernelContext* context, const TableResource& table);
  absl::Status Spread(tensorflow::OpKernelContext* context, const TableResource& table);

  std::optional<StringKeyScope> string_scope_;
  size_t size_ = 0;
  tensorflow::TensorShape shape_;
  tensorflow::TensorShape rows_shape_;
  const int64_t* keys_ = nullptr;
  const int32_t* owners_ = nullptr;
  const int64_t* scores_ = nullptr;
  bool unsigned_keys_ = false;
  bool distinct_ = false;
  bool on_device_ = false;
  Buffer<int64_t> widened_;  // keys of 32 bits, and of strings
  ShardSplit split_;
  std::unique_ptr<DeviceSplit> device_split_;  // where the keys are on the device
};

// Checks that an input has one row for each key.
absl::Status CheckRowsShape(const tensorflow::Tensor& rows, const char* argument,
                            const TableResource& table, const KeysInput& keys);

// Checks that an input has the table's value type and one row for each key.
absl::Status CheckRows(const tensorflow::Tensor& rows, const char* argument,
                       const TableResource& table, const KeysInput& keys);

// Reads input 3 of a lookup, the rows of absent keys.
absl::Status ReadDefaults(tensorflow::OpKernelContext* context, const TableResource& table,
                          const KeysInput& keys, DefaultRows* defaults);

// Checks that what an op gives rows in is the table's value type.
absl::Status CheckOutputType(tensorflow::DataType type, const TableResource& table);

// The thread pool of the device that runs the op; with a table, at the moment of its clock.
ExecContext ThreadPoolOf(tensorflow::OpKernelContext* context);
ExecContext ThreadPoolOf(tensorflow::OpKernelContext* context, TableResource* table,
                         bool training = false);

// A step of a table's clock, of an op that changes rows and no other. It is over at once for those
// who ask for the present one, also if the op fails.
class Step {
 public:
  explicit Step(TableResource* table) : now_(table->clock()->BeginStep()) {}

  const Moment& now() const { return now_; }

 private:
  const Moment now_;
};

// The thread pool of the device that runs the op, at the moment of a step.
ExecContext ThreadPoolOf(tensorflow::OpKernelContext* context, const Step& step,
                         bool training = false);

// Of an op that writes: while this lives, nobody who keeps writers out (PausedTables) comes between
// two shards of the table.
class WholeWrite {
 public:
  explicit WholeWrite(const TableResource& table) {
    if (table.num_shards() > 1) lock_ = std::shared_lock<FairSharedMutex>(*table.shards_mutex());
  }

 private:
  std::shared_lock<FairSharedMutex> lock_;
};

// Calls `verb(shard, batch)` for each shard, which takes arrays of the memory that the keys are in,
// up to the first failure.
template <typename Verb>
absl::Status ForEachShard(const TableResource& table, const KeysInput& keys, const Verb& verb) {
  for (size_t number = 0; number < table.num_shards(); ++number) {
    Table* const shard = keys.on_device() ? table.device_shard(number) : table.shard(number);
    const Status status = verb(shard, keys.shard(number));
    if (!status.ok()) return ToTensorFlow(status);
  }
  return absl::OkStatus();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_OP_H_
