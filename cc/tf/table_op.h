// SPDX-License-Identifier: Apache-2.0
// Shared parts of the kernels. Each kernel unpacks tensors, calls one verb on each shard, and
// returns the status.
#ifndef TF_EMBED_CC_TF_TABLE_OP_H_
#define TF_EMBED_CC_TF_TABLE_OP_H_

#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/shards/shard_split.h"
#include "cc/stores/device/device_split.h"
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
  int64_t dim_ = 0;  // the dim that the op declares for the table; 0: none
};

// Gives keys of any integer type as int64: a pointer into the tensor, or a copy in `widened`.
absl::Status WidenedKeys(const tensorflow::Tensor& tensor, Buffer<int64_t>* widened,
                         const int64_t** keys);

// Writes keys [count] from WidenedKeys or a table to `tensor`, starting at `at`.
void NarrowKeys(const int64_t* keys, size_t count, size_t at, tensorflow::Tensor* tensor);

// The inputs `keys` and `owners` of an op, split over a table's shards. Holds the strings mutex of
// a table of strings.
class KeysInput {
 public:
  // Reads inputs 1 and 2.
  static absl::Status Read(tensorflow::OpKernelContext* context, TableResource* table, KeyUse use,
                           KeysInput* keys);
  // As Read, for a caller that splits the keys itself. shard() is empty and owners are not checked.
  static absl::Status ReadUnspread(tensorflow::OpKernelContext* context, TableResource* table,
                                   KeyUse use, KeysInput* keys);
  // As Read, but interns strings in a dictionary that no table has yet. Takes no lock.
  static absl::Status ReadAside(tensorflow::OpKernelContext* context, const TableResource& table,
                                StringKeys* dictionary, KeysInput* keys);

  explicit KeysInput(Allocator* allocator) : widened_(allocator), split_(allocator) {}

  size_t size() const { return size_; }
  const tensorflow::TensorShape& shape() const { return shape_; }
  // Whether the op's arrays are in device memory. The keys are then 64-bit.
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

  // Reads an optional last input of a writing op: the new scores of the rows.
  absl::Status ReadScores(tensorflow::OpKernelContext* context, const TableResource& table,
                          int input);

  // Declares that no key repeats (KeyBatch::distinct).
  void TakeAsDistinct(bool distinct) { distinct_ = distinct; }

  // Sets `key` for each of `strings` equal to `replaced`. The keys must have been read from them.
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
  Buffer<int64_t> widened_;  // narrow keys, and the numbers of strings
  ShardSplit split_;
  std::unique_ptr<DeviceSplit> device_split_;  // if the keys are on the device
};

// Checks that an input has one row for each key.
absl::Status CheckRowsShape(const tensorflow::Tensor& rows, const char* argument,
                            const TableResource& table, const KeysInput& keys);

// Checks that an input has the table's value type and one row for each key.
absl::Status CheckRows(const tensorflow::Tensor& rows, const char* argument,
                       const TableResource& table, const KeysInput& keys);

// Reads input 3 of a lookup: the default rows of absent keys.
absl::Status ReadDefaults(tensorflow::OpKernelContext* context, const TableResource& table,
                          const KeysInput& keys, DefaultRows* defaults);

// Checks that an output type equals the table's value type.
absl::Status CheckOutputType(tensorflow::DataType type, const TableResource& table);

// The thread pool of the op's device; with a table, at the present moment of its clock.
ExecContext ThreadPoolOf(tensorflow::OpKernelContext* context);
ExecContext ThreadPoolOf(tensorflow::OpKernelContext* context, TableResource* table,
                         bool training = false);

// A step of a table's clock for an op that changes rows. Readers of the clock see the step as
// finished at once, even if the op fails.
class Step {
 public:
  explicit Step(TableResource* table) : now_(table->clock()->BeginStep()) {}

  const Moment& now() const { return now_; }

 private:
  const Moment now_;
};

// The thread pool of the op's device, at the moment of a step.
ExecContext ThreadPoolOf(tensorflow::OpKernelContext* context, const Step& step,
                         bool training = false);

// Scope of a writing op, from before its Step to its last verb. Meanwhile PausedTables can't pause
// the table: not between two shards or two verbs, nor after the clock has counted the step.
class WholeWrite {
 public:
  explicit WholeWrite(const TableResource& table) : lock_(*table.shards_mutex()) {}

 private:
  std::shared_lock<FairSharedMutex> lock_;
};

// The same for an op that writes to several tables, possibly repeated.
std::vector<WholeWrite> WholeWritesOf(std::vector<const TableResource*> tables);

// Calls `verb(shard, batch)` for each shard until one fails. The shard takes arrays in the memory
// that holds the keys.
template <typename Verb>
absl::Status ForEachShard(const TableResource& table, const KeysInput& keys, const Verb& verb) {
  for (size_t number = 0; number < table.num_shards(); ++number) {
    Store* const shard = keys.on_device() ? table.device_shard(number) : table.shard(number);
    const Status status = verb(shard, keys.shard(number));
    if (!status.ok()) return ToTensorFlow(status);
  }
  return absl::OkStatus();
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_OP_H_
