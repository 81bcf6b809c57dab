// SPDX-License-Identifier: Apache-2.0
// CheckBounds: reports or repairs ids and offsets out of range.
#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/status_op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

constexpr int64_t kPruned = -1;

class CheckBoundsOp : public StatusOp {
 public:
  explicit CheckBoundsOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    std::string mode;
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(construction, construction->GetAttr("tables", &tables_));
    OP_REQUIRES_OK(construction, construction->GetAttr("owner", &owner_));
    OP_REQUIRES_OK(construction, construction->GetAttr("mode", &mode));
    OP_REQUIRES(construction, rows_.size() == tables_.size(),
                InvalidArgumentError("`tables` must have one for each of `rows`."));
    for (const int64_t rows : rows_) {
      OP_REQUIRES(construction, rows >= -1,
                  InvalidArgumentError("`rows` must be at least -1. Received: ", rows, "."));
    }
    std::vector<int64_t> padding;
    OP_REQUIRES_OK(construction, construction->GetAttr("padding", &padding));
    OP_REQUIRES(
        construction, padding.size() <= 1,
        InvalidArgumentError("`padding` must be none, or one. Received: ", padding.size(), "."));
    has_padding_ = !padding.empty();
    if (has_padding_) padding_ = padding[0];
    of_features_ = std::vector<Reported>(rows_.size());
    fatal_ = mode == "fatal";
    warns_ = mode == "warning";
    mends_ = warns_ || mode == "ignore";
  }

 private:
  // The faults found in a batch.
  struct Faults {
    int64_t events = 0;
    int64_t pruned = 0;
    int64_t out_of_bounds = 0;
    std::string first;  // a readable description
  };

  // Faults of one kind over all calls.
  struct Reported {
    std::atomic<int64_t> calls{0};
    std::atomic<int64_t> faults{0};
  };

  // Logs faults of one kind on the first, second, fourth, ... call with such faults. Doubling keeps
  // every kind visible and the log small.
  static void Warn(const std::string& words, int64_t count, Reported* so_far) {
    const int64_t calls = so_far->calls.fetch_add(1) + 1;
    const int64_t faults = so_far->faults.fetch_add(count) + count;
    if ((calls & (calls - 1)) != 0) return;
    // The op's output counts each fault as well.
    LOG(WARNING) << words << ". Faults of this kind: " << count << " in this call, " << faults
                 << " in " << calls << (calls == 1 ? " call" : " calls")
                 << "; the next message is after " << 2 * calls << " calls with some.";
  }

  absl::Status Run(tf::OpKernelContext* context) override {
    const tf::Tensor& indices = context->input(0);
    const tf::Tensor& bag_counts = context->input(2);
    TF_RETURN_IF_ERROR(CheckRank(indices, "indices", 1));
    TF_RETURN_IF_ERROR(CheckRank(context->input(1), "offsets", 1));
    TF_RETURN_IF_ERROR(CheckRank(bag_counts, "num_bags", 1));
    const int64_t n = indices.NumElements();
    const int64_t* const ids = indices.flat<int64_t>().data();
    const int64_t* const num_bags = bag_counts.flat<int64_t>().data();
    tf::Tensor offsets = context->input(1);
    Faults faults;
    TF_RETURN_IF_ERROR(CheckCounts(bag_counts, offsets.NumElements()));
    TF_RETURN_IF_ERROR(MendOffsets(context, n, &offsets, &faults));
    const int64_t* const splits = offsets.flat<int64_t>().data();
    FindOutOfBounds(ids, splits, num_bags, &faults);
    if (faults.events > 0 && fatal_) return InvalidArgumentError(faults.first, ".");
    const int64_t dropped = faults.pruned + faults.out_of_bounds;
    tf::Tensor* kept;
    TF_RETURN_IF_ERROR(context->allocate_output(2, {dropped > 0 ? n - dropped : 0}, &kept));
    TF_RETURN_IF_ERROR(GiveScalar<bool>(context, 3, dropped > 0));
    TF_RETURN_IF_ERROR(GiveScalar<int64_t>(context, 4, mends_ ? faults.events : 0));
    // The usual case costs one read of the indices and no copy.
    if (dropped == 0) {
      context->set_output(0, indices);
      context->set_output(1, offsets);
      return absl::OkStatus();
    }
    tf::Tensor *left, *left_offsets;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {n - dropped}, &left));
    TF_RETURN_IF_ERROR(context->allocate_output(1, offsets.shape(), &left_offsets));
    Drop(ids, splits, num_bags, left->flat<int64_t>().data(), left_offsets->flat<int64_t>().data(),
         kept->flat<int64_t>().data());
    return absl::OkStatus();
  }

  absl::Status CheckCounts(const tf::Tensor& bag_counts, int64_t num_offsets) const {
    const int64_t features = static_cast<int64_t>(rows_.size());
    if (bag_counts.NumElements() != features) {
      return InvalidArgumentError("`num_bags` of '", owner_, "' must be of ", features,
                                  " features. Received: ", bag_counts.NumElements(), ".");
    }
    int64_t bags = 0;
    for (int64_t i = 0; i < features; ++i) {
      const int64_t count = bag_counts.flat<int64_t>()(i);
      // Keeps bags + 1, below, from overflowing.
      if (count < 0 || count > INT64_MAX - 1 - bags) {
        return InvalidArgumentError("`num_bags` of '", owner_,
                                    "' must not be negative. Received: ", count, ".");
      }
      bags += count;
    }
    if (num_offsets == bags + 1) return absl::OkStatus();
    return InvalidArgumentError("`offsets` of '", owner_, "' must have one for each of ", bags,
                                " bags and one more. Received: ", num_offsets, ".");
  }

  // Replaces invalid `offsets`.
  absl::Status MendOffsets(tf::OpKernelContext* context, int64_t n, tf::Tensor* offsets,
                           Faults* faults) {
    const int64_t* const given = offsets->flat<int64_t>().data();
    const int64_t last = offsets->NumElements() - 1;
    const auto mended = [&](int64_t i, int64_t before) {
      if (i == 0) return int64_t{0};
      return i == last ? n : std::clamp(given[i], before, n);
    };
    int64_t before = 0;
    for (int64_t i = 0; i <= last; ++i) {
      // Without bags, the only offset is both first and last, and must be n.
      const int64_t good = last == 0 ? n : mended(i, before);
      if (given[i] != good) {
        if (faults->events++ == 0) {
          faults->first = absl::StrCat(
              "`offsets` of '", owner_, "' must not decrease, and go from 0 to the number of ",
              "indices, ", n, ". Received: ", given[i], " at offsets[", i, "]");
        }
      }
      before = good;
    }
    if (faults->events == 0) return absl::OkStatus();
    if (!mends_ || last == 0) return InvalidArgumentError(faults->first, ".");
    if (warns_) Warn(faults->first, faults->events, &of_offsets_);
    tf::Tensor own;
    // A copy, because the input may be used by other ops.
    TF_RETURN_IF_ERROR(context->allocate_temp(tf::DT_INT64, offsets->shape(), &own));
    int64_t* const to = own.flat<int64_t>().data();
    for (int64_t i = 0; i <= last; ++i) to[i] = mended(i, i == 0 ? 0 : to[i - 1]);
    *offsets = own;
    return absl::OkStatus();
  }

  // Calls visit(feature, begin, end) with the index range of each bounded feature.
  template <typename Visit>
  void ForEachFeature(const int64_t* splits, const int64_t* num_bags, const Visit& visit) const {
    int64_t bag = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t begin = splits[bag];
      bag += num_bags[i];
      visit(i, begin, splits[bag]);
    }
  }

  bool IsPadding(int64_t id) const { return has_padding_ && id == padding_; }

  bool IsGood(size_t feature, int64_t id) const {
    if (IsPadding(id)) return false;
    return rows_[feature] < 0 || static_cast<uint64_t>(id) < static_cast<uint64_t>(rows_[feature]);
  }

  void FindOutOfBounds(const int64_t* ids, const int64_t* splits, const int64_t* num_bags,
                       Faults* faults) {
    ForEachFeature(splits, num_bags, [&](size_t feature, int64_t begin, int64_t end) {
      if (has_padding_) {
        faults->pruned += std::count(ids + begin, ids + end, padding_);
      }
      if (rows_[feature] < 0) return;
      const uint64_t rows = static_cast<uint64_t>(rows_[feature]);
      int64_t bad = 0, pruned = 0;
      for (int64_t i = begin; i < end; ++i) {
        // As an unsigned number, a negative id is out of bounds as well. Without branches,
        // compilers vectorize the loop.
        bad += static_cast<uint64_t>(ids[i]) >= rows ? 1 : 0;
        pruned += ids[i] == kPruned ? 1 : 0;
      }
      // -1 is above all rows as an unsigned number, so it was counted as bad.
      bad -= pruned;
      if (has_padding_ && padding_ == kPruned) pruned = 0;  // counted above
      if (has_padding_ && padding_ != kPruned && static_cast<uint64_t>(padding_) >= rows) {
        bad -= std::count(ids + begin, ids + end, padding_);
      }
      faults->pruned += pruned;
      faults->out_of_bounds += bad;
      if (bad > 0 && (faults->events == 0 || warns_)) {
        const int64_t* const first = std::find_if(ids + begin, ids + end, [&](int64_t id) {
          return id != kPruned && !IsPadding(id) && !IsGood(feature, id);
        });
        const std::string words =
            absl::StrCat("`indices` of '", owner_, "' must be row numbers of table '",
                         tables_[feature], "', from 0 to ", rows_[feature] - 1,
                         ". Received: ", *first, " at indices[", first - ids, "]");
        if (warns_) Warn(words, bad, &of_features_[feature]);
        if (faults->events == 0) faults->first = words;
      }
      faults->events += bad;
    });
  }

  void Drop(const int64_t* ids, const int64_t* splits, const int64_t* num_bags, int64_t* left,
            int64_t* left_offsets, int64_t* kept) const {
    int64_t bag = 0, next = 0;
    left_offsets[0] = 0;
    for (size_t feature = 0; feature < rows_.size(); ++feature) {
      for (const int64_t end = bag + num_bags[feature]; bag < end; ++bag) {
        for (int64_t i = splits[bag]; i < splits[bag + 1]; ++i) {
          if (!IsGood(feature, ids[i])) continue;
          left[next] = ids[i];
          kept[next++] = i;
        }
        left_offsets[bag + 1] = next;
      }
    }
  }

  std::vector<int64_t> rows_;
  std::vector<std::string> tables_;
  std::string owner_;
  bool fatal_ = false;
  bool warns_ = false;
  bool mends_ = false;
  bool has_padding_ = false;
  int64_t padding_ = 0;
  Reported of_offsets_;
  std::vector<Reported> of_features_;
};

const Kernels<CheckBoundsOp> check_bounds("TfEmbedCheckBounds");

}  // namespace
}  // namespace tf_embed
