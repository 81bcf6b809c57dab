// SPDX-License-Identifier: Apache-2.0
// FindPooledTables: a pooled lookup in many tables.
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

class FindPooledTablesOp : public TableBatchOp {
 public:
  explicit FindPooledTablesOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 private:
  // The tables, and a find for each piece.
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

  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor* size;
    int64_t num_values;
    TF_RETURN_IF_ERROR(context->input("size", &size));
    TF_RETURN_IF_ERROR(ReadScalar(*size, "size", &num_values));
    Finds all;
    TF_RETURN_IF_ERROR(ReadFinds(context, num_values, &all));
    tf::Tensor* pooled;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_values}, &pooled));
    for (size_t i = 0; i < all.finds.size(); ++i) {
      all.finds[i].pooled = pooled->flat<float>().data() + all.batch.pieces()[i].begin;
    }
    const ExecContext exec = ThreadPoolOf(context, all.tables.front().get(), training_);
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

  bool training_ = false;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedFindPooledTables").Device(tf::DEVICE_CPU), FindPooledTablesOp);

const OnGpu<FindPooledTablesOp> find_pooled_tables("TfEmbedFindPooledTables",
                                                   {"tables", "offsets", "pieces", "size",
                                                    "tokens"});

}  // namespace
}  // namespace tf_embed
