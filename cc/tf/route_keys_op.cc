// SPDX-License-Identifier: Apache-2.0
// RouteKeys and RouteGradients group the keys of batches by the worker that owns them.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/core/exchange/key_route.h"
#include "cc/tf/most_workers.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/owned_keys.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"

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
    const ExecContext exec = ThreadPoolOf(context);
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

REGISTER_KERNEL_BUILDER(Name("TfEmbedRouteKeys").Device(tf::DEVICE_CPU), RouteKeysOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedRouteGradients").Device(tf::DEVICE_CPU), RouteGradientsOp);

}  // namespace
}  // namespace tf_embed
