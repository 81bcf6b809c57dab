// SPDX-License-Identifier: Apache-2.0
// SplitBags splits bags by the workers that own their keys. JoinBags pools the rows that come back.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cc/core/exchange/bag_split.h"
#include "cc/tf/most_workers.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_batch.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

BagRun RunOf(const Piece& piece) {
  return {static_cast<size_t>(piece.table), static_cast<size_t>(piece.first_bag),
          static_cast<size_t>(piece.num_bags)};
}

template <typename T>
absl::Status Give(tf::OpKernelContext* context, int output, const tf::TensorShape& shape,
                  const std::vector<T>& numbers) {
  tf::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->allocate_output(output, shape, &tensor));
  std::copy(numbers.begin(), numbers.end(), tensor->flat<T>().data());
  return absl::OkStatus();
}

template <typename T>
absl::Status Give(tf::OpKernelContext* context, int output, const std::vector<T>& numbers) {
  return Give(context, output, {static_cast<int64_t>(numbers.size())}, numbers);
}

class SplitBagsOp final : public TableBatchOp {
 public:
  explicit SplitBagsOp(tf::OpKernelConstruction* construction) : TableBatchOp(construction) {
    std::string rule, ask_by;
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "num_workers", 1, kMostWorkers, &num_workers_));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "rank", 0, num_workers_ - 1, &rank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner_rule", &rule));
    OP_REQUIRES_OK(construction, construction->GetAttr("ask_by", &ask_by));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "bytes_of_number", 1, 8, &bytes_));
    rule_ = rule == "hash" ? OwnerRule::kHash : OwnerRule::kRemainder;
    ask_by_ = ask_by == "less" ? AskBy::kLess : ask_by == "bags" ? AskBy::kBags : AskBy::kKeys;
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor *size, *owners;
    int64_t num_values;
    TF_RETURN_IF_ERROR(context->input("size", &size));
    TF_RETURN_IF_ERROR(context->input("owners", &owners));
    TF_RETURN_IF_ERROR(ReadScalar(*size, "size", &num_values));
    TableBatch read;
    TF_RETURN_IF_ERROR(read.Read(context, dims_, num_values));
    TF_RETURN_IF_ERROR(CheckRank(*owners, "owners", 1));
    if (owners->NumElements() != 0 && owners->NumElements() != read.num_keys()) {
      return InvalidArgumentError("`owners` must have one worker for each index. Received: ",
                                  owners->NumElements(), " for ", read.num_keys(), " indices.");
    }
    BagBatch batch{read.keys(), read.offsets(), static_cast<size_t>(read.num_bags()), {}, {}};
    for (const Piece& piece : read.pieces()) batch.runs.push_back(RunOf(piece));
    std::vector<AskCost> costs;
    for (const int64_t dim : dims_) {
      batch.dims.push_back(static_cast<size_t>(dim));
      costs.push_back(AskCost::OfBags(batch.dims.back(), static_cast<size_t>(bytes_)));
    }
    const bool has_owners = owners->NumElements() != 0;
    const BagOwners rules{static_cast<size_t>(num_workers_), static_cast<size_t>(rank_),
                          has_owners ? owners->flat<int32_t>().data() : nullptr, rule_, false};
    BagSplit split;
    TF_RETURN_IF_ERROR(ToTensorFlow(split.Build(
        // An owner has no weights, so it could not sum a weighted bag.
        ThreadPoolOf(context), batch, rules, read.is_weighted() ? AskBy::kKeys : ask_by_, costs)));
    std::vector<int32_t> counts;
    const std::vector<int64_t> tables(static_cast<size_t>(num_workers_),
                                      static_cast<int64_t>(dims_.size()));
    for (const std::vector<int64_t>* row :
         {&split.keys_to(), &split.bags_to(), &tables, &split.values_from()}) {
      for (const int64_t count : *row) {
        // Counts travel as int32.
        if (count > std::numeric_limits<int32_t>::max()) {
          return InvalidArgumentError("A worker may be asked for at most 2^31 - 1 values at once: ",
                                      "use smaller batches. Received: ", count, ".");
        }
        counts.push_back(static_cast<int32_t>(count));
      }
    }
    TF_RETURN_IF_ERROR(Give(context, 0, split.keys()));
    TF_RETURN_IF_ERROR(Give(context, 1, split.lengths()));
    TF_RETURN_IF_ERROR(Give(context, 2, split.bags()));
    TF_RETURN_IF_ERROR(Give(context, 3, {4, num_workers_}, counts));
    TF_RETURN_IF_ERROR(Give(context, 4, split.sources()));
    return Give(context, 5, split.splits());
  }

  int64_t num_workers_ = 1;
  int64_t rank_ = 0;
  int64_t bytes_ = 4;
  OwnerRule rule_ = OwnerRule::kHash;
  AskBy ask_by_ = AskBy::kLess;
};

class JoinOp : public TableBatchOp {
 protected:
  using TableBatchOp::TableBatchOp;

  // Reads and checks every input except the values and the gradient, whose counts are given.
  absl::Status ReadJoin(tf::OpKernelContext* context, int64_t num_values, int64_t num_pooled,
                        TableBatch* batch, BagJoin* join) const {
    const tf::Tensor *sources, *splits;
    TF_RETURN_IF_ERROR(context->input("sources", &sources));
    TF_RETURN_IF_ERROR(context->input("splits", &splits));
    TF_RETURN_IF_ERROR(CheckRank(*sources, "sources", 1));
    TF_RETURN_IF_ERROR(CheckRank(*splits, "splits", 1));
    TF_RETURN_IF_ERROR(batch->Read(context, dims_, num_pooled));
    join->sources = sources->flat<int64_t>().data();
    join->splits = splits->flat<int64_t>().data();
    join->num_values = static_cast<size_t>(num_values);
    join->weights = batch->weights();
    // A mean divides by the number of indices in the bag, and not by the number of sums that came
    // back for it.
    join->divisors = combiner_ == Combiner::kMeanOfCount ? batch->offsets() : nullptr;
    const int64_t count = sources->NumElements();
    const int64_t* const ends = join->splits + splits->NumElements();
    if (splits->NumElements() != batch->num_bags() + 1 || join->splits[0] != 0 ||
        ends[-1] != count ||
        std::adjacent_find(join->splits, ends, std::greater<int64_t>()) != ends) {
      return InvalidArgumentError("`splits` must go from 0 to the number of sources, ", count,
                                  ", in ", batch->num_bags(), " steps that do not go back.");
    }
    // With weights every key is a source of its own, and weights are read by the position of the
    // source.
    if (batch->is_weighted() && !std::equal(join->splits, ends, batch->offsets())) {
      return InvalidArgumentError("`splits` must equal `offsets` if there are weights.");
    }
    for (const Piece& piece : batch->pieces()) {
      const int64_t dim = dims_[static_cast<size_t>(piece.table)];
      for (int64_t at = join->splits[piece.first_bag];
           at < join->splits[piece.first_bag + piece.num_bags]; ++at) {
        // JoinBags reads dim values from each source without a check.
        if (join->sources[at] >= 0 && join->sources[at] <= num_values - dim) continue;
        return InvalidArgumentError("`sources` must be from 0 to ", num_values - dim,
                                    " for rows of ", dim, ". Received: ", join->sources[at], ".");
      }
      join->runs.push_back({RunOf(piece), static_cast<size_t>(piece.begin),
                            static_cast<size_t>(piece.stride), static_cast<size_t>(dim)});
    }
    return absl::OkStatus();
  }
};

class JoinBagsOp final : public JoinOp {
 public:
  using JoinOp::JoinOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor *values, *size;
    int64_t num_pooled;
    TF_RETURN_IF_ERROR(context->input("values", &values));
    TF_RETURN_IF_ERROR(context->input("size", &size));
    TF_RETURN_IF_ERROR(CheckRank(*values, "values", 1));
    TF_RETURN_IF_ERROR(ReadScalar(*size, "size", &num_pooled));
    TableBatch batch;
    BagJoin join{};
    TF_RETURN_IF_ERROR(ReadJoin(context, values->NumElements(), num_pooled, &batch, &join));
    tf::Tensor* pooled;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_pooled}, &pooled));
    JoinBags(ThreadPoolOf(context), join, values->flat<float>().data(),
             pooled->flat<float>().data());
    return absl::OkStatus();
  }
};

class JoinBagsGradientOp final : public JoinOp {
 public:
  using JoinOp::JoinOp;

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor *gradient, *values;
    TF_RETURN_IF_ERROR(context->input("gradient", &gradient));
    TF_RETURN_IF_ERROR(context->input("values", &values));
    TF_RETURN_IF_ERROR(CheckRank(*gradient, "gradient", 1));
    TF_RETURN_IF_ERROR(CheckRank(*values, "values", 1));
    TableBatch batch;
    BagJoin join{};
    TF_RETURN_IF_ERROR(
        ReadJoin(context, values->NumElements(), gradient->NumElements(), &batch, &join));
    tf::Tensor *of_values, *of_weights;
    const int64_t num_weights = batch.is_weighted() ? batch.num_keys() : 0;
    TF_RETURN_IF_ERROR(context->allocate_output(0, values->shape(), &of_values));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {num_weights}, &of_weights));
    const ExecContext exec = ThreadPoolOf(context);
    const float* const of_pooled = gradient->flat<float>().data();
    GradientOfValues(exec, join, of_pooled, of_values->flat<float>().data());
    if (num_weights == 0) return absl::OkStatus();
    float* const to = of_weights->flat<float>().data();
    std::fill_n(to, num_weights, 0.0f);  // bags outside every piece keep weight gradient 0
    GradientOfWeights(exec, join, of_pooled, values->flat<float>().data(), to);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfEmbedSplitBags").Device(tf::DEVICE_CPU), SplitBagsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedJoinBags").Device(tf::DEVICE_CPU), JoinBagsOp);
REGISTER_KERNEL_BUILDER(Name("TfEmbedJoinBagsGradient").Device(tf::DEVICE_CPU), JoinBagsGradientOp);

}  // namespace
}  // namespace tf_embed
