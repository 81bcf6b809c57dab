// SPDX-License-Identifier: Apache-2.0
// FindPooled, and SumByKey and UniqueKeys, which gradients of pooled rows use.
//
// CheckSparse validates sparse ids before they reach TensorFlow ops that don't, and that abort the
// process on a negative size, or write out of bounds.
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "cc/core/pooling/key_sums.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/table_op.h"
#include "cc/tf/table_parts.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class FindPooledOp : public TableOp {
 public:
  explicit FindPooledOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, attributes_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
    OP_REQUIRES_OK(construction, ReadFound(construction, 1, &gives_found_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    PooledLookup lookup(table, attributes_);
    tf::OpInputList bags, weights;
    TF_RETURN_IF_ERROR(context->input_list("bags", &bags));
    TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
    TF_RETURN_IF_ERROR(lookup.Read(context, bags, weights, gives_found_ ? 1 : -1));
    return lookup.Run(ExecContextOf(context, training_));
  }

  PoolingAttributes attributes_;
  bool training_ = false;
  bool gives_found_ = false;
};

const Kernels<FindPooledOp> find_pooled("TfEmbedFindPooled", {"table", "owners", "tokens", "bags"},
                                        {"keys", "defaults", "weights", "pooled", "found"});

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
    const std::unique_ptr<DeviceKeySums> sums =
        EmulatesDevice() ? NewEmulatedDeviceKeySums(HostAllocator()) : NewDeviceKeySums(gpu_);
    if (sums == nullptr) {
      return absl::UnavailableError("Keys can't be summed on a GPU: there is no GPU support.");
    }
    tf::Tensor* distinct;
    tf::Tensor* inverse;
    TF_RETURN_IF_ERROR(
        ToTensorFlow(sums->Build(ExecContextOf(context), static_cast<const int64_t*>(tensor.data()),
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
    const ExecContext exec = ExecContextOf(context);
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
    if (context->output_required(1)) {
      sums.WriteInverse(exec, inverse->flat<int32_t>().data());
    }
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
    tf::OpInputList given_bags, weights;
    tf::TensorShape shape = keys.shape();
    KeyGradients of;
    TF_RETURN_IF_ERROR(context->input_list("bags", &given_bags));
    TF_RETURN_IF_ERROR(context->input_list("weights", &weights));
    if (attributes_.has_bags) {
      TF_RETURN_IF_ERROR(ReadBags(given_bags, keys.shape(), &bags, &shape));
      of.bags = &bags;
      of.pooling.combiner = attributes_.combiner;
      of.pooling.padding = attributes_.padding_key();
    }
    TF_RETURN_IF_ERROR(ReadWeights(weights, ComputeType(gradients.dtype()),
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

const Kernels<DistinctKeysOp> unique_keys("TfEmbedUniqueKeys", {"tables"},
                                          {"keys", "distinct", "inverse"});
const Kernels<SumByKeyOp> sum_by_key("TfEmbedSumByKey", {"tables", "bags"},
                                     {"keys", "gradients", "weights", "distinct", "inverse",
                                      "sums"});

class CheckSparseOp : public tf::OpKernel {
 public:
  using tf::OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    for (int i = 0; i < 3; ++i) context->set_output(i, context->input(i));
  }

  bool IsExpensive() override { return false; }

 private:
  static absl::Status Check(tf::OpKernelContext* context) {
    const tf::Tensor& indices = context->input(0);
    const tf::Tensor& values = context->input(1);
    const tf::Tensor& shape = context->input(2);
    tf::tstring label;
    TF_RETURN_IF_ERROR(CheckRank(indices, "indices", 2));
    TF_RETURN_IF_ERROR(CheckRank(values, "values", 1));
    TF_RETURN_IF_ERROR(CheckRank(shape, "dense_shape", 1));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(3), "label", &label));
    const int64_t count = indices.dim_size(0);
    const int64_t rank = indices.dim_size(1);
    if (values.NumElements() != count || shape.NumElements() != rank) {
      return InvalidArgumentError(
          std::string(label), " must have an index of each value, with a number for each axis of ",
          "its dense_shape. Received: indices.shape=", indices.shape().DebugString(),
          ", values.shape=", values.shape().DebugString(),
          ", dense_shape.shape=", shape.shape().DebugString(), ".");
    }
    const int64_t* const sizes = shape.flat<int64_t>().data();
    for (int64_t axis = 0; axis < rank; ++axis) {
      // TensorFlow's ops make a TensorShape of this, which ends the process on a negative size.
      if (sizes[axis] < 0) return Outside(label, "dense_shape", sizes[axis], axis);
    }
    const int64_t* index = indices.flat<int64_t>().data();
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t axis = 0; axis < rank; ++axis, ++index) {
        if (*index < 0 || *index >= sizes[axis]) return Outside(label, "indices", *index, axis);
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Outside(const std::string& label, const char* part, int64_t number,
                              int64_t axis) {
    return InvalidArgumentError(
        label, " must have a dense_shape of numbers from 0, and indices within their dense_shape. ",
        "Received: ", number, " in ", part, " on axis ", axis, ".");
  }
};

const Kernels<CheckSparseOp> check_sparse("TfEmbedCheckSparse",
                                          {"indices", "values", "dense_shape", "label",
                                           "checked_indices", "checked_values", "checked_shape"});

}  // namespace

}  // namespace tf_embed
