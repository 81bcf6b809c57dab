// SPDX-License-Identifier: Apache-2.0
#include "cc/core/pooling/key_sums.h"

#include <algorithm>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/core/base/first_failure.h"
#include "cc/core/loops/table_loops.h"

namespace tf_embed {
namespace {

// Rough costs in nanoseconds, by which a thread pool splits work.
constexpr size_t kDistinctCost = 10;
constexpr size_t kNumberCost = 3;
constexpr size_t kBytesOfNanosecond = 8;
// The number of keys whose first gradient is prefetched ahead of the sum.
constexpr size_t kAhead = 8;
constexpr size_t kLine = 64;
constexpr size_t kMaxLines = 8;

void Prefetch(const void* gradient, size_t bytes) {
  const size_t end = std::min(bytes, kMaxLines * kLine);
  for (size_t at = 0; at < end; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(gradient) + at);
  }
}

// The gradients of single keys, read from gradients of bags or as given.
template <typename G>
class GradientReader {
  using Compute = typename Number<G>::Compute;

 public:
  GradientReader(const KeyGradients& gradients, const Compute* scales)
      : gradients_(static_cast<const G*>(gradients.gradients)),
        dim_(gradients.dim),
        bags_(gradients.bags == nullptr ? nullptr : gradients.bags->numbers()),
        weights_(static_cast<const Compute*>(gradients.pooling.weights)),
        scales_(scales),
        is_scaled_(weights_ != nullptr || scales != nullptr) {}

  const G* gradients() const { return gradients_; }
  size_t dim() const { return dim_; }
  const uint32_t* bags() const { return bags_; }  // the bag of each key; null: a bag for each key
  bool is_scaled() const { return is_scaled_; }

  void Ask(size_t position) const { Prefetch(Row(position), dim_ * sizeof(G)); }

  // Sets `sum` to the gradient of a key, or adds the gradient to it.
  template <bool add>
  void Read(size_t position, Compute* __restrict sum) const {
    const G* const row = Row(position);
    if (is_scaled_) {
      const Compute factor = Factor(position);
      for (size_t j = 0; j < dim_; ++j) {
        const Compute gradient = factor * Number<G>::Load(row[j]);
        sum[j] = add ? sum[j] + gradient : gradient;
      }
    } else {
      for (size_t j = 0; j < dim_; ++j) {
        const Compute gradient = Number<G>::Load(row[j]);
        sum[j] = add ? sum[j] + gradient : gradient;
      }
    }
  }

 private:
  size_t BagOf(size_t position) const { return bags_ == nullptr ? position : bags_[position]; }
  const G* Row(size_t position) const { return gradients_ + BagOf(position) * dim_; }
  Compute Factor(size_t position) const {
    const Compute weight = weights_ == nullptr ? Compute{1} : weights_[position];
    return scales_ == nullptr ? weight : weight * scales_[BagOf(position)];
  }

  const G* const gradients_;
  const size_t dim_;
  const uint32_t* const bags_;
  const Compute* const weights_;
  const Compute* const scales_;
  const bool is_scaled_;
};

// Sums the gradients of the groups at records [begin, end). `number_of(record, group)` is the row
// of `sums` for a group.
template <typename G, typename S, typename NumberOf>
Status SumGroups(const KeyGroups& groups, size_t begin, size_t end, const GradientReader<G>& reader,
                 const NumberOf& number_of, Allocator* allocator, S* sums) {
  using Compute = typename Number<G>::Compute;
  const TableLoops& loops = LoopsOf(BestInstructionSet());
  const size_t dim = reader.dim();
  Buffer<Compute> wide(allocator);      // a sum of half precision before it is rounded
  Buffer<uint32_t> bags_of(allocator);  // the bags of one key
  if (!std::is_same_v<S, Compute>) TF_EMBED_RETURN_IF_ERROR(wide.Resize(dim));
  const auto add_up = [&](const KeyGroup& group, Compute* sum) {
    const uint32_t* const positions = group.positions;
    const size_t count = group.count;
    if constexpr (std::is_same_v<G, Compute>) {
      if (!reader.is_scaled()) {
        for (size_t k = 0; reader.bags() != nullptr && k < count; ++k) {
          bags_of[k] = reader.bags()[positions[k]];
        }
        const uint32_t* const rows = reader.bags() == nullptr ? positions : bags_of.data();
        loops.Sum<Compute>()(GradientRows<Compute>(reader.gradients(), dim), rows, count, sum);
        return;
      }
    }
    reader.template Read<false>(positions[0], sum);
    for (size_t k = 1; k < count; ++k) reader.template Read<true>(positions[k], sum);
  };
  for (size_t record = begin; record < end; ++record) {
    if (record + kAhead < end) {
      const KeyGroup ahead = groups.GroupAt(record + kAhead);
      if (ahead.count > 0) reader.Ask(ahead.positions[0]);
    }
    const KeyGroup group = groups.GroupAt(record);
    if (group.count == 0) continue;
    if (reader.bags() != nullptr) TF_EMBED_RETURN_IF_ERROR(bags_of.Resize(group.count));
    S* const out = sums + number_of(record, group) * dim;
    if constexpr (std::is_same_v<S, Compute>) {
      add_up(group, out);
    } else {
      add_up(group, wide.data());
      for (size_t j = 0; j < dim; ++j) out[j] = Number<S>::Store(wide[j]);
    }
  }
  return Status();
}

}  // namespace

Status CheckNumberOfKeys(size_t num_keys) {
  if (num_keys <= INT32_MAX) return Status();
  return Status::InvalidArgument("A batch whose keys are numbered may have at most " +
                                 std::to_string(INT32_MAX) +
                                 " keys. Received: " + std::to_string(num_keys) + ".");
}

Status OtherComputeType() {
  return Status::InvalidArgument(
      "Sums of gradients can't be of a type that is computed in otherwise.");
}

Status KeySums::Build(const ExecContext& context, const int64_t* keys, size_t num_keys,
                      const int64_t* padding) {
  TF_EMBED_RETURN_IF_ERROR(CheckNumberOfKeys(num_keys));
  keys_ = keys;
  num_keys_ = num_keys;
  if (padding != nullptr) {
    TF_EMBED_RETURN_IF_ERROR(skip_.Resize(num_keys));
    for (size_t i = 0; i < num_keys; ++i) skip_[i] = keys[i] == *padding;
  }
  TF_EMBED_RETURN_IF_ERROR(groups_.Build(context, KeyBatch{keys, num_keys, nullptr},
                                         padding == nullptr ? nullptr : skip_.data()));
  TF_EMBED_RETURN_IF_ERROR(numbers_.Resize(groups_.partition().size()));
  TF_EMBED_RETURN_IF_ERROR(distinct_.Resize(num_keys));
  const size_t ranges = num_ranges();
  TF_EMBED_RETURN_IF_ERROR(firsts_.Resize(ranges + 1));
  const auto number = [&](size_t begin, size_t end) {
    for (size_t range = begin; range < end; ++range) {
      const size_t first_key = range * kRangeSize;
      const size_t end_key = std::min(first_key + kRangeSize, num_keys);
      KeyPartition::Walk walk(groups_.partition(), first_key);
      uint32_t next = 0;
      for (size_t i = first_key; i < end_key; ++i) {
        const uint32_t record = walk.Next();
        if (record == KeyPartition::Walk::kSkipped) continue;
        numbers_[record] = next;
        // No branch: it is unpredictable whether a key occurs here for the first time.
        distinct_[first_key + next] = keys[i];
        next += groups_.GroupAt(record).count > 0 ? 1 : 0;
      }
      firsts_[range + 1] = next;
    }
  };
  context.parallel_for(ranges, kNumberCost * kRangeSize, std::cref(number));
  firsts_[0] = 0;
  for (size_t range = 0; range < ranges; ++range) firsts_[range + 1] += firsts_[range];
  size_ = firsts_[ranges];
  return Status();
}

template <typename Work>
Status KeySums::ForEachPart(const ExecContext& context, size_t key_cost, const Work& work) const {
  const KeyPartition& partition = groups_.partition();
  FirstFailure failure;
  const auto run = [&](size_t begin, size_t end) {
    for (size_t part = begin; part < end && !failure.failed(); ++part) {
      Status status = work(partition.first_record(part), partition.first_record(part + 1));
      if (!status.ok()) return failure.Note(std::move(status));
    }
  };
  context.parallel_for(partition.parts(), key_cost * num_keys_ / partition.parts(), std::cref(run));
  return failure.Take();
}

void KeySums::WriteKeys(int64_t* distinct) const {
  for (size_t range = 0; range < num_ranges(); ++range) {
    std::copy_n(distinct_.data() + range * kRangeSize, firsts_[range + 1] - firsts_[range],
                distinct + firsts_[range]);
  }
}

void KeySums::WriteInverse(const ExecContext& context, int32_t* inverse) const {
  if (groups_.partition().size() < num_keys_) std::fill(inverse, inverse + num_keys_, -1);
  // The function never fails, so there is no error to return.
  (void)ForEachPart(context, kNumberCost, [&](size_t begin, size_t end) {
    for (size_t record = begin; record < end; ++record) {
      const KeyGroup group = groups_.GroupAt(record);
      if (group.count == 0) continue;
      const int32_t number = static_cast<int32_t>(NumberOf(record, group));
      for (size_t k = 0; k < group.count; ++k) inverse[group.positions[k]] = number;
    }
    return Status();
  });
}

template <typename Compute>
Status KeySums::ScaleBags(const KeyGradients& gradients) {
  const Bags& bags = *gradients.bags;
  TF_EMBED_RETURN_IF_ERROR(scales_.Resize(bags.size() * sizeof(Compute)));
  Compute* const scales = reinterpret_cast<Compute*>(scales_.data());
  for (size_t bag = 0; bag < bags.size(); ++bag) {
    const Compute divisor = DivisorOf<Compute>(bags, gradients.pooling, keys_, bag);
    scales[bag] = divisor == 0 ? Compute{0} : 1 / divisor;
  }
  return Status();
}

Status KeySums::WriteSums(const ExecContext& context, const KeyGradients& gradients, DataType type,
                          void* sums) {
  if (gradients.bags != nullptr) TF_EMBED_RETURN_IF_ERROR(gradients.bags->Number());
  const bool is_scaled = gradients.bags != nullptr && Divides(gradients.pooling.combiner);
  const size_t cost = kDistinctCost + gradients.dim * SizeOf(gradients.type) / kBytesOfNanosecond;
  return DispatchFloating(gradients.type, [&](auto gradient_tag) {
    using G = typename decltype(gradient_tag)::Type;
    using Compute = typename Number<G>::Compute;
    if (is_scaled) TF_EMBED_RETURN_IF_ERROR(ScaleBags<Compute>(gradients));
    const GradientReader<G> reader(
        gradients, is_scaled ? reinterpret_cast<const Compute*>(scales_.data()) : nullptr);
    return DispatchFloating(type, [&](auto sum_tag) {
      using S = typename decltype(sum_tag)::Type;
      if constexpr (!std::is_same_v<Compute, typename Number<S>::Compute>) {
        return OtherComputeType();
      } else {
        const auto number_of = [this](size_t record, const KeyGroup& group) {
          return NumberOf(record, group);
        };
        return ForEachPart(context, cost, [&](size_t begin, size_t end) {
          return SumGroups(groups_, begin, end, reader, number_of, allocator_,
                           static_cast<S*>(sums));
        });
      }
    });
  });
}

}  // namespace tf_embed
