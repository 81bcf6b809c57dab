// FindPooled, SumByKey and UniqueKeys.
#include <new>
#include <vector>

#include "cc/core/key_sums.h"
#include "cc/core/pooled_find.h"
#include "cc/kernels/gpu_tables.h"
#include "cc/kernels/on_gpu.h"
#include "cc/kernels/pooling_inputs.h"
#include "cc/kernels/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// The type that rows of `type` are summed in.
tf::DataType ComputeType(tf::DataType type) {
  return type == tf::DT_DOUBLE ? tf::DT_DOUBLE : tf::DT_FLOAT;
}

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
    TF_RETURN_IF_ERROR(KeysInput::ReadUnspread(context, table, KeyUse::kRead, &keys));
    if (context->input(1).dtype() == tf::DT_STRING && !attributes_.padding_text.empty()) {
      keys.ReplaceText(context->input(1), attributes_.padding_text.front(), StringKeys::kNoKey);
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
    shape.AddDim(table->signature().dim);
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

// Finds the distinct keys of input 0 and gives what outputs share: the distinct keys and the number
// of each key.
class DistinctKeysOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) final {
    try {
      OP_REQUIRES_OK(context, Run(context));
    } catch (const std::bad_alloc&) {
      context->CtxFailure(ResourceExhaustedError("No memory for the distinct keys of a batch."));
    }
  }

 protected:
  virtual const PoolingAttributes* attributes() const { return nullptr; }
  virtual absl::Status RunOn(tf::OpKernelContext*, const ExecContext&, KeySums*) {
    return absl::OkStatus();
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) {
    Allocator* const allocator = HostAllocator();
    const tf::Tensor& tensor = context->input(0);
    const ExecContext exec = ThreadPoolOf(context);
    Buffer<int64_t> widened(allocator);
    Buffer<int64_t> wide_distinct(allocator);
    KeySums sums(allocator);
    const int64_t* keys;
    tf::Tensor* distinct;
    tf::Tensor* inverse;
    if (tensor.dtype() == tf::DT_STRING) {
      TF_RETURN_IF_ERROR(NumberStrings(exec, tensor, &widened));
      keys = widened.data();
    } else {
      TF_RETURN_IF_ERROR(WidenedKeys(tensor, &widened, &keys));
    }
    const int64_t* const padding = attributes() == nullptr ? nullptr : attributes()->padding_key();
    TF_RETURN_IF_ERROR(
        ToTensorFlow(sums.Build(exec, keys, static_cast<size_t>(tensor.NumElements()), padding)));
    const int64_t size = static_cast<int64_t>(sums.size());
    TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &distinct));
    TF_RETURN_IF_ERROR(context->allocate_output(1, tensor.shape(), &inverse));
    if (tensor.dtype() == tf::DT_INT64 || tensor.dtype() == tf::DT_UINT64) {
      sums.WriteKeys(static_cast<int64_t*>(distinct->data()));
    } else {
      TF_RETURN_IF_ERROR(ToTensorFlow(wide_distinct.Resize(sums.size())));
      sums.WriteKeys(wide_distinct.data());
      if (tensor.dtype() == tf::DT_STRING) {
        const tf::tstring* const from = tensor.flat<tf::tstring>().data();
        tf::tstring* const to = distinct->flat<tf::tstring>().data();
        for (size_t i = 0; i < sums.size(); ++i) to[i] = from[wide_distinct[i] - 1];
      } else {
        NarrowKeys(wide_distinct.data(), sums.size(), 0, distinct);
      }
    }
    sums.WriteInverse(exec, inverse->flat<int32_t>().data());
    return RunOn(context, exec, &sums);
  }

  // Gives each string a number from 1 on, equal ones the same; padding is kNoKey.
  absl::Status NumberStrings(const ExecContext& exec, const tf::Tensor& strings,
                             Buffer<int64_t>* numbers) {
    const TextBatch texts = TextsOf(strings);
    TF_RETURN_IF_ERROR(ToTensorFlow(numbers->Resize(texts.size)));
    TF_RETURN_IF_ERROR(ToTensorFlow(NumberTexts(exec, texts, HostAllocator(), numbers->data())));
    const bool is_padded = attributes() != nullptr && !attributes()->padding_text.empty();
    for (size_t i = 0; i < texts.size; ++i) {
      const bool is_padding = is_padded && texts[i] == attributes()->padding_text.front();
      (*numbers)[i] = is_padding ? StringKeys::kNoKey : (*numbers)[i] + 1;
    }
    return absl::OkStatus();
  }
};

class SumByKeyOp : public DistinctKeysOp {
 public:
  explicit SumByKeyOp(tf::OpKernelConstruction* construction) : DistinctKeysOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
  }

 private:
  const PoolingAttributes* attributes() const override { return &attributes_; }

  absl::Status RunOn(tf::OpKernelContext* context, const ExecContext& exec,
                     KeySums* distinct) override {
    const tf::Tensor& keys = context->input(0);
    const tf::Tensor& gradients = context->input(1);
    Bags bags(HostAllocator());
    tf::TensorShape shape = keys.shape();
    KeyGradients of;
    if (attributes_.has_bags) {
      TF_RETURN_IF_ERROR(ReadBags(context, keys.shape(), &bags, &shape));
      of.bags = &bags;
      of.pooling.combiner = attributes_.combiner;
      of.pooling.padding = attributes_.padding_key();
    }
    TF_RETURN_IF_ERROR(ReadWeights(context, ComputeType(gradients.dtype()),
                                   static_cast<size_t>(keys.NumElements()), &of.pooling.weights));
    const int64_t dim = gradients.dims() == 0 ? 0 : gradients.dim_size(gradients.dims() - 1);
    shape.AddDim(dim);
    if (gradients.shape() != shape) {
      return InvalidArgumentError("`gradients` must have shape ", shape.DebugString(),
                                  " for keys of shape ", keys.shape().DebugString(),
                                  ". Received: ", gradients.shape().DebugString(), ".");
    }
    of.gradients = gradients.data();
    of.type = CoreType(gradients.dtype());
    of.dim = static_cast<size_t>(dim);
    tf::Tensor* sums;
    TF_RETURN_IF_ERROR(
        context->allocate_output(2, {static_cast<int64_t>(distinct->size()), dim}, &sums));
    return ToTensorFlow(distinct->WriteSums(exec, of, CoreType(sums->dtype()), sums->data()));
  }

  PoolingAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedFindPooled").Device(tf::DEVICE_CPU), FindPooledOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedUniqueKeys").Device(tf::DEVICE_CPU), DistinctKeysOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSumByKey").Device(tf::DEVICE_CPU), SumByKeyOp);

const OnGpu<FindPooledOp> find_pooled("TfEmbedFindPooled", {"table", "owners", "tokens", "bags"},
                                      KeyTypes::kWide);
const OnGpu<FindPooledOp> narrow_find_pooled("TfEmbedFindPooled",
                                             {"table", "keys", "owners", "defaults", "tokens",
                                              "bags", "weights", "pooled"},
                                             KeyTypes::kNarrow);

}  // namespace
}  // namespace tf_embed
