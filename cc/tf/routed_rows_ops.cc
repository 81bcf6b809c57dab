// SPDX-License-Identifier: Apache-2.0
// RoutedRows gathers the rows of a batch from the rows of its distinct keys. Also its gradient, and
// UnlessFrozen.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "cc/tf/op_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

constexpr size_t kCopiedBytesPerNanosecond = 4;  // rough copy speed

// Fails if a position is outside `size` rows.
absl::Status CheckPlaces(const tf::Tensor& places, int64_t size) {
  const int32_t* const numbers = places.flat<int32_t>().data();
  for (int64_t i = 0; i < places.NumElements(); ++i) {
    if (numbers[i] < 0 || numbers[i] >= size) {
      return InvalidArgumentError("`places` must be from 0 to ", size - 1,
                                  ". Received: ", numbers[i], ".");
    }
  }
  return absl::OkStatus();
}

bool AreSame(const tf::Tensor& keys, const tf::Tensor& others) {
  if (keys.NumElements() != others.NumElements()) return false;
  if (keys.dtype() == tf::DT_STRING) {
    const auto some = keys.flat<tf::tstring>();
    return std::equal(some.data(), some.data() + some.size(), others.flat<tf::tstring>().data());
  }
  return keys.tensor_data() == others.tensor_data();
}

class RoutedRowsOp final : public StatusOp {
 public:
  explicit RoutedRowsOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, CheckListLengths(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("label", &label_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor *keys, *routed, *rows, *places;
    tf::OpInputList noted;
    TF_RETURN_IF_ERROR(context->input("keys", &keys));
    TF_RETURN_IF_ERROR(context->input_list("noted", &noted));
    TF_RETURN_IF_ERROR(context->input("routed", &routed));
    TF_RETURN_IF_ERROR(context->input("rows", &rows));
    TF_RETURN_IF_ERROR(context->input("places", &places));
    // The keys were routed before the step ran. If the model computes others, the rows would belong
    // to other keys and nothing else would notice.
    if (noted.size() > 0 && !AreSame(*keys, noted[0])) {
      return InvalidArgumentError("The ids of a lookup in '", label_,
                                  "' must depend on the inputs of the model alone, because the ",
                                  "lookups of a step are made together before it.");
    }
    TF_RETURN_IF_ERROR(CheckRank(*routed, "routed", 1));
    TF_RETURN_IF_ERROR(CheckRank(*rows, "rows", 2));
    if (rows->dim_size(0) != routed->dim_size(0)) {
      return InvalidArgumentError("`rows` must have one row for each of `routed`. Received: ",
                                  rows->dim_size(0), " for ", routed->dim_size(0), ".");
    }
    if (places->NumElements() != keys->NumElements()) {
      return InvalidArgumentError("`places` must have one number for each of `keys`. Received: ",
                                  places->NumElements(), " for ", keys->NumElements(), ".");
    }
    // A position from another worker's counts may be out of range; the copy below does not check.
    TF_RETURN_IF_ERROR(CheckPlaces(*places, rows->dim_size(0)));
    tf::TensorShape shape = keys->shape();
    TF_RETURN_IF_ERROR(AddAxis(rows->dim_size(1), &shape));
    tf::Tensor* of_batch;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &of_batch));
    const size_t bytes = static_cast<size_t>(rows->dim_size(1) * tf::DataTypeSize(rows->dtype()));
    const int32_t* const numbers = places->flat<int32_t>().data();
    const char* const from = static_cast<const char*>(rows->data());
    char* const to = static_cast<char*>(of_batch->data());
    if (bytes == 0) return absl::OkStatus();
    const auto copy = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        std::memcpy(to + i * bytes, from + static_cast<size_t>(numbers[i]) * bytes, bytes);
      }
    };
    ThreadPoolOf(context).parallel_for(static_cast<size_t>(places->NumElements()),
                                       1 + bytes / kCopiedBytesPerNanosecond, std::cref(copy));
    return absl::OkStatus();
  }

  std::string label_;
};

// Adds gradients [n, dim] to the sums at their positions, in batch order.
template <typename Gradient, typename Sum>
void AddAtPlaces(const Gradient* gradients, const int32_t* places, size_t count, size_t dim,
                 Sum* sums) {
  for (size_t i = 0; i < count; ++i) {
    Sum* const sum = sums + static_cast<size_t>(places[i]) * dim;
    const Gradient* const gradient = gradients + i * dim;
    for (size_t column = 0; column < dim; ++column) sum[column] += Sum{gradient[column]};
  }
}

class RoutedRowsGradientOp final : public StatusOp {
 public:
  explicit RoutedRowsGradientOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    OP_REQUIRES_OK(construction, ReadNumber(construction, "dim", 1, INT32_MAX, &dim_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& gradient = context->input(0);
    const tf::Tensor& routed = context->input(1);
    const tf::Tensor& places = context->input(2);
    TF_RETURN_IF_ERROR(CheckRank(routed, "routed", 1));
    TF_RETURN_IF_ERROR(CheckPlaces(places, routed.dim_size(0)));
    tf::TensorShape wanted = places.shape();
    TF_RETURN_IF_ERROR(AddAxis(dim_, &wanted));
    if (gradient.shape() != wanted) {
      return InvalidArgumentError("`gradient` must have shape ", wanted.DebugString(),
                                  ". Received: ", gradient.shape().DebugString(), ".");
    }
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(AddAxis(routed.dim_size(0), &shape));
    TF_RETURN_IF_ERROR(AddAxis(dim_, &shape));
    tf::Tensor* sums;
    TF_RETURN_IF_ERROR(context->allocate_output(1, shape, &sums));
    context->set_output(0, routed);
    const size_t count = static_cast<size_t>(places.NumElements());
    const size_t dim = static_cast<size_t>(dim_), size = static_cast<size_t>(sums->NumElements());
    const int32_t* const numbers = places.flat<int32_t>().data();
    const auto add = [&](auto tag) {
      using T = decltype(tag);
      T* const to = sums->flat<T>().data();
      // A distinct key without a gradient in this batch keeps 0.
      std::fill_n(to, size, T{0});
      AddAtPlaces(gradient.flat<T>().data(), numbers, count, dim, to);
    };
    switch (gradient.dtype()) {
      case tf::DT_FLOAT:
        add(float{});
        return absl::OkStatus();
      case tf::DT_DOUBLE:
        add(double{});
        return absl::OkStatus();
      case tf::DT_HALF:
        return AddNarrow<Eigen::half>(gradient, numbers, count, sums);
      default:
        return AddNarrow<tf::bfloat16>(gradient, numbers, count, sums);
    }
  }

  // Sums in float, because a 16-bit sum loses small addends.
  template <typename T>
  absl::Status AddNarrow(const tf::Tensor& gradient, const int32_t* places, size_t count,
                         tf::Tensor* sums) const {
    const size_t size = static_cast<size_t>(sums->NumElements());
    Buffer<float> wide(HostAllocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(wide.Resize(size)));
    std::fill_n(wide.data(), size, 0.0f);
    const T* const from = gradient.flat<T>().data();
    for (size_t i = 0; i < count; ++i) {
      const size_t dim = static_cast<size_t>(dim_);
      float* const sum = wide.data() + static_cast<size_t>(places[i]) * dim;
      for (size_t column = 0; column < dim; ++column) {
        sum[column] += static_cast<float>(from[i * dim + column]);
      }
    }
    T* const to = sums->flat<T>().data();
    for (size_t i = 0; i < size; ++i) to[i] = static_cast<T>(wide[i]);
    return absl::OkStatus();
  }

  int64_t dim_ = 1;
};

class UnlessFrozenOp final : public StatusOp {
 public:
  using StatusOp::StatusOp;
  bool IsExpensive() override { return false; }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& keys = context->input(0);
    const tf::Tensor& gradients = context->input(1);
    bool trained;
    TF_RETURN_IF_ERROR(CheckRank(keys, "keys", 1));
    TF_RETURN_IF_ERROR(CheckRank(gradients, "gradients", 2));
    TF_RETURN_IF_ERROR(ReadScalar(context->input(2), "trained", &trained));
    // The tensors pass through without a copy.
    if (trained) {
      context->set_output(0, keys);
      context->set_output(1, gradients);
      return absl::OkStatus();
    }
    tf::Tensor* none;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {0}, &none));
    return context->allocate_output(1, {0, gradients.dim_size(1)}, &none);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedRoutedRows").Device(tf::DEVICE_CPU), RoutedRowsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedRoutedRowsGradient").Device(tf::DEVICE_CPU),
                        RoutedRowsGradientOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedUnlessFrozen").Device(tf::DEVICE_CPU), UnlessFrozenOp);

}  // namespace
}  // namespace tf_embed
