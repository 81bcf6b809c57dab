// SPDX-License-Identifier: Apache-2.0
// SumByKey and UniqueKeys.
#include <functional>
#include <memory>
#include <new>

#include "cc/core/pooling/key_sums.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/on_gpu.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Outputs the distinct keys of input 0 and, for each key, its index among them.
class DistinctKeysOp : public tf::OpKernel {
 public:
  explicit DistinctKeysOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, CheckListLengths(construction));
    if (construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)) gpu_ = GpuOf(construction);
  }

  void Compute(tf::OpKernelContext* context) final {
    const bool on_gpu = gpu_ >= 0 && context->input_memory_type(0) == tf::DEVICE_MEMORY;
    try {
      OP_REQUIRES_OK(context, on_gpu ? WithMemoryAdvice(RunOnGpu(context)) : RunOnHost(context));
    } catch (const std::bad_alloc&) {
      context->CtxFailure(ResourceExhaustedError("No memory for the distinct keys of a batch."));
    }
  }

 protected:
  virtual const PoolingAttributes* attributes() const { return nullptr; }
  // Writes the outputs after the keys. `sums` fills an array in the memory of the op's arrays.
  using Sums = std::function<Status(const KeyGradients&, DataType, void*)>;
  virtual absl::Status Finish(tf::OpKernelContext*, int64_t, const Sums&) {
    return absl::OkStatus();
  }

 private:
  const int64_t* padding_key() const {
    return attributes() == nullptr ? nullptr : attributes()->padding_key();
  }

  absl::Status RunOnGpu(tf::OpKernelContext* context) {
    const tf::Tensor& tensor = context->input(0);
    const std::unique_ptr<DeviceKeySums> sums = NewGpuKeySums(gpu_);
    if (sums == nullptr) {
      return absl::UnavailableError("Keys can't be summed on a GPU: there is no GPU support.");
    }
    tf::Tensor* distinct;
    tf::Tensor* inverse;
    TF_RETURN_IF_ERROR(
        ToTensorFlow(sums->Build(ThreadPoolOf(context), static_cast<const int64_t*>(tensor.data()),
                                 static_cast<size_t>(tensor.NumElements()), padding_key())));
    const int64_t size = static_cast<int64_t>(sums->size());
    TF_RETURN_IF_ERROR(context->allocate_output(0, {size}, &distinct));
    TF_RETURN_IF_ERROR(context->allocate_output(1, tensor.shape(), &inverse));
    TF_RETURN_IF_ERROR(ToTensorFlow(sums->WriteKeys(static_cast<int64_t*>(distinct->data()),
                                                    static_cast<int32_t*>(inverse->data()))));
    return Finish(context, size, [&](const KeyGradients& of, DataType type, void* to) {
      return sums->WriteSums(of, type, to);
    });
  }

  absl::Status RunOnHost(tf::OpKernelContext* context) {
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
    TF_RETURN_IF_ERROR(ToTensorFlow(
        sums.Build(exec, keys, static_cast<size_t>(tensor.NumElements()), padding_key())));
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
        // A string's number is 1 and the position of its first occurrence.
        for (size_t i = 0; i < sums.size(); ++i) to[i] = from[wide_distinct[i] - 1];
      } else {
        NarrowKeys(wide_distinct.data(), sums.size(), 0, distinct);
      }
    }
    sums.WriteInverse(exec, inverse->flat<int32_t>().data());
    return Finish(context, size, [&](const KeyGradients& of, DataType type, void* to) {
      return sums.WriteSums(exec, of, type, to);
    });
  }

  // Numbers strings from 1; equal strings get equal numbers. Padding gets kNoKey.
  absl::Status NumberStrings(const ExecContext& exec, const tf::Tensor& strings,
                             Buffer<int64_t>* numbers) {
    const StringBatch batch = StringsOf(strings);
    TF_RETURN_IF_ERROR(ToTensorFlow(numbers->Resize(batch.size)));
    TF_RETURN_IF_ERROR(
        ToTensorFlow(NumberDistinctStrings(exec, batch, HostAllocator(), numbers->data())));
    const bool is_padded = attributes() != nullptr && !attributes()->padding_string.empty();
    for (size_t i = 0; i < batch.size; ++i) {
      const bool is_padding = is_padded && batch[i] == attributes()->padding_string.front();
      // From 1, because 0 is kNoKey.
      (*numbers)[i] = is_padding ? StringKeys::kNoKey : (*numbers)[i] + 1;
    }
    return absl::OkStatus();
  }

  int gpu_ = -1;
};

class SumByKeyOp : public DistinctKeysOp {
 public:
  explicit SumByKeyOp(tf::OpKernelConstruction* construction) : DistinctKeysOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
  }

 private:
  const PoolingAttributes* attributes() const override { return &attributes_; }

  absl::Status Finish(tf::OpKernelContext* context, int64_t num_distinct,
                      const Sums& write_sums) override {
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
    TF_RETURN_IF_ERROR(AddAxis(dim, &shape));
    if (gradients.shape() != shape) {
      return InvalidArgumentError("`gradients` must have shape ", shape.DebugString(),
                                  " for keys of shape ", keys.shape().DebugString(),
                                  ". Received: ", gradients.shape().DebugString(), ".");
    }
    of.gradients = gradients.data();
    of.type = CoreType(gradients.dtype());
    of.dim = static_cast<size_t>(dim);
    tf::TensorShape sums_shape;
    TF_RETURN_IF_ERROR(AddAxis(num_distinct, &sums_shape));
    TF_RETURN_IF_ERROR(AddAxis(dim, &sums_shape));
    tf::Tensor* sums;
    TF_RETURN_IF_ERROR(context->allocate_output(2, sums_shape, &sums));
    return ToTensorFlow(write_sums(of, CoreType(sums->dtype()), sums->data()));
  }

  PoolingAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedUniqueKeys").Device(tf::DEVICE_CPU), DistinctKeysOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedSumByKey").Device(tf::DEVICE_CPU), SumByKeyOp);

const OnGpu<DistinctKeysOp> unique_keys("TfEmbedUniqueKeys", {"tables"}, KeyTypes::kWide);
const OnGpu<DistinctKeysOp> narrow_unique_keys("TfEmbedUniqueKeys",
                                               {"tables", "keys", "distinct", "inverse"},
                                               KeyTypes::kNarrow);
const OnGpu<SumByKeyOp> sum_by_key("TfEmbedSumByKey", {"tables", "bags"}, KeyTypes::kWide);
const OnGpu<SumByKeyOp> narrow_sum_by_key("TfEmbedSumByKey",
                                          {"tables", "keys", "gradients", "bags", "weights",
                                           "distinct", "inverse", "sums"},
                                          KeyTypes::kNarrow);

}  // namespace
}  // namespace tf_embed
