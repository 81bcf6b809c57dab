// SPDX-License-Identifier: Apache-2.0
// A batch of bags whose keys are from many tables, as used by the ops of cc/ops/table_batch_ops.cc.
// It is read from their inputs, or unpacked from the words of PackBatch.
#ifndef TF_EMBED_CC_TF_TABLE_BATCH_H_
#define TF_EMBED_CC_TF_TABLE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/base/exec_context.h"
#include "cc/core/pooling/bags.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// A run of bags of the same table. The pooled row of bag i starts at `begin + i * stride`. The bags
// determine the keys.
struct Piece {
  static constexpr int64_t kGiven = 5;  // fields given by the input `pieces`

  int64_t table;
  int64_t first_bag;
  int64_t num_bags;
  int64_t begin;
  int64_t stride;
  int64_t first_key;
  int64_t num_keys;
};

// A view: it does not own its arrays. On a GPU, keys and weights are in GPU memory. Offsets are
// too, if the batch was packed there.
class TableBatch {
 public:
  // Reads and checks the inputs `indices`, `offsets`, `pieces` and `weights`. `dims` are the dims
  // of the tables, and `size` counts the values of all pooled rows. Offsets and pieces are on the
  // host.
  absl::Status Read(tensorflow::OpKernelContext* context, const std::vector<int64_t>& dims,
                    int64_t size);

  // The packed form of a batch, in 64-bit words. The arrays of `Read` follow the header, with two
  // weights in each word.
  size_t PackedSize() const;
  void Pack(int64_t* words) const;
  // Reads and checks a packed batch at the start of `words` [count]. Sets `used` to its length.
  absl::Status Unpack(const int64_t* words, size_t count, const std::vector<int64_t>& dims,
                      size_t* used);

  // The same in GPU memory. UnpackOnGpu copies the pieces to the host and waits for them. It can't
  // check the offsets.
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
  // The offsets of a piece's bags, including the end of the last bag.
  const int64_t* offsets(const Piece& piece) const { return offsets_ + piece.first_bag; }
  // Null if the batch has no weights.
  const float* weights() const { return weights_; }
  const float* weights(const Piece& piece) const {
    return weights_ == nullptr ? nullptr : weights_ + piece.first_key;
  }
  bool is_weighted() const { return weights_ != nullptr; }
  // Number of keys in a piece's bag.
  int64_t bag_size(const Piece& piece, int64_t bag) const {
    return offsets(piece)[bag + 1] - offsets(piece)[bag];
  }

  // Appends the row splits of a piece, except the first, shifted to continue `splits`.
  void AddSplits(const Piece& piece, std::vector<int64_t>* splits) const;

 private:
  struct Header;

  // `head` is on the host; `words` may be in either memory.
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

// An op on many tables, given by their `dims`. Its kernels do not throw.
class TableBatchOp : public tensorflow::OpKernel {
 public:
  explicit TableBatchOp(tensorflow::OpKernelConstruction* construction);
  void Compute(tensorflow::OpKernelContext* context) final;

 protected:
  using Resources = std::vector<tensorflow::core::RefCountPtr<TableResource>>;

  virtual absl::Status Run(tensorflow::OpKernelContext* context) = 0;

  // Reads the input `tables`. The tables of a GPU op must be on that GPU.
  absl::Status LookUp(tensorflow::OpKernelContext* context, Resources* tables) const;

  // Whether an input is in GPU memory.
  bool IsOnGpu(tensorflow::OpKernelContext* context, const char* input) const;
  // The memory of the op's GPU.
  DeviceMemory* gpu_memory() const { return gpu_memory_; }

  Combiner combiner_ = Combiner::kSum;
  std::vector<int64_t> dims_;  // of each table

 private:
  DeviceMemory* gpu_memory_ = nullptr;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_BATCH_H_
