// SPDX-License-Identifier: Apache-2.0
// SplitPooled splits the keys of a pooled lookup by the workers that own them.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cc/core/exchange/bag_split.h"
#include "cc/tf/most_workers.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/owned_keys.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

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
    const ExecContext exec = ThreadPoolOf(context);
    OwnedKeys keys;
    Bags bags(HostAllocator());
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(keys.Read(exec, *tensor, *owners, rule_, "owner_rule", num_workers_));
    TF_RETURN_IF_ERROR(ReadBags(context, tensor->shape(), &bags, &shape));
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
      // A message has the length of a string beside its bytes.
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

REGISTER_KERNEL_BUILDER(Name("TfEmbedSplitPooled").Device(tf::DEVICE_CPU), SplitPooledOp);

}  // namespace
}  // namespace tf_embed
