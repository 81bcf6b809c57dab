// SPDX-License-Identifier: Apache-2.0
// Prefetch.
#include "cc/tf/on_gpu.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class PrefetchOp : public TableOp {
 public:
  using TableOp::TableOp;

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kRead, &keys));
    const ExecContext exec = ThreadPoolOf(context, table);
    return ForEachShard(*table, keys, [&](Table* shard, const KeyBatch& batch) {
      return shard->tiers() == nullptr ? Status() : shard->tiers()->Prefetch(exec, batch);
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedPrefetch").Device(tf::DEVICE_CPU), PrefetchOp);
const OnGpu<PrefetchOp> prefetch_on_gpu("TfEmbedPrefetch", {"table", "keys", "owners"});

}  // namespace
}  // namespace tf_embed
