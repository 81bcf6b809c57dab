// SPDX-License-Identifier: Apache-2.0
// SplitBags splits bags by the workers that own their keys, and SplitPooled the keys of one pooled
// lookup. JoinBags pools the returned rows.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cc/core/exchange/bag_split.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/owned_keys.h"
#include "cc/tf/pooling_inputs.h"
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
        ExecContextOf(context), batch, rules, read.is_weighted() ? AskBy::kKeys : ask_by_, costs)));
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
    // A mean divides by the number of indices in the bag, not by the number of sums returned for
    // it.
    join->divisors = combiner_ == Combiner::kMeanOfCount ? batch->offsets() : nullptr;
    const int64_t count = sources->NumElements();
    const int64_t* const ends = join->splits + splits->NumElements();
    if (splits->NumElements() != batch->num_bags() + 1 || join->splits[0] != 0 ||
        ends[-1] != count ||
        std::adjacent_find(join->splits, ends, std::greater<int64_t>()) != ends) {
      return InvalidArgumentError("`splits` must go from 0 to the number of sources, ", count,
                                  ", in ", batch->num_bags(), " steps that do not go back.");
    }
    // With weights every key is a separate source, and weights are read by the position of the
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
    JoinBags(ExecContextOf(context), join, values->flat<float>().data(),
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
    const ExecContext exec = ExecContextOf(context);
    const float* const of_pooled = gradient->flat<float>().data();
    GradientOfValues(exec, join, of_pooled, of_values->flat<float>().data());
    if (num_weights == 0) return absl::OkStatus();
    float* const to = of_weights->flat<float>().data();
    std::fill_n(to, num_weights, 0.0f);  // bags outside every piece keep weight gradient 0
    GradientOfWeights(exec, join, of_pooled, values->flat<float>().data(), to);
    return absl::OkStatus();
  }
};

const Kernels<SplitBagsOp> split_bags("TfEmbedSplitBags");
const Kernels<JoinBagsOp> join_bags("TfEmbedJoinBags");
const Kernels<JoinBagsGradientOp> join_bags_gradient("TfEmbedJoinBagsGradient");

// A batch of bags with consecutive keys, padding removed.
struct Compacted {
  std::vector<int32_t> positions;  // position of each key in the batch
  std::vector<int64_t> keys;
  std::vector<int32_t> owners;  // of each key; empty: by the rule
  std::vector<int64_t> offsets = {0};
};

class SplitPooledOp final : public StatusOp {
 public:
  explicit SplitPooledOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    std::string rule, ask_by;
    OP_REQUIRES_OK(construction, CheckListLengths(construction));
    OP_REQUIRES_OK(construction, pooling_.ReadPadding(construction));
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "num_workers", 1, kMostWorkers, &num_workers_));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "rank", 0, num_workers_ - 1, &rank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner_rule", &rule));
    OP_REQUIRES_OK(construction, construction->GetAttr("ask_by", &ask_by));
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    OP_REQUIRES_OK(construction, ReadNumber(construction, "row_bytes", 1, kMost, &row_bytes_));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "sum_bytes", 1, kMost, &sum_bytes_));
    OP_REQUIRES_OK(construction,
                   ReadNumber(construction, "weight_bytes", 0, kMost, &weight_bytes_));
    rule_ = rule == "hash" ? OwnerRule::kHash : OwnerRule::kRemainder;
    ask_by_ = ask_by == "less" ? AskBy::kLess : ask_by == "bags" ? AskBy::kBags : AskBy::kKeys;
  }

 private:
  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor *tensor, *owners;
    TF_RETURN_IF_ERROR(context->input("keys", &tensor));
    TF_RETURN_IF_ERROR(context->input("owners", &owners));
    const ExecContext exec = ExecContextOf(context);
    OwnedKeys keys;
    Bags bags(HostAllocator());
    tf::OpInputList given_bags;
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(keys.Read(exec, *tensor, *owners, rule_, "owner_rule", num_workers_));
    TF_RETURN_IF_ERROR(context->input_list("bags", &given_bags));
    TF_RETURN_IF_ERROR(ReadBags(given_bags, tensor->shape(), &bags, &shape));
    const Compacted batch = WithoutPadding(keys, bags);
    const BagBatch view{
        batch.keys.data(), batch.offsets.data(), bags.size(), {{0, 0, bags.size()}}, {1}};
    const BagOwners rules{static_cast<size_t>(num_workers_), static_cast<size_t>(rank_),
                          keys.owners() == nullptr ? nullptr : batch.owners.data(), rule_,
                          keys.is_unsigned()};
    BagSplit split;
    TF_RETURN_IF_ERROR(ToTensorFlow(split.Build(exec, view, rules, ask_by_, {CostOf(keys)})));
    return Give(context, keys, batch, split);
  }

  // The keys of the bags, in batch order, without padding.
  Compacted WithoutPadding(const OwnedKeys& keys, const Bags& bags) const {
    const bool has_text = keys.is_string() && !pooling_.padding_string.empty();
    const tf::tstring* const strings =
        has_text ? keys.tensor().flat<tf::tstring>().data() : nullptr;
    const auto is_padding = [&](size_t position) {
      if (has_text) return strings[position] == pooling_.padding_string.front();
      return !keys.is_string() && !pooling_.padding.empty() &&
             keys.wide()[position] == pooling_.padding.front();
    };
    Compacted batch;
    for (size_t bag = 0; bag < bags.size(); ++bag) {
      const size_t end = bags.begin(bag + 1);
      for (size_t place = bags.begin(bag); place < end; ++place) {
        const size_t position = bags.Position(place);
        // Removed before the split, so that padding is neither sent nor counted by a mean.
        if (is_padding(position)) continue;
        batch.positions.push_back(static_cast<int32_t>(position));
        batch.keys.push_back(keys.wide()[position]);
        if (keys.owners() != nullptr) batch.owners.push_back(keys.owners()[position]);
      }
      batch.offsets.push_back(static_cast<int64_t>(batch.keys.size()));
    }
    return batch;
  }

  // By keys, an owner receives each key again with its gradient. By bags, it keeps the keys.
  AskCost CostOf(const OwnedKeys& keys) const {
    const size_t size = std::max<size_t>(keys.size(), 1);
    uint64_t key = static_cast<uint64_t>(tf::DataTypeSize(keys.tensor().dtype()));
    if (keys.is_string()) {
      uint64_t letters = 0;
      for (size_t i = 0; i < keys.size(); ++i) {
        letters += keys.tensor().flat<tf::tstring>().data()[i].size();
      }
      // A message has the length of each string besides its bytes.
      key = sizeof(int32_t) + letters / size;
    }
    const uint64_t row = static_cast<uint64_t>(row_bytes_), sum = static_cast<uint64_t>(sum_bytes_);
    return {2 * key + row + sum, key + 2 * static_cast<uint64_t>(weight_bytes_),
            sizeof(int32_t) + 2 * sum};
  }

  absl::Status Give(tf::OpKernelContext* context, const OwnedKeys& keys, const Compacted& batch,
                    const BagSplit& split) const {
    const bool by_bags = split.asked_by().front() == AskBy::kBags;
    const std::vector<int64_t>& sent = split.keys();
    const std::vector<int64_t>& sources = split.sources();
    TF_RETURN_IF_ERROR(keys.Give(context, 0, sent.data(), by_bags ? 0 : sent.size()));
    TF_RETURN_IF_ERROR(keys.Give(context, 4, sent.data(), by_bags ? sent.size() : 0));
    // The sources of rows and the destinations of sums.
    tf::Tensor *places, *positions, *bags_of_places, *from, *lengths, *bags_of_sums, *counts;
    const int64_t num_places = by_bags ? 0 : static_cast<int64_t>(sources.size());
    const int64_t num_sent = by_bags ? static_cast<int64_t>(sent.size()) : 0;
    const int64_t num_sums = by_bags ? static_cast<int64_t>(sources.size()) : 0;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {num_places}, &places));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {num_places}, &positions));
    TF_RETURN_IF_ERROR(context->allocate_output(3, {num_places}, &bags_of_places));
    TF_RETURN_IF_ERROR(context->allocate_output(5, {num_sent}, &from));
    TF_RETURN_IF_ERROR(context->allocate_output(6, {num_sums}, &lengths));
    TF_RETURN_IF_ERROR(context->allocate_output(7, {num_sums}, &bags_of_sums));
    TF_RETURN_IF_ERROR(context->allocate_output(8, {3, num_workers_}, &counts));
    if (by_bags) {
      int32_t* const to = from->flat<int32_t>().data();
      for (size_t i = 0; i < sent.size(); ++i) {
        to[i] = batch.positions[static_cast<size_t>(split.positions()[i])];
      }
      std::copy(split.lengths().begin(), split.lengths().end(), lengths->flat<int32_t>().data());
      int64_t* const bags = bags_of_sums->flat<int64_t>().data();
      for (size_t bag = 0; bag + 1 < split.splits().size(); ++bag) {
        for (int64_t at = split.splits()[bag]; at < split.splits()[bag + 1]; ++at) {
          bags[sources[static_cast<size_t>(at)]] = static_cast<int64_t>(bag);
        }
      }
    } else {
      std::copy(sources.begin(), sources.end(), places->flat<int32_t>().data());
      std::copy(batch.positions.begin(), batch.positions.end(), positions->flat<int32_t>().data());
      int64_t* const bags = bags_of_places->flat<int64_t>().data();
      for (size_t bag = 0; bag + 1 < batch.offsets.size(); ++bag) {
        std::fill(bags + batch.offsets[bag], bags + batch.offsets[bag + 1],
                  static_cast<int64_t>(bag));
      }
    }
    int32_t* next = counts->flat<int32_t>().data();
    for (const bool is_of_bags : {false, true}) {
      for (const int64_t count : split.keys_to()) {
        *next++ = is_of_bags == by_bags ? static_cast<int32_t>(count) : 0;
      }
    }
    for (const int64_t count : split.bags_to()) *next++ = by_bags ? static_cast<int32_t>(count) : 0;
    return absl::OkStatus();
  }

  PoolingAttributes pooling_;
  int64_t num_workers_ = 1;
  int64_t rank_ = 0;
  int64_t row_bytes_ = 1;
  int64_t sum_bytes_ = 1;
  int64_t weight_bytes_ = 0;
  OwnerRule rule_ = OwnerRule::kHash;
  AskBy ask_by_ = AskBy::kLess;
};

const Kernels<SplitPooledOp> split_pooled("TfEmbedSplitPooled");

}  // namespace

}  // namespace tf_embed
