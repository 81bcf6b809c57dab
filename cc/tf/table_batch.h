// SPDX-License-Identifier: Apache-2.0
// A batch of bags whose keys are of many tables, as the ops of cc/ops/table_batch_ops.cc take it:
// out of their inputs, or out of the words that one of them has packed it in.
#ifndef TF_EMBED_CC_TF_TABLE_BATCH_H_
#define TF_EMBED_CC_TF_TABLE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/base/first_failure.h"
#include "cc/core/pooling/bags.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// A run of bags whose keys are of one table, and where their pooled rows lie: that of its i-th bag
// at `begin + i * stride`. The keys follow from the bags.
struct Piece {
  static constexpr int64_t kGiven = 5;  // numbers of it in the input `pieces`

  int64_t table;
  int64_t first_bag;
  int64_t num_bags;
  int64_t begin;
  int64_t stride;
  int64_t first_key;
  int64_t num_keys;
};

// Does not own what it is made of. On a GPU keys and weights are in its memory; so are offsets
// where the batch was packed there.
class TableBatch {
 public:
  // Reads the inputs `indices`, `offsets`, `pieces` and `weights`, and checks them; `dims` are
  // those of the tables, pooled rows are `size` values in all. Offsets and pieces are on the host.
  absl::Status Read(tensorflow::OpKernelContext* context, const std::vector<int64_t>& dims,
                    int64_t size);

  // A batch in words. All but the first ones are as the inputs of `Read` have them; two weights
  // are a word.
  size_t PackedSize() const;
  void Pack(int64_t* words) const;
  // Reads, and checks, a packed batch at the begin of `words` [count]; sets `used` to its length.
  absl::Status Unpack(const int64_t* words, size_t count, const std::vector<int64_t>& dims,
                      size_t* used);

  // The same in the memory of a GPU. UnpackOnGpu reads the pieces from there, and waits for them;
  // what it can't check are the offsets.
  absl::Status PackOnGpu(const ExecContext& exec, DeviceMemory* memory, int64_t* words) const;
  absl::Status UnpackOnGpu(const ExecContext& exec, DeviceMemory* memory, const int64_t* words,
                           size_t count, const std::vector<int64_t>& dims, size_t* used);

  // Number of pooled values.
  int64_t size() const { return size_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t num_keys() const { return num_keys_; }
  int64_t num_bags() const { return num_bags_; }
  // All keys, and the offsets of all bags.
  const int64_t* keys() const { return keys_; }
  const int64_t* offsets() const { return offsets_; }
  const int64_t* keys(const Piece& piece) const { return keys_ + piece.first_key; }
  // The offsets of its bags, and where the last one ends.
  const int64_t* offsets(const Piece& piece) const { return offsets_ + piece.first_bag; }
  // Null where there are none.
  const float* weights() const { return weights_; }
  const float* weights(const Piece& piece) const {
    return weights_ == nullptr ? nullptr : weights_ + piece.first_key;
  }
  bool is_weighted() const { return weights_ != nullptr; }
  // Number of keys in a piece's bag.
  int64_t bag_size(const Piece& piece, int64_t bag) const {
    return offsets(piece)[bag + 1] - offsets(piece)[bag];
  }

  // Adds the row splits of a piece, but for the first, to those that end at the keys before it.
  void AddSplits(const Piece& piece, std::vector<int64_t>* splits) const;

 private:
  struct Header;

  // The first two are on the host, `words` wherever they are.
  absl::Status Open(const int64_t* head, size_t head_size, const int64_t* words, size_t count,
                    size_t* used);
  std::vector<int64_t> Head() const;
  absl::Status Check(const std::vector<int64_t>& dims);
  absl::Status CheckOffsets() const;
  absl::Status CheckPieces(const std::vector<int64_t>& dims) const;
  absl::Status CheckPiece(const Piece& piece, const std::vector<int64_t>& dims) const;

  const int64_t* keys_ = nullptr;
  int64_t num_keys_ = 0;
  const float* weights_ = nullptr;
  const int64_t* offsets_ = nullptr;
  int64_t num_bags_ = 0;
  int64_t size_ = 0;
  std::vector<Piece> pieces_;
};

// An op on many tables, which it knows by their `dims`; its kernels throw nothing.
class TableBatchOp : public tensorflow::OpKernel {
 public:
  explicit TableBatchOp(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) final;

 protected:
  using Resources = std::vector<tensorflow::core::RefCountPtr<TableResource>>;

  virtual absl::Status Run(tensorflow::OpKernelContext* context) = 0;

  // Reads the input `tables`; of an op on a GPU they must be on it too.
  absl::Status LookUp(tensorflow::OpKernelContext* context, Resources* tables) const;

  // Whether an input is in the memory of a GPU.
  bool IsOnGpu(tensorflow::OpKernelContext* context, const char* input) const;
  // The memory of the GPU that the op is made for.
  DeviceMemory* gpu_memory() const { return gpu_memory_; }

  // Calls `work(context, table)` for each table: many tables at once, or where there are few, one
  // after the other with many threads each. A table has `num_keys / tables` keys, roughly, each of
  // `key_cost` nanoseconds.
  //
  // Work on many tables at once runs in the threads of a pool: REQUIRES: `exec` holds the tables
  // that it works on, if any (HeldTables).
  template <typename Work>
  absl::Status ForEachTable(const ExecContext& exec, size_t num_keys, size_t key_cost,
                            const Work& work) const;
  bool WorksOnManyAtOnce() const { return dims_.size() >= kMany; }

  Combiner combiner_ = Combiner::kSum;
  std::vector<int64_t> dims_;  // of each table

 private:
  static constexpr size_t kMany = 8;

  DeviceMemory* gpu_memory_ = nullptr;
};

template <typename Work>
absl::Status TableBatchOp::ForEachTable(const ExecContext& exec, size_t num_keys, size_t key_cost,
                                        const Work& work) const {
  const size_t count = dims_.size();
  if (!WorksOnManyAtOnce()) {
    for (size_t i = 0; i < count; ++i) TF_RETURN_IF_ERROR(ToTensorFlow(work(exec, i)));
    return absl::OkStatus();
  }
  const ExecContext serial = exec.InSerial();
  FirstFailure failure;
  const auto some = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end && !failure.failed(); ++i) {
      Status status;
      try {
        status = work(serial, i);
      } catch (const std::bad_alloc&) {
        status = Status::ResourceExhausted(
            [] { return std::string("No memory for the gradients of many tables."); });
      }
      if (!status.ok()) failure.Note(std::move(status));
    }
  };
  exec.parallel_for(count, key_cost * (num_keys / count + 1), std::cref(some));
  return ToTensorFlow(failure.Take());
}

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_BATCH_H_
