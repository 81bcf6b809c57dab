// FindPooledTables, a pooled lookup in many tables at once, and its gradients: SumByKeyTables for
// the tables, WeightGradientsOfTables for the weights.
#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cc/core/first_failure.h"
#include "cc/core/key_sums.h"
#include "cc/core/pooled_find.h"
#include "cc/kernels/table_op.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// A run of bags whose keys are of one table, and where their pooled rows lie: that of its i-th bag
// at `begin + i * stride`.
struct Piece {
  int64_t table;
  int64_t first_bag;
  int64_t num_bags;
  int64_t begin;
  int64_t stride;
};

// The inputs `indices`, `offsets`, `pieces` and `weights`, checked; pooled rows are `size` values
// in all.
class TableBatch {
 public:
  absl::Status Read(tf::OpKernelContext* context, const std::vector<int64_t>& dims, int64_t size) {
    const tf::Tensor *indices, *offsets, *pieces;
    TF_RETURN_IF_ERROR(context->input("indices", &indices));
    TF_RETURN_IF_ERROR(context->input("offsets", &offsets));
    TF_RETURN_IF_ERROR(context->input("pieces", &pieces));
    tf::OpInputList weights;
    TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
    num_keys_ = indices->NumElements();
    keys_ = indices->flat<int64_t>().data();
    if (weights.size() > 0) {
      if (weights[0].NumElements() != num_keys_) {
        return InvalidArgumentError("`weights` must have one for each of ", num_keys_,
                                    " indices. Received: ", weights[0].NumElements(), ".");
      }
      weights_ = weights[0].flat<float>().data();
    }
    offsets_ = offsets->flat<int64_t>().data();
    num_bags_ = offsets->NumElements() - 1;
    TF_RETURN_IF_ERROR(CheckOffsets());
    if (pieces->dims() != 2 || pieces->dim_size(1) != 5) {
      return InvalidArgumentError(
          "`pieces` must have shape [n, 5]. Received: ", pieces->shape().DebugString(), ".");
    }
    const int64_t* const numbers = pieces->flat<int64_t>().data();
    int64_t covered = 0;
    for (int64_t i = 0; i < pieces->dim_size(0); ++i) {
      const int64_t* const n = numbers + 5 * i;
      const Piece piece{n[0], n[1], n[2], n[3], n[4]};
      TF_RETURN_IF_ERROR(CheckPiece(piece, dims, size));
      covered += piece.num_bags * dims[static_cast<size_t>(piece.table)];
      pieces_.push_back(piece);
    }
    if (covered == size) return absl::OkStatus();
    return InvalidArgumentError("`pieces` must cover all of ", size,
                                " pooled values. Received: pieces of ", covered, ".");
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
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

  // Adds the row splits of a piece, but for the first, to those that end at the keys before it.
  void AddSplits(const Piece& piece, std::vector<int64_t>* splits) const {
    const int64_t shift = splits->back() - key_begin(piece);
    for (int64_t bag = 1; bag <= piece.num_bags; ++bag) {
      splits->push_back(offsets_[piece.first_bag + bag] + shift);
    }
  }

 private:
  absl::Status CheckOffsets() const {
    if (num_bags_ < 0 || offsets_[0] != 0 || offsets_[num_bags_] != num_keys_) {
      return InvalidArgumentError(
          "`offsets` must go from 0 to the number of indices, ", num_keys_,
          ". Received: ", num_bags_ + 1, " offsets",
          num_bags_ < 0 ? "" : absl::StrCat(" from ", offsets_[0], " to ", offsets_[num_bags_]),
          ".");
    }
    const int64_t* const wrong =
        std::adjacent_find(offsets_, offsets_ + num_bags_ + 1, std::greater<int64_t>());
    if (wrong == offsets_ + num_bags_ + 1) return absl::OkStatus();
    return InvalidArgumentError("`offsets` must not decrease. Received: ", wrong[0], " and then ",
                                wrong[1], " at ", wrong - offsets_ + 1, ".");
  }

  absl::Status CheckPiece(const Piece& piece, const std::vector<int64_t>& dims,
                          int64_t size) const {
    const bool of_a_table = piece.table >= 0 && piece.table < static_cast<int64_t>(dims.size());
    const int64_t dim = of_a_table ? dims[static_cast<size_t>(piece.table)] : 0;
    const bool has_bags = piece.first_bag >= 0 && piece.num_bags >= 0 &&
                          piece.first_bag <= num_bags_ - piece.num_bags;
    const bool has_room =
        piece.begin >= 0 && piece.stride >= dim && piece.stride <= size &&
        (piece.num_bags == 0 || piece.begin <= size - dim - (piece.num_bags - 1) * piece.stride);
    if (of_a_table && has_bags && (has_room || piece.num_bags == 0)) return absl::OkStatus();
    return InvalidArgumentError("`pieces` must be of ", dims.size(), " tables, ", num_bags_,
                                " bags and ", size, " pooled values. Received: table ", piece.table,
                                ", ", piece.num_bags, " bags from ", piece.first_bag,
                                ", values from ", piece.begin, " by ", piece.stride, ".");
  }

  const int64_t* keys_ = nullptr;
  int64_t num_keys_ = 0;
  const float* weights_ = nullptr;
  const int64_t* offsets_ = nullptr;
  int64_t num_bags_ = 0;
  std::vector<Piece> pieces_;
};

absl::Status ReadCombiner(tf::OpKernelConstruction* construction, Combiner* combiner) {
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr("combiner", &name));
  *combiner = name == "mean" ? Combiner::kMeanOfCount : Combiner::kSum;
  return absl::OkStatus();
}

// An op on many tables, whose kernels throw nothing.
class TableBatchOp : public tf::OpKernel {
 public:
  explicit TableBatchOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadCombiner(construction, &combiner_));
    OP_REQUIRES_OK(construction, construction->GetAttr("dims", &dims_));
  }

  void Compute(tf::OpKernelContext* context) final {
    try {
      OP_REQUIRES_OK(context, Run(context));
    } catch (const std::bad_alloc&) {
      context->CtxFailure(ResourceExhaustedError("No memory for a lookup in many tables."));
    }
  }

 protected:
  virtual absl::Status Run(tf::OpKernelContext* context) = 0;

  Combiner combiner_ = Combiner::kSum;
  std::vector<int64_t> dims_;  // of each table
};

// Inputs that forward lookups and the gradient of weights share: tables, and a find for each piece.
class TablesOp : public TableBatchOp {
 public:
  explicit TablesOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 protected:
  struct Finds {
    std::vector<tf::core::RefCountPtr<TableResource>> tables;
    std::vector<std::vector<const Table*>> shards;
    std::vector<std::vector<int64_t>> splits;
    std::vector<std::unique_ptr<Bags>> bags;
    TableBatch batch;
    std::vector<PooledFind> finds;  // one for each piece
  };

  // `values` [size] are the pooled ones, or their gradient.
  absl::Status ReadFinds(tf::OpKernelContext* context, float* values, int64_t size, Finds* all) {
    TF_RETURN_IF_ERROR(LookUp(context, &all->tables));
    TF_RETURN_IF_ERROR(all->batch.Read(context, dims_, size));
    for (const auto& table : all->tables) {
      const std::vector<Table*> shards = table->shards();
      all->shards.emplace_back(shards.begin(), shards.end());
    }
    const size_t count = all->batch.pieces().size();
    all->splits.assign(count, {0});
    all->finds.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = all->batch.pieces()[i];
      const std::vector<const Table*>& shards = all->shards[static_cast<size_t>(piece.table)];
      std::vector<int64_t>& splits = all->splits[i];
      all->batch.AddSplits(piece, &splits);
      all->bags.push_back(std::make_unique<Bags>(HostAllocator()));
      TF_RETURN_IF_ERROR(ToTensorFlow(all->bags[i]->OfSplits(
          splits.data(), splits.size(), static_cast<size_t>(all->batch.num_keys(piece)))));
      PooledFind& find = all->finds[i];
      find.keys = {all->batch.keys(piece), nullptr, false, shards.data(), shards.size()};
      find.bags = all->bags[i].get();
      find.pooling = {combiner_, all->batch.weights(piece), nullptr};
      find.pooled = values + piece.begin;
      find.stride = static_cast<size_t>(piece.stride);
    }
    return absl::OkStatus();
  }

  ExecContext ContextOf(tf::OpKernelContext* context, const Finds& all) const {
    return ThreadPoolOf(context, all.tables.front().get(), training_);
  }

 private:
  absl::Status LookUp(tf::OpKernelContext* context,
                      std::vector<tf::core::RefCountPtr<TableResource>>* tables) const {
    tf::OpInputList handles;
    TF_RETURN_IF_ERROR(context->input_list("tables", &handles));
    if (static_cast<size_t>(handles.size()) != dims_.size()) {
      return InvalidArgumentError("`dims` must have one for each of ", handles.size(),
                                  " tables. Received: ", dims_.size(), ".");
    }
    tables->resize(dims_.size());
    for (size_t i = 0; i < dims_.size(); ++i) {
      const tf::Tensor& handle = handles[static_cast<int>(i)];
      TF_RETURN_IF_ERROR(
          tf::LookupResource(context, handle.scalar<tf::ResourceHandle>()(), &(*tables)[i]));
      const TableResource::Signature& signature = (*tables)[i]->signature();
      if (signature.dim == dims_[i] && signature.key_dtype == tf::DT_INT64 &&
          signature.value_dtype != tf::DT_DOUBLE) {
        continue;
      }
      return InvalidArgumentError("Table ", i, " of a batch must have int64 keys, dim ", dims_[i],
                                  " and rows that are pooled in float. Received: '",
                                  (*tables)[i]->name(), "', ", signature.DebugString(), ".");
    }
    return absl::OkStatus();
  }

  bool training_ = false;
};

class FindPooledTablesOp : public TablesOp {
 public:
  using TablesOp::TablesOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor* size;
    TF_RETURN_IF_ERROR(context->input("size", &size));
    const int64_t num_values = size->scalar<int64_t>()();
    if (num_values < 0) {
      return InvalidArgumentError("`size` must not be negative. Received: ", num_values, ".");
    }
    tf::Tensor* pooled;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_values}, &pooled));
    Finds all;
    TF_RETURN_IF_ERROR(ReadFinds(context, pooled->flat<float>().data(), num_values, &all));
    return ToTensorFlow(FindPooled(ContextOf(context, all), all.finds.data(), all.finds.size()));
  }
};

class WeightGradientsOfTablesOp : public TablesOp {
 public:
  using TablesOp::TablesOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor *gradient, *indices;
    TF_RETURN_IF_ERROR(context->input("gradient", &gradient));
    TF_RETURN_IF_ERROR(context->input("indices", &indices));
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, indices->shape(), &output));
    float* const of_weights = output->flat<float>().data();
    std::fill_n(of_weights, output->NumElements(), 0.0f);  // of bags that no piece has
    Finds all;
    // A gradient is only read.
    TF_RETURN_IF_ERROR(ReadFinds(context, const_cast<float*>(gradient->flat<float>().data()),
                                 gradient->NumElements(), &all));
    std::vector<void*> of_pieces;
    for (const Piece& piece : all.batch.pieces()) {
      of_pieces.push_back(of_weights + all.batch.key_begin(piece));
    }
    return ToTensorFlow(FindWeightGradients(ContextOf(context, all), all.finds.data(),
                                            all.finds.size(), of_pieces.data()));
  }
};

// The keys of one table in a batch, in all of its pieces, and the gradients of their bags.
class KeysOfTable {
 public:
  KeysOfTable(const TableBatch& batch, int64_t table, size_t dim)
      : batch_(batch), dim_(dim), bags_(HostAllocator()), sums_(HostAllocator()) {
    for (const Piece& piece : batch.pieces()) {
      if (piece.table == table) pieces_.push_back(piece);
    }
  }

  // Finds the distinct keys.
  Status Build(const ExecContext& exec) {
    const int64_t* keys = nullptr;
    int64_t num_keys = 0;
    for (const Piece& piece : pieces_) {
      batch_.AddSplits(piece, &splits_);
      num_keys += batch_.num_keys(piece);
    }
    if (pieces_.size() == 1) {
      keys = batch_.keys(pieces_[0]);
      weights_ = batch_.weights(pieces_[0]);
    } else if (num_keys > 0) {
      for (const Piece& piece : pieces_) {
        const int64_t* const of_piece = batch_.keys(piece);
        own_keys_.insert(own_keys_.end(), of_piece, of_piece + batch_.num_keys(piece));
        if (!batch_.is_weighted()) continue;
        const float* const weights = batch_.weights(piece);
        own_weights_.insert(own_weights_.end(), weights, weights + batch_.num_keys(piece));
      }
      keys = own_keys_.data();
      weights_ = batch_.is_weighted() ? own_weights_.data() : nullptr;
    }
    TF_EMBED_RETURN_IF_ERROR(
        bags_.OfSplits(splits_.data(), splits_.size(), static_cast<size_t>(num_keys)));
    return sums_.Build(exec, keys, static_cast<size_t>(num_keys), nullptr);
  }

  size_t size() const { return sums_.size(); }

  // Writes the distinct keys [size] and the sums of their gradients [size, dim].
  Status Write(const ExecContext& exec, const float* gradients, Combiner combiner, DataType type,
               int64_t* distinct, void* sums) {
    sums_.WriteKeys(distinct);
    // The gradients of a table's bags, one after the other.
    std::vector<float> rows(bags_.size() * dim_);
    float* to = rows.data();
    for (const Piece& piece : pieces_) {
      for (int64_t bag = 0; bag < piece.num_bags; ++bag, to += dim_) {
        std::copy_n(gradients + piece.begin + bag * piece.stride, dim_, to);
      }
    }
    const KeyGradients of{
        rows.data(), DataType::kFloat, dim_, &bags_, {combiner, weights_, nullptr}};
    return sums_.WriteSums(exec, of, type, sums);
  }

 private:
  const TableBatch& batch_;
  const size_t dim_;
  std::vector<Piece> pieces_;
  std::vector<int64_t> splits_{0};
  std::vector<int64_t> own_keys_;
  std::vector<float> own_weights_;
  const float* weights_ = nullptr;
  Bags bags_;
  KeySums sums_;
};

class SumByKeyTablesOp : public TableBatchOp {
 public:
  using TableBatchOp::TableBatchOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor* gradient;
    TF_RETURN_IF_ERROR(context->input("gradient", &gradient));
    TableBatch batch;
    TF_RETURN_IF_ERROR(batch.Read(context, dims_, gradient->NumElements()));
    const size_t count = dims_.size();
    std::vector<std::unique_ptr<KeysOfTable>> tables;
    for (size_t i = 0; i < count; ++i) {
      tables.push_back(std::make_unique<KeysOfTable>(batch, static_cast<int64_t>(i),
                                                     static_cast<size_t>(dims_[i])));
    }
    const ExecContext exec = ThreadPoolOf(context);
    TF_RETURN_IF_ERROR(ForEachTable(
        exec, batch, [&](const ExecContext& each, size_t i) { return tables[i]->Build(each); }));
    tf::OpOutputList distinct, sums;
    TF_RETURN_IF_ERROR(context->output_list("distinct", &distinct));
    TF_RETURN_IF_ERROR(context->output_list("sums", &sums));
    std::vector<int64_t*> keys(count);
    std::vector<tf::Tensor*> of_keys(count);
    for (size_t i = 0; i < count; ++i) {
      const int number = static_cast<int>(i);
      const int64_t size = static_cast<int64_t>(tables[i]->size());
      tf::Tensor* tensor;
      TF_RETURN_IF_ERROR(distinct.allocate(number, {size}, &tensor));
      keys[i] = tensor->flat<int64_t>().data();
      TF_RETURN_IF_ERROR(sums.allocate(number, {size, dims_[i]}, &of_keys[i]));
    }
    const float* const gradients = gradient->flat<float>().data();
    return ForEachTable(exec, batch, [&](const ExecContext& each, size_t i) {
      return tables[i]->Write(each, gradients, combiner_, CoreType(of_keys[i]->dtype()), keys[i],
                              of_keys[i]->data());
    });
  }

  // Calls `work(context, table)` for each table: many tables at once, or where there are few, one
  // after the other with many threads each.
  template <typename Work>
  absl::Status ForEachTable(const ExecContext& exec, const TableBatch& batch, const Work& work) {
    constexpr size_t kMany = 8;
    constexpr size_t kKeyCost = 30;  // nanoseconds
    const size_t count = dims_.size();
    if (count < kMany) {
      for (size_t i = 0; i < count; ++i) TF_RETURN_IF_ERROR(ToTensorFlow(work(exec, i)));
      return absl::OkStatus();
    }
    size_t keys = 0;
    for (const Piece& piece : batch.pieces()) keys += static_cast<size_t>(batch.num_keys(piece));
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
    exec.parallel_for(count, kKeyCost * (keys / count + 1), std::cref(some));
    return ToTensorFlow(failure.Take());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedFindPooledTables").Device(tf::DEVICE_CPU), FindPooledTablesOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedWeightGradientsOfTables").Device(tf::DEVICE_CPU),
                        WeightGradientsOfTablesOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSumByKeyTables").Device(tf::DEVICE_CPU), SumByKeyTablesOp);

}  // namespace
}  // namespace tf_embed
