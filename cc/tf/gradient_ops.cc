// SPDX-License-Identifier: Apache-2.0
// Ops that carry row gradients through loops and conditions. See row_gradients.h.
#include <algorithm>
#include <cstring>

#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/row_gradients.h"
#include "cc/tf/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class TokenOp : public tf::OpKernel {
 public:
  explicit TokenOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadNumber(construction, "dim", 1, INT32_MAX, &dim_));
  }
  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& anchor = context->input(0);
    OP_REQUIRES(context,
                anchor.dims() == 2 && anchor.dim_size(0) == 0 && anchor.dim_size(1) == dim_,
                InvalidArgumentError("`anchor` must have shape [0,", dim_,
                                     "]. Received shape: ", anchor.shape().DebugString(), "."));
    OP_REQUIRES_OK(context, GiveScalar<tf::Variant>(context, 0, RowGradients()));
  }

 private:
  int64_t dim_ = 0;
};

class RowGradientsOp : public tf::OpKernel {
 public:
  explicit RowGradientsOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("packed", &packed_));
  }
  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& keys = context->input(0);
    const tf::Tensor& values = context->input(1);
    OP_REQUIRES(context,
                keys.dims() == 1 && values.dims() == 2 &&
                    (packed_ || keys.dim_size(0) == values.dim_size(0)),
                InvalidArgumentError("`values` must have one row for each of `keys`. Received: ",
                                     values.shape().DebugString(), " for keys of shape ",
                                     keys.shape().DebugString(), "."));
    OP_REQUIRES_OK(context, GiveScalar<tf::Variant>(context, 0, RowGradients::Of(keys, values)));
  }

 private:
  bool packed_;
};

class UnpackOp : public tf::OpKernel {
 public:
  explicit UnpackOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, ReadNumber(construction, "dim", 1, INT32_MAX, &dim_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& input = context->input(0);
    OP_REQUIRES_OK(context, CheckRank(input, "gradients", 0));
    const RowGradients* const gradients = input.scalar<tf::Variant>()().get<RowGradients>();
    OP_REQUIRES(context, gradients != nullptr,
                InvalidArgumentError("`gradients` must be a variant of ", RowGradients::kTypeName,
                                     ". Received: ", input.DebugString(), "."));
    OP_REQUIRES_OK(context, Unpack(context, gradients->parts()));
  }

 private:
  absl::Status Unpack(tf::OpKernelContext* context, const std::vector<RowGradients::Part>& parts) {
    int64_t num_keys = 0, num_values = 0;
    for (const RowGradients::Part& part : parts) {
      if (part.keys.dtype() != output_type(0) || part.values.dtype() != output_type(1) ||
          part.values.dim_size(1) != dim_) {
        return InvalidArgumentError("`gradients` must be of one table. Received: keys of ",
                                    tf::DataTypeString(part.keys.dtype()), " and rows of ",
                                    tf::DataTypeString(part.values.dtype()), " ",
                                    part.values.shape().DebugString(), ".");
      }
      num_keys += part.keys.dim_size(0);
      num_values += part.values.dim_size(0);
    }
    // The usual case, a single lookup: its tensors pass through without a copy.
    if (parts.size() == 1) {
      context->set_output(0, parts.front().keys);
      context->set_output(1, parts.front().values);
      return absl::OkStatus();
    }
    tf::Tensor* keys;
    tf::Tensor* values;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_keys}, &keys));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {num_values, dim_}, &values));
    num_keys = num_values = 0;
    for (const RowGradients::Part& part : parts) {
      Copy(part.keys, num_keys, keys);
      Copy(part.values, num_values, values);
      num_keys += part.keys.dim_size(0);
      num_values += part.values.dim_size(0);
    }
    return absl::OkStatus();
  }

  // Copies a tensor to the lines of another after the first `done`.
  static void Copy(const tf::Tensor& from, int64_t done, tf::Tensor* to) {
    if (from.NumElements() == 0) return;
    const size_t at = static_cast<size_t>(done * (from.NumElements() / from.dim_size(0)));
    if (from.dtype() == tf::DT_STRING) {
      const auto strings = from.flat<tf::tstring>();
      std::copy_n(strings.data(), strings.size(), to->flat<tf::tstring>().data() + at);
      return;
    }
    std::memcpy(static_cast<char*>(to->data()) + at * tf::DataTypeSize(from.dtype()), from.data(),
                from.tensor_data().size());
  }

  int64_t dim_ = 0;
};

// The anchor stays where it is: its shape alone is read, and a copy from a GPU makes the host wait.
const Kernels<TokenOp> token("TfEmbedToken", {"token"});
const Kernels<RowGradientsOp> row_gradients("TfEmbedRowGradients", {"keys", "values", "gradients"});
const Kernels<UnpackOp> unpack_row_gradients("TfEmbedUnpackRowGradients",
                                             {"gradients", "keys", "values"});

}  // namespace
}  // namespace tf_embed
