// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iterator>

#include "cc/core/table/table_stats.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class StatsOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    TableStats stats;
    for (size_t number = 0; number < table->num_shards(); ++number) {
      // In this order: the error is also that of the count in the statistics.
      stats.Add(table->shard(number)->Stats());
      TF_RETURN_IF_ERROR(ToTensorFlow(table->shard(number)->CheckReachable()));
    }
    // Shared by all shards.
    if (table->admission() != nullptr) stats.admission_bytes = table->admission()->bytes();
    if (table->evicted() != nullptr) stats.undrained = table->evicted()->size();
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {static_cast<int64_t>(std::size(kTableStats))}, &output));
    int64_t* next = output->flat<int64_t>().data();
    for (const TableStat& stat : kTableStats) *next++ = static_cast<int64_t>(stats.*stat.number);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedStats").Device(tf::DEVICE_CPU), StatsOp);
const OnGpu<StatsOp> stats("TfEmbedStats", {"table", "numbers"});

class OriginOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    const RowInitializer initializer = table->shard(0)->initializer();
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {2}, &output));
    output->flat<int64_t>()(0) = static_cast<int64_t>(initializer.seed);
    output->flat<int64_t>()(1) = static_cast<int64_t>(initializer.table_id);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedOrigin").Device(tf::DEVICE_CPU), OriginOp);
const OnGpu<OriginOp> origin("TfEmbedOrigin", {"table", "numbers"});

}  // namespace
}  // namespace tf_embed
