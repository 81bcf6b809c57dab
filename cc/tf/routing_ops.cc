// SPDX-License-Identifier: Apache-2.0
// RouteKeys and RouteGradients group the keys of batches by the worker that owns them. RoutedRows
// gathers the rows of a batch from the rows of its distinct keys. Also the gradient of RoutedRows,
// and UnlessFrozen.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cc/core/exchange/key_route.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/owned_keys.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// The keys of one table.
class TableRoute {
 public:
  TableRoute() : route_(HostAllocator()) {}

  // REQUIRES: `keys` and `owners` outlive this object.
  absl::Status Build(const ExecContext& exec, const tf::Tensor& keys, const tf::Tensor& owners,
                     OwnerRule rule, int64_t num_workers) {
    TF_RETURN_IF_ERROR(keys_.Read(exec, keys, owners, rule, "owner_rules", num_workers));
    return ToTensorFlow(route_.Build(exec, keys_.wide(), keys_.size(), keys_.owners(), rule,
                                     keys_.is_unsigned(), static_cast<size_t>(num_workers)));
  }

  int64_t size() const { return static_cast<int64_t>(route_.size()); }
  const int32_t* counts() const { return route_.counts(); }

  absl::Status GiveKeys(tf::OpKernelContext* context, int output) const {
    Buffer<int64_t> wide(HostAllocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(wide.Resize(route_.size())));
    route_.WriteKeys(wide.data());
    return keys_.Give(context, output, wide.data(), route_.size());
  }

  absl::Status GivePlaces(tf::OpKernelContext* context, const ExecContext& exec, int output) const {
    tf::Tensor* places;
    TF_RETURN_IF_ERROR(context->allocate_output(output, keys_.tensor().shape(), &places));
    route_.WritePlaces(exec, places->flat<int32_t>().data());
    return absl::OkStatus();
  }

  absl::Status GiveSums(tf::OpKernelContext* context, const ExecContext& exec,
                        const tf::Tensor& gradients, int output) {
    if (keys_.tensor().dims() != 1 || gradients.dims() != 2 ||
        gradients.dim_size(0) != keys_.tensor().dim_size(0)) {
      return InvalidArgumentError("`gradients` must have one row for each of `keys`, a vector. ",
                                  "Received: shape ", gradients.shape().DebugString(),
                                  " for keys of shape ", keys_.tensor().shape().DebugString(), ".");
    }
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(AddAxis(size(), &shape));
    TF_RETURN_IF_ERROR(AddAxis(gradients.dim_size(1), &shape));
    tf::Tensor* sums;
    TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &sums));
    // Sums stay in the compute type, because the owner adds the sums of other workers to them
    // before it rounds.
    if (sums->dtype() != ComputeType(gradients.dtype())) {
      return InvalidArgumentError("`sum_dtypes` must be ",
                                  tf::DataTypeString(ComputeType(gradients.dtype())),
                                  " for gradients of ", tf::DataTypeString(gradients.dtype()),
                                  ". Received: ", tf::DataTypeString(sums->dtype()), ".");
    }
    KeyGradients of;
    of.gradients = gradients.data();
    of.type = CoreType(gradients.dtype());
    of.dim = static_cast<size_t>(gradients.dim_size(1));
    return ToTensorFlow(route_.WriteSums(exec, of, CoreType(sums->dtype()), sums->data()));
  }

 private:
  OwnedKeys keys_;
  KeyRoute route_;
};

// An op on the keys of several tables, which are its first inputs and outputs. The last output has
// the number of keys that each worker owns.
class RouteOp : public StatusOp {
 public:
  explicit RouteOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    std::vector<std::string> names;
    std::vector<tf::DataType> types;
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "num_workers", 1, kMostWorkers, &num_workers_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner_rules", &names));
    OP_REQUIRES_OK(construction, construction->GetAttr("key_dtypes", &types));
    OP_REQUIRES_OK(construction, construction->GetAttr("num_tables", &num_tables_));
    for (const std::string& name : names) {
      rules_.push_back(name == "hash" ? OwnerRule::kHash : OwnerRule::kRemainder);
    }
    const size_t num_tables = static_cast<size_t>(num_tables_);
    OP_REQUIRES(construction, names.size() == num_tables && types.size() == num_tables,
                InvalidArgumentError("`keys` and `owner_rules` must have one entry for each of ",
                                     "`owners`. Received: ", types.size(), " and ", names.size(),
                                     " for ", num_tables_, "."));
  }

 protected:
  // Writes the outputs that follow a table's routed keys.
  virtual absl::Status Finish(tf::OpKernelContext* context, const ExecContext& exec, int table,
                              TableRoute* route) = 0;

  int num_tables() const { return static_cast<int>(num_tables_); }

 private:
  absl::Status Run(tf::OpKernelContext* context) final {
    const ExecContext exec = ExecContextOf(context);
    const int first_owners = context->num_inputs() - num_tables();
    tf::Tensor* counts;
    TF_RETURN_IF_ERROR(
        context->allocate_output(context->num_outputs() - 1, {num_tables_, num_workers_}, &counts));
    int32_t* next = counts->flat<int32_t>().data();
    for (int table = 0; table < num_tables(); ++table) {
      TableRoute route;
      TF_RETURN_IF_ERROR(route.Build(exec, context->input(table),
                                     context->input(first_owners + table),
                                     rules_[static_cast<size_t>(table)], num_workers_));
      TF_RETURN_IF_ERROR(route.GiveKeys(context, table));
      TF_RETURN_IF_ERROR(Finish(context, exec, table, &route));
      next = std::copy_n(route.counts(), static_cast<size_t>(num_workers_), next);
    }
    return absl::OkStatus();
  }

  int64_t num_tables_ = 1;
  int64_t num_workers_ = 1;
  std::vector<OwnerRule> rules_;
};

class RouteKeysOp final : public RouteOp {
 public:
  using RouteOp::RouteOp;

 private:
  absl::Status Finish(tf::OpKernelContext* context, const ExecContext& exec, int table,
                      TableRoute* route) override {
    return route->GivePlaces(context, exec, num_tables() + table);
  }
};

class RouteGradientsOp final : public RouteOp {
 public:
  explicit RouteGradientsOp(tf::OpKernelConstruction* construction) : RouteOp(construction) {
    std::vector<tf::DataType> gradients, sums;
    OP_REQUIRES_OK(construction, construction->GetAttr("gradient_dtypes", &gradients));
    OP_REQUIRES_OK(construction, construction->GetAttr("sum_dtypes", &sums));
    const size_t wanted = static_cast<size_t>(num_tables());
    OP_REQUIRES(
        construction, gradients.size() == wanted && sums.size() == wanted,
        InvalidArgumentError("`gradients` and `sum_dtypes` must have one entry for each of ",
                             "`owners`. Received: ", gradients.size(), " and ", sums.size(),
                             " for ", wanted, "."));
  }

 private:
  absl::Status Finish(tf::OpKernelContext* context, const ExecContext& exec, int table,
                      TableRoute* route) override {
    const int place = num_tables() + table;
    return route->GiveSums(context, exec, context->input(place), place);
  }
};

const Kernels<RouteKeysOp> route_keys("TfEmbedRouteKeys");
const Kernels<RouteGradientsOp> route_gradients("TfEmbedRouteGradients");

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
    // The keys were routed before the step ran. If the model computes other keys, the rows would
    // not match them, and nothing else would detect it.
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
    ExecContextOf(context).parallel_for(static_cast<size_t>(places->NumElements()),
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

const Kernels<RoutedRowsOp> routed_rows("TfEmbedRoutedRows");
const Kernels<RoutedRowsGradientOp> routed_rows_gradient("TfEmbedRoutedRowsGradient");
const Kernels<UnlessFrozenOp> unless_frozen("TfEmbedUnlessFrozen");

}  // namespace

}  // namespace tf_embed
