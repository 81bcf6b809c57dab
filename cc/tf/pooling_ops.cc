// SPDX-License-Identifier: Apache-2.0
// FindPooled.
#include <vector>

#include "cc/core/pooling/pooled_find.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class FindPooledOp : public TableOp {
 public:
  explicit FindPooledOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    Bags bags(table->allocator());
    DefaultRows defaults;
    Pooling pooling{attributes_.combiner, nullptr, attributes_.padding_key()};
    tf::TensorShape shape;
    tf::Tensor* pooled;
    // The find asks for the shard key by key, because keys that were split by shard would tear bags
    // apart.
    TF_RETURN_IF_ERROR(KeysInput::ReadUnspread(context, table, KeyUse::kRead, &keys));
    if (context->input(1).dtype() == tf::DT_STRING && !attributes_.padding_string.empty()) {
      // Padding is compared as a string, and gets the key that no string has. So it is never looked
      // up.
      keys.ReplaceString(context->input(1), attributes_.padding_string.front(), StringKeys::kNoKey);
    }
    TF_RETURN_IF_ERROR(ReadDefaults(context, *table, keys, &defaults));
    TF_RETURN_IF_ERROR(ReadBags(context, keys.shape(), &bags, &shape));
    const tf::DataType compute = ComputeType(table->signature().value_dtype);
    TF_RETURN_IF_ERROR(ReadWeights(context, compute, keys.size(), &pooling.weights));
    if (output_type(0) != compute) {
      return InvalidArgumentError("Rows of table '", table->name(), "' are pooled in ",
                                  tf::DataTypeString(compute),
                                  ". Asked for: ", tf::DataTypeString(output_type(0)), ".");
    }
    TF_RETURN_IF_ERROR(AddAxis(table->signature().dim, &shape));
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &pooled));
    PooledFind find;
    find.bags = &bags;
    find.pooling = pooling;
    find.defaults = defaults;
    find.pooled = pooled->data();
    find.stride = table->dim();
    const ExecContext exec = ThreadPoolOf(context, table, training_);
    std::vector<const Table*> shards(table->num_shards());
    for (size_t number = 0; number < shards.size(); ++number) {
      shards[number] = keys.on_device() ? table->device_shard(number) : table->shard(number);
    }
    find.keys = {keys.keys(), keys.owners(), keys.unsigned_keys(), shards.data(), shards.size()};
    return ToTensorFlow(keys.on_device()
                            ? OnDevice(table->device_shard(0))->FindPooled(exec, &find, 1)
                            : FindPooled(exec, &find, 1));
  }

  PoolingAttributes attributes_;
  bool training_ = false;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedFindPooled").Device(tf::DEVICE_CPU), FindPooledOp);

const OnGpu<FindPooledOp> find_pooled("TfEmbedFindPooled", {"table", "owners", "tokens", "bags"},
                                      KeyTypes::kWide);
const OnGpu<FindPooledOp> narrow_find_pooled("TfEmbedFindPooled",
                                             {"table", "keys", "owners", "defaults", "tokens",
                                              "bags", "weights", "pooled"},
                                             KeyTypes::kNarrow);

}  // namespace
}  // namespace tf_embed
