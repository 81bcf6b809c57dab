// SPDX-License-Identifier: Apache-2.0
// FindEach, FindPooledEach and ApplyEach: a verb on many tables, each with its own keys. LinkRows
// and LinkPooled tie what a lookup of many gives to the token of one table.
//
// The op holds the tables (HeldTables). On the CPU, the verbs of many tables run at once on the
// threads of the pool. On a GPU, their launches are made together (LaunchQueue). Tables that can't
// be held come first, one after the other.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/core/pooling/pooled_find.h"
#include "cc/core/table/held_tables.h"
#include "cc/tf/for_each_table.h"
#include "cc/tf/gpu_tables.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/rule_attributes.h"
#include "cc/tf/status_op.h"
#include "cc/tf/table_op.h"
#include "cc/tf/table_parts.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

// Rough costs of a key in nanoseconds.
constexpr size_t kFindEachCost = 60;
constexpr size_t kApplyEachCost = 120;

// An op of many tables. A table that fails does not stop the others; the error of the first one is
// returned.
class EachTableOp : public StatusOp {
 public:
  explicit EachTableOp(tf::OpKernelConstruction* construction) : StatusOp(construction) {
    tf::DataTypeVector types;
    OP_REQUIRES_OK(construction, ReadDims(construction, &dims_));
    for (const char* const name :
         {"key_dtypes", "value_dtypes", "gradient_dtypes", "pooled_dtypes"}) {
      if (!construction->HasAttr(name)) continue;
      OP_REQUIRES_OK(construction, ReadOneEach(construction, name, count(), &types));
    }
  }

 protected:
  // The tables, and the status of each.
  class Tables {
   public:
    // Looks the tables up. Afterwards, tables with an error have no part in the op.
    Tables(tf::OpKernelContext* context, const std::vector<int64_t>& dims)
        : context_(context), tables_(dims.size()), statuses_(dims.size()) {
      for (size_t i = 0; i < size(); ++i) statuses_[i] = LookUp(i, dims[i]);
    }

    size_t size() const { return tables_.size(); }
    bool on_device() const { return context_->op_device_context() != nullptr; }
    TableResource* operator[](size_t i) const { return tables_[i].get(); }
    bool ok(size_t i) const { return statuses_[i].ok(); }
    TableInputs inputs(size_t i) const { return TableInputs(context_, i, size()); }

    // Runs `part` of a table, unless the table has failed. Thread-safe for different tables.
    template <typename Part>
    void Run(size_t i, const Part& part) {
      if (ok(i)) statuses_[i] = RunOnTable(*tables_[i], part);
    }

    // The first error, with its table.
    absl::Status status() const {
      for (size_t i = 0; i < size(); ++i) {
        if (ok(i)) continue;
        const std::string name =
            tables_[i] == nullptr ? "" : absl::StrCat(", '", tables_[i]->name(), "'");
        return absl::Status(statuses_[i].code(), absl::StrCat("Table ", i, " of ", size(), name,
                                                              ": ", statuses_[i].message()));
      }
      return absl::OkStatus();
    }

   private:
    absl::Status LookUp(size_t i, int64_t dim) {
      TF_RETURN_IF_ERROR(LookUpTable(context_, inputs(i)[0], "tables", &tables_[i]));
      if (on_device() && !tables_[i]->is_on_device()) {
        return InvalidArgumentError("`tables` of an op on a GPU must be on it too.");
      }
      return CheckDim(*tables_[i], dim);
    }

    tf::OpKernelContext* const context_;
    std::vector<tf::core::RefCountPtr<TableResource>> tables_;
    std::vector<absl::Status> statuses_;
  };

  size_t count() const { return dims_.size(); }

  // Makes, reads and runs the parts of the tables. `make(i)` returns an object with these methods:
  //
  //     absl::Status Read(const TableInputs& inputs)   in the thread of the op
  //     bool CanBeHeld()                               after Read
  //     const KeysInput& keys()
  //     absl::Status Run(const ExecContext& exec)      in any thread
  template <typename Make>
  static absl::Status RunEach(const ExecContext& exec, Held held, size_t key_cost, const Make& make,
                              Tables* tables) {
    struct Waiting {
      size_t number;
      decltype(make(0)) part;
    };
    std::vector<Waiting> waiting;
    std::vector<const Table*> taken;
    size_t num_keys = 0;
    const bool on_device = tables->on_device();
    const bool together = on_device ? tables->size() > 1 : AreManyTables(tables->size());
    for (size_t i = 0; i < tables->size(); ++i) {
      decltype(make(i)) part;
      bool waits = false;
      // Outputs are allocated here, because the op's context is not safe to use from several
      // threads.
      tables->Run(i, [&] {
        part = make(i);
        TF_RETURN_IF_ERROR(part->Read(tables->inputs(i)));
        // On a GPU, keys of 32 bits are on the host. On the CPU, a table on a GPU would wait for it
        // in a thread of the pool.
        waits = together && (*tables)[i]->can_be_held() && part->CanBeHeld() &&
                part->keys().batch().on_device == (*tables)[i]->is_on_device();
        return waits ? absl::OkStatus() : part->Run(exec);
      });
      if (!waits) continue;  // the part gives its locks back
      num_keys += part->keys().size();
      taken.push_back((*tables)[i]);
      waiting.push_back({i, std::move(part)});
    }
    if (waiting.empty()) return absl::OkStatus();
    HeldTables holding(HostAllocator());
    TF_RETURN_IF_ERROR(ToTensorFlow(holding.Take(taken, held)));
    const auto run = [&](const ExecContext& each, size_t k) {
      tables->Run(waiting[k].number, [&] { return waiting[k].part->Run(each); });
      return Status();  // each table has its own
    };
    if (on_device) return TogetherOnGpu(exec.Holding(held), waiting.size(), run);
    return ForEachTable(exec.Holding(held), waiting.size(), num_keys, key_cost, run);
  }

 private:
  virtual absl::Status Run(tf::OpKernelContext* context, Tables* tables) = 0;

  absl::Status Run(tf::OpKernelContext* context) final {
    const OpUnderWay under_way;
    Tables tables(context, dims_);
    absl::Status status = Run(context, &tables);
    if (context->op_device_context() != nullptr) status = WithMemoryAdvice(std::move(status));
    TF_RETURN_IF_ERROR(status);
    return tables.status();
  }

  std::vector<int64_t> dims_;
};

// A context for a table whose lookup is a part of training, or is not.
ExecContext WithTraining(const ExecContext& exec, bool training) {
  ExecContext context = exec;
  context.training = training;
  return context;
}

class FindEachOp final : public EachTableOp {
 public:
  explicit FindEachOp(tf::OpKernelConstruction* construction) : EachTableOp(construction) {
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "training", count(), &training_));
  }

 private:
  class Part {
   public:
    Part(TableResource* table, bool training) : lookup_(table), training_(training) {}
    absl::Status Read(const TableInputs& inputs) { return lookup_.Read(inputs, KeyUse::kRead); }
    bool CanBeHeld() const { return true; }
    const KeysInput& keys() const { return lookup_.keys; }
    absl::Status Run(const ExecContext& exec) const {
      return ToTensorFlow(lookup_.table->Find(WithTraining(exec, training_), lookup_.keys.batch(),
                                              lookup_.defaults, lookup_.values->data(), nullptr));
    }

   private:
    RowLookup lookup_;
    const bool training_;
  };

  absl::Status Run(tf::OpKernelContext* context, Tables* tables) override {
    bool notes_uses = false;
    for (size_t i = 0; i < count(); ++i) {
      notes_uses = notes_uses || (tables->ok(i) && training_[i] && (*tables)[i]->notes_uses());
    }
    const auto make = [&](size_t i) { return std::make_unique<Part>((*tables)[i], training_[i]); };
    return RunEach(ExecContextOf(context), notes_uses ? Held::kUsing : Held::kContent,
                   kFindEachCost, make, tables);
  }

  std::vector<bool> training_;
};

class ApplyEachOp final : public EachTableOp {
 public:
  explicit ApplyEachOp(tf::OpKernelConstruction* construction) : EachTableOp(construction) {
    std::vector<std::string> rules;
    std::vector<bool> distinct, rounding;
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "rules", count(), &rules));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "distinct", count(), &distinct));
    OP_REQUIRES_OK(construction,
                   ReadOneEach(construction, "stochastic_rounding", count(), &rounding));
    for (size_t i = 0; i < count(); ++i) {
      options_.push_back({RuleKind::kNone, distinct[i], rounding[i]});
      OP_REQUIRES_OK(construction, FindRuleKind(rules[i], &options_[i].rule));
    }
  }

 private:
  class Part {
   public:
    Part(TableResource* table, const RowStep::Options& options) : step_(table), options_(options) {}
    absl::Status Read(const TableInputs& inputs) {
      TF_RETURN_IF_ERROR(ReadScalar(inputs[6], "trained", &trained_));
      return trained_ ? step_.Read(inputs, options_) : absl::OkStatus();
    }
    // A held table can't change its rule.
    bool CanBeHeld() const {
      return trained_ && step_.table->HasRuleAndInitialValues(step_.rule.slots);
    }
    const KeysInput& keys() const { return step_.keys; }
    absl::Status Run(const ExecContext& exec) const {
      return trained_ ? step_.Run(exec) : absl::OkStatus();
    }

   private:
    RowStep step_;
    const RowStep::Options& options_;
    bool trained_ = false;
  };

  absl::Status Run(tf::OpKernelContext* context, Tables* tables) override {
    // A repeated table must not be trained by two threads at once.
    std::map<const TableResource*, size_t> numbers;
    for (size_t i = 0; i < count(); ++i) {
      if (!tables->ok(i)) continue;
      const auto [first, is_new] = numbers.emplace((*tables)[i], i);
      if (is_new) continue;
      return InvalidArgumentError("`tables` must be distinct. Received: table '",
                                  (*tables)[i]->name(), "' as number ", first->second, " and ", i,
                                  ".");
    }
    const auto make = [&](size_t i) { return std::make_unique<Part>((*tables)[i], options_[i]); };
    return RunEach(ExecContextOf(context), Held::kWriting, kApplyEachCost, make, tables);
  }

  std::vector<RowStep::Options> options_;
};

class FindPooledEachOp final : public EachTableOp {
 public:
  explicit FindPooledEachOp(tf::OpKernelConstruction* construction) : EachTableOp(construction) {
    std::vector<std::string> combiners, padding_texts;
    std::vector<int64_t> paddings;
    std::vector<bool> has_padding;
    tf::DataTypeVector key_types;
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "training", count(), &training_));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "num_bags", count(), &num_bags_));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "has_weights", count(), &has_weights_));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "has_padding", count(), &has_padding));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "paddings", count(), &paddings));
    OP_REQUIRES_OK(construction,
                   ReadOneEach(construction, "padding_texts", count(), &padding_texts));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "combiners", count(), &combiners));
    OP_REQUIRES_OK(construction, ReadOneEach(construction, "key_dtypes", count(), &key_types));
    for (size_t i = 0; i < count(); ++i) {
      OP_REQUIRES(
          construction, num_bags_[i] >= 0 && num_bags_[i] <= 2,
          InvalidArgumentError("`num_bags` must be from 0 to 2. Received: ", num_bags_[i], "."));
      PoolingAttributes pooling;
      OP_REQUIRES_OK(construction, pooling.SetCombiner(combiners[i]));
      if (has_padding[i] && key_types[i] == tf::DT_STRING) {
        pooling.padding_string.push_back(padding_texts[i]);
      } else if (has_padding[i]) {
        pooling.padding.push_back(paddings[i]);
      }
      pooling_.push_back(std::move(pooling));
    }
    const auto num_weighted = std::count(has_weights_.begin(), has_weights_.end(), true);
    OP_REQUIRES_OK(construction,
                   ReadFound(construction, static_cast<size_t>(num_weighted), &gives_found_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, Tables* tables) override {
    std::vector<tf::OpInputList> bags, weights;
    TF_RETURN_IF_ERROR(Split(context, "bags", num_bags_, &bags));
    TF_RETURN_IF_ERROR(
        Split(context, "weights", {has_weights_.begin(), has_weights_.end()}, &weights));
    const ExecContext exec = ExecContextOf(context);
    std::vector<std::unique_ptr<PooledLookup>> lookups(count());
    int found = static_cast<int>(count());  // the output for the rows of the next weighted lookup
    for (size_t i = 0; i < count(); ++i) {
      bool waits = false;
      tables->Run(i, [&] {
        lookups[i] = std::make_unique<PooledLookup>((*tables)[i], pooling_[i]);
        TF_RETURN_IF_ERROR(lookups[i]->Read(tables->inputs(i), bags[i], weights[i],
                                            gives_found_ && has_weights_[i] ? found : -1));
        waits = !(*tables)[i]->has_string_keys();
        return waits ? absl::OkStatus() : lookups[i]->Run(WithTraining(exec, training_[i]));
      });
      // Gives the locks back, of which a thread has those of one table.
      if (!waits) lookups[i].reset();
      if (has_weights_[i]) ++found;
    }
    for (const bool training : {false, true}) {
      const ExecContext each = WithTraining(exec, training);
      std::vector<const Table*> taken;
      std::vector<PooledFind> finds;
      bool on_device = false;  // of all or none
      for (size_t i = 0; i < count(); ++i) {
        if (lookups[i] == nullptr || training_[i] != training) continue;
        taken.push_back((*tables)[i]);
        finds.push_back(lookups[i]->find());
        on_device = lookups[i]->is_on_device();
      }
      TF_RETURN_IF_ERROR(on_device ? FindPooledOnGpu(each, taken, finds)
                                   : ToTensorFlow(FindPooled(each, finds.data(), finds.size())));
    }
    return absl::OkStatus();
  }

  // Splits an input list into the lists of the tables, of these sizes.
  absl::Status Split(tf::OpKernelContext* context, const char* name,
                     const std::vector<int64_t>& sizes, std::vector<tf::OpInputList>* lists) const {
    int begin = 0, end = 0;
    TF_RETURN_IF_ERROR(InputRange(name, &begin, &end));
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (total != end - begin) {
      return InvalidArgumentError("`", name, "` of all tables must be ", total,
                                  " tensors. Received: ", end - begin, ".");
    }
    for (const int64_t size : sizes) {
      lists->emplace_back(context, begin, begin + static_cast<int>(size));
      begin += static_cast<int>(size);
    }
    return absl::OkStatus();
  }

  std::vector<bool> training_, has_weights_;
  bool gives_found_ = false;
  std::vector<int64_t> num_bags_;
  std::vector<PoolingAttributes> pooling_;
};

// Gives its input 2. The others are those of its gradient.
class LinkOp final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tf::OpKernelContext* context) override { context->set_output(0, context->input(2)); }
  bool IsExpensive() override { return false; }
};

const Kernels<FindEachOp> find_each("TfEmbedFindEach", {"tables", "owners"},
                                    {"keys", "defaults", "values"}, "key_dtypes");
const Kernels<FindPooledEachOp> find_pooled_each("TfEmbedFindPooledEach",
                                                 {"tables", "owners", "bags"},
                                                 {"keys", "defaults", "weights", "pooled", "found"},
                                                 "key_dtypes");
const Kernels<ApplyEachOp> apply_each("TfEmbedApplyEach",
                                      {"tables", "owners", "hyper", "step", "trained"},
                                      {"keys", "gradients"}, "key_dtypes");
const Kernels<LinkOp> link_rows("TfEmbedLinkRows", {"table", "token"}, {"keys", "rows", "linked"});
const Kernels<LinkOp> link_pooled("TfEmbedLinkPooled", {"table", "tokens", "bags"},
                                  {"keys", "pooled", "defaults", "weights", "linked"});

}  // namespace
}  // namespace tf_embed
