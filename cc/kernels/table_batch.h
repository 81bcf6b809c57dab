// A batch of bags whose keys are of many tables, as the ops of cc/ops/table_batch_ops.cc take it:
// out of their inputs, or out of the words that one of them has packed it in.
#ifndef TF_EMBED_CC_KERNELS_TABLE_BATCH_H_
#define TF_EMBED_CC_KERNELS_TABLE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/bags.h"
#include "cc/core/exec_context.h"
#include "cc/core/first_failure.h"
#include "cc/kernels/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {

// A run of bags whose keys are of one table, and where their pooled rows lie: that of its i-th bag
// at `begin + i * stride`.
struct Piece {
  int64_t table;
  int64_t first_bag;
  int64_t num_bags;
  int64_t begin;
  int64_t stride;
};

// Does not own what it is made of.
class TableBatch {
 public:
  // Reads the inputs `indices`, `offsets`, `pieces` and `weights`, and checks them; `dims` are
  // those of the tables, pooled rows are `size` values in all.
  absl::Status Read(tensorflow::OpKernelContext* context, const std::vector<int64_t>& dims,
                    int64_t size);

  // A batch in words. All but the first ones are as the inputs of `Read` have them; two weights
  // are a word.
  size_t PackedSize() const;
  void Pack(int64_t* words) const;
  // Reads, and checks, a packed batch at the begin of `words` [count]; sets `used` to its length.
  absl::Status Unpack(const int64_t* words, size_t count, const std::vector<int64_t>& dims,
                      size_t* used);

  // Number of pooled values.
  int64_t size() const { return size_; }
  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t num_keys() const { return num_keys_; }
  int64_t key_begin(const Piece& piece) const { return offsets_[piece.first_bag]; }
  int64_t num_keys(const Piece& piece) const {
    return offsets_[piece.first_bag + piece.num_bags] - key_begin(piece);
  }
  const int64_t* keys(const Piece& piece) const { return keys_ + key_begin(piece); }
  // Null where there are none.
  const float* weights(const Piece& piece) const {
    return weights_ == nullptr ? nullptr : weights_ + key_begin(piece);
  }
  bool is_weighted() const { return weights_ != nullptr; }
  // Number of keys in a piece's bag.
  int64_t bag_size(const Piece& piece, int64_t bag) const {
    const int64_t* const offset = offsets_ + piece.first_bag + bag;
    return offset[1] - offset[0];
  }

  // Adds the row splits of a piece, but for the first, to those that end at the keys before it.
  void AddSplits(const Piece& piece, std::vector<int64_t>* splits) const;

 private:
  absl::Status Check(const std::vector<int64_t>& dims) const;
  absl::Status CheckOffsets() const;
  absl::Status CheckPiece(const Piece& piece, const std::vector<int64_t>& dims) const;
  void ReadPieces(const int64_t* numbers, int64_t count);

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

  // Reads the input `tables`.
  absl::Status LookUp(tensorflow::OpKernelContext* context, Resources* tables) const;

  // Calls `work(context, table)` for each table: many tables at once, or where there are few, one
  // after the other with many threads each. A table has `num_keys / tables` keys, roughly, each of
  // `key_cost` nanoseconds.
  template <typename Work>
  absl::Status ForEachTable(const ExecContext& exec, size_t num_keys, size_t key_cost,
                            const Work& work) const;

  Combiner combiner_ = Combiner::kSum;
  std::vector<int64_t> dims_;  // of each table
};

template <typename Work>
absl::Status TableBatchOp::ForEachTable(const ExecContext& exec, size_t num_keys, size_t key_cost,
                                        const Work& work) const {
  constexpr size_t kMany = 8;
  const size_t count = dims_.size();
  if (count < kMany) {
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

#endif  // TF_EMBED_CC_KERNELS_TABLE_BATCH_H_
