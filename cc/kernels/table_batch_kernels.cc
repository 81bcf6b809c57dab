// FindPooledTables, a pooled lookup in many tables at once, and WeightGradientsOfTables, the
// gradient of its weights.
#include <algorithm>
#include <memory>
#include <vector>

#include "cc/core/pooled_find.h"
#include "cc/kernels/table_batch.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Inputs that forward lookups and the gradient of weights share: tables, and a find for each piece.
class TablesOp : public TableBatchOp {
 public:
  explicit TablesOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 protected:
  struct Finds {
    Resources tables;
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
      find.quantized = shards[0]->options().value_type == DataType::kInt8;
    }
    return absl::OkStatus();
  }

  ExecContext ContextOf(tf::OpKernelContext* context, const Finds& all) const {
    return ThreadPoolOf(context, all.tables.front().get(), training_);
  }

 private:
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

REGISTER_KERNEL_BUILDER(Name("TfEmbedFindPooledTables").Device(tf::DEVICE_CPU), FindPooledTablesOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedWeightGradientsOfTables").Device(tf::DEVICE_CPU),
                        WeightGradientsOfTablesOp);

}  // namespace
}  // namespace tf_embed
