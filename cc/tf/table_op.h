// SPDX-License-Identifier: Apache-2.0
// Shared parts of the kernels. Each kernel unpacks tensors, calls one verb of a table, and returns
// the status.
#ifndef TF_EMBED_CC_TF_TABLE_OP_H_
#define TF_EMBED_CC_TF_TABLE_OP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "cc/core/base/exec_context.h"
#include "cc/core/batch/string_batch.h"
#include "cc/core/table/string_scope.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_embed {

// The inputs that concern one table. An op of one table has inputs 0, 1, 2, ...; an op of many has
// lists in their place, with a tensor for each table.
struct TableInputs {
  // Not explicit: an op of one table passes its context.
  TableInputs(tensorflow::OpKernelContext* context, size_t number = 0, size_t num_tables = 1)
      : context(context),
        number(static_cast<int>(number)),
        num_tables(static_cast<int>(num_tables)) {}

  // The input of the op that is input `argument` of the table.
  int Index(int argument) const { return argument * num_tables + number; }
  const tensorflow::Tensor& operator[](int argument) const {
    return context->input(Index(argument));
  }

  tensorflow::OpKernelContext* const context;
  const int number;  // of the table
  const int num_tables;
};

// Counts a running op. Small ops that run at once share the threads of the pool.
class OpUnderWay {
 public:
  OpUnderWay();
  ~OpUnderWay();
  OpUnderWay(const OpUnderWay&) = delete;
  OpUnderWay& operator=(const OpUnderWay&) = delete;
};

// Checks the dim that an op declares for a table; 0: none.
absl::Status CheckDim(const TableResource& table, int64_t dim);

// Runs the part of an op that concerns a table. Reports an allocation that failed.
absl::Status RunOnTable(const TableResource& table, absl::FunctionRef<absl::Status()> part);

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

// A TableOp without attributes: Kernels<TableFunction<RunClear>>.
template <absl::Status (*kRun)(tensorflow::OpKernelContext* context, TableResource* table)>
class TableFunction final : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tensorflow::OpKernelContext* context, TableResource* table) override {
    return kRun(context, table);
  }
};

// Gives keys of any integer type as int64: a pointer into the tensor, or a copy in `widened`.
absl::Status WidenedKeys(const tensorflow::Tensor& tensor, Buffer<int64_t>* widened,
                         const int64_t** keys);

// Writes keys [count] from WidenedKeys or a table to `tensor`, starting at `at`.
void NarrowKeys(const int64_t* keys, size_t count, size_t at, tensorflow::Tensor* tensor);

// The strings of a tensor. REQUIRES: the tensor outlives the result.
StringBatch StringsOf(const tensorflow::Tensor& tensor);

// Writes the strings of `numbers` [count] to a tensor, starting at `at`.
void WriteStrings(const ExecContext& context, const StringKeys& dictionary, const int64_t* numbers,
                  size_t count, size_t at, tensorflow::Tensor* tensor);

// Writes keys [count] of a table as WriteStrings or NarrowKeys does.
void WriteKeys(const ExecContext& context, const Table& table, const int64_t* keys, size_t count,
               size_t at, tensorflow::Tensor* tensor);

// The inputs `keys` and `owners` of an op. Has the StringScope of a table of strings.
class KeysInput {
 public:
  // Reads inputs 1 and 2.
  static absl::Status Read(const TableInputs& inputs, TableResource* table, KeyUse use,
                           KeysInput* keys);
  // As Read, but interns strings in a dictionary that no table has yet. Takes no lock.
  static absl::Status ReadAside(const TableInputs& inputs, const TableResource& table,
                                StringKeys* dictionary, KeysInput* keys);

  explicit KeysInput(Allocator* allocator) : widened_(allocator) {}

  size_t size() const { return batch_.size; }
  const tensorflow::TensorShape& shape() const { return shape_; }
  // keys.shape + [dim].
  const tensorflow::TensorShape& rows_shape() const { return rows_shape_; }
  // On a device, keys are 64-bit.
  const TableKeys& batch() const { return batch_; }
  StringScope* string_scope() { return &*string_scope_; }

  // Reads an optional last input of a writing op: the new scores of the rows.
  absl::Status ReadScores(tensorflow::OpKernelContext* context, const TableResource& table,
                          int input);

  // Declares that no key repeats (KeyBatch::distinct).
  void TakeAsDistinct(bool distinct) { batch_.distinct = distinct; }

  // Sets `key` for each of `strings` equal to `replaced`. The keys must have been read from them.
  void ReplaceString(const tensorflow::Tensor& strings, std::string_view replaced, int64_t key);

 private:
  absl::Status ReadShapes(const TableInputs& inputs, const TableResource& table);

  std::optional<StringScope> string_scope_;
  TableKeys batch_;
  tensorflow::TensorShape shape_;
  tensorflow::TensorShape rows_shape_;
  Buffer<int64_t> widened_;  // narrow keys, and the numbers of strings
};

// Checks that an input has one row for each key.
absl::Status CheckRowsShape(const tensorflow::Tensor& rows, const char* argument,
                            const TableResource& table, const KeysInput& keys);

// Checks that an input has the table's value type and one row for each key.
absl::Status CheckRows(const tensorflow::Tensor& rows, const char* argument,
                       const TableResource& table, const KeysInput& keys);

// Reads input 3 of a lookup: the default rows of absent keys.
absl::Status ReadDefaults(const TableInputs& inputs, const TableResource& table,
                          const KeysInput& keys, DefaultRows* defaults);

// Checks that an output type equals the table's value type.
absl::Status CheckOutputType(tensorflow::DataType type, const TableResource& table);

// The thread pool, the stream and the memory of the op's device.
ExecContext ExecContextOf(tensorflow::OpKernelContext* context, bool training = false);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_OP_H_
