// SPDX-License-Identifier: Apache-2.0
// FindPooledTables: a pooled lookup in many tables. WeightGradientsOfTables: the gradient of its
// weights.
#include <algorithm>
#include <memory>
#include <vector>

#include "cc/core/pooling/pooled_find.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/table_batch.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Inputs shared by the lookup and the gradient of its weights: the tables, and a find for each
// piece.
class TablesOp : public TableBatchOp {
 public:
  explicit TablesOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 protected:
  struct Finds {
    Resources tables;
    std::vector<std::vector<const Table*>> shards;
    std::vector<Moment> moments;  // of each table's clock
    std::vector<std::vector<int64_t>> splits;
    std::vector<std::unique_ptr<Bags>> bags;
    TableBatch batch;
    std::vector<PooledFind> finds;  // one for each piece
    bool on_gpu = false;
  };

  // Reads all inputs except the pooled values, which number `size`.
  absl::Status ReadFinds(tf::OpKernelContext* context, int64_t size, Finds* all) {
    TF_RETURN_IF_ERROR(LookUp(context, &all->tables));
    TF_RETURN_IF_ERROR(all->batch.Read(context, dims_, size));
    all->on_gpu = IsOnGpu(context, "indices");
    for (const auto& table : all->tables) {
      all->shards.emplace_back();
      for (size_t number = 0; number < table->num_shards(); ++number) {
        all->shards.back().push_back(all->on_gpu ? table->device_shard(number)
                                                 : table->shard(number));
      }
    }
    const size_t count = all->batch.pieces().size();
    for (const auto& table : all->tables) all->moments.push_back(table->clock()->Now());
    // One vector a piece, sized before the loop: finds keep pointers into them.
    all->splits.assign(count, {0});
    all->finds.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = all->batch.pieces()[i];
      const std::vector<const Table*>& shards = all->shards[static_cast<size_t>(piece.table)];
      std::vector<int64_t>& splits = all->splits[i];
      all->batch.AddSplits(piece, &splits);
      all->bags.push_back(std::make_unique<Bags>(HostAllocator()));
      TF_RETURN_IF_ERROR(ToTensorFlow(all->bags[i]->OfSplits(splits.data(), splits.size(),
                                                             static_cast<size_t>(piece.num_keys))));
      PooledFind& find = all->finds[i];
      find.keys = {all->batch.keys(piece), nullptr, false, shards.data(), shards.size()};
      find.bags = all->bags[i].get();
      find.pooling = {combiner_, all->batch.weights(piece), nullptr};
      find.stride = static_cast<size_t>(piece.stride);
      find.now = &all->moments[static_cast<size_t>(piece.table)];
      find.quantized = shards[0]->options().value_type == DataType::kInt8;
    }
    return absl::OkStatus();
  }

  // `values` are the pooled rows or their gradient.
  static void SetValues(float* values, Finds* all) {
    for (size_t i = 0; i < all->finds.size(); ++i) {
      all->finds[i].pooled = values + all->batch.pieces()[i].begin;
    }
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
    int64_t num_values;
    TF_RETURN_IF_ERROR(context->input("size", &size));
    TF_RETURN_IF_ERROR(ReadScalar(*size, "size", &num_values));
    Finds all;
    TF_RETURN_IF_ERROR(ReadFinds(context, num_values, &all));
    tf::Tensor* pooled;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_values}, &pooled));
    SetValues(pooled->flat<float>().data(), &all);
    const ExecContext exec = ContextOf(context, all);
    if (!all.on_gpu) return ToTensorFlow(FindPooled(exec, all.finds.data(), all.finds.size()));
    return FindOnGpu(exec, all);
  }

  // Looks up tiered tables one by one, and all other tables together.
  static absl::Status FindOnGpu(const ExecContext& exec, const Finds& all) {
    std::vector<PooledFind> together;
    DeviceTable* first = nullptr;
    for (size_t i = 0; i < all.finds.size(); ++i) {
      TableResource* const table =
          all.tables[static_cast<size_t>(all.batch.pieces()[i].table)].get();
      DeviceTable* const on_device = OnDevice(table->device_shard(0));
      if (table->shard(0)->tiers() != nullptr) {
        TF_RETURN_IF_ERROR(ToTensorFlow(on_device->FindPooled(exec, &all.finds[i], 1)));
      } else {
        together.push_back(all.finds[i]);
        if (first == nullptr) first = on_device;
      }
    }
    if (first == nullptr) return absl::OkStatus();
    return ToTensorFlow(first->FindPooled(exec, together.data(), together.size()));
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
    TF_RETURN_IF_ERROR(CheckRank(*gradient, "gradient", 1));
    Finds all;
    TF_RETURN_IF_ERROR(ReadFinds(context, gradient->NumElements(), &all));
    // The cast is safe: the gradient is only read.
    SetValues(const_cast<float*>(gradient->flat<float>().data()), &all);
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, indices->shape(), &output));
    float* const of_weights = output->flat<float>().data();
    // Weights of bags outside every piece keep gradient 0.
    std::fill_n(of_weights, output->NumElements(), 0.0f);
    std::vector<void*> of_pieces;
    for (const Piece& piece : all.batch.pieces()) {
      of_pieces.push_back(of_weights + piece.first_key);
    }
    return ToTensorFlow(FindWeightGradients(ContextOf(context, all), all.finds.data(),
                                            all.finds.size(), of_pieces.data()));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedFindPooledTables").Device(tf::DEVICE_CPU), FindPooledTablesOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedWeightGradientsOfTables").Device(tf::DEVICE_CPU),
                        WeightGradientsOfTablesOp);

const OnGpu<FindPooledTablesOp> find_pooled_tables("TfEmbedFindPooledTables",
                                                   {"tables", "offsets", "pieces", "size",
                                                    "tokens"});
const OnGpu<WeightGradientsOfTablesOp> weight_gradients("TfEmbedWeightGradientsOfTables",
                                                        {"tables", "indices", "offsets", "pieces",
                                                         "gradient", "weights", "of_weights"});

}  // namespace
}  // namespace tf_embed
