// Find and FindOrInsert.
#include "cc/kernels/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

template <bool insert>
class FindOp : public TableOp {
 public:
  explicit FindOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    DefaultRows defaults;
    tf::Tensor* values;
    tf::Tensor* exists;
    TF_RETURN_IF_ERROR(KeysInput::Read(context, *table, &keys));
    TF_RETURN_IF_ERROR(ReadDefaults(context, *table, keys, &defaults));
    TF_RETURN_IF_ERROR(CheckOutputType(output_type(0), *table));
    TF_RETURN_IF_ERROR(context->allocate_output(0, keys.RowsShape(*table), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(1, keys.shape(), &exists));
    const ExecContext exec = ThreadPoolOf(context, table, training_);
    bool* const flags = exists->flat<bool>().data();
    return ForEachShard(*table, keys, [&](Table* shard, const KeyBatch& batch) {
      return insert ? shard->FindOrInsert(exec, batch, defaults, values->data(), flags)
                    : shard->Find(exec, batch, defaults, values->data(), flags, {});
    });
  }

  bool training_ = false;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedFind").Device(tf::DEVICE_CPU), FindOp<false>);
REGISTER_KERNEL_BUILDER(Name("TfEmbedFindOrInsert").Device(tf::DEVICE_CPU), FindOp<true>);

}  // namespace
}  // namespace tf_embed
