// SPDX-License-Identifier: Apache-2.0
// Verbs that change rows: InsertOrAssign, Accum, Apply, Erase.
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/rule_attributes.h"
#include "cc/tf/table_op.h"
#include "cc/tf/table_parts.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

class InsertOrAssignOp : public TableOp {
 public:
  explicit InsertOrAssignOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("distinct", &distinct_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    const tf::Tensor& values = context->input(3);
    TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kWrite, &keys));
    keys.TakeAsDistinct(distinct_);
    TF_RETURN_IF_ERROR(CheckRows(values, "values", *table, keys));
    TF_RETURN_IF_ERROR(keys.ReadScores(context, *table, 4));
    const ExecContext exec = ExecContextOf(context);
    Buffer<int64_t> numbers(table->allocator());
    const void* rows = values.data();
    if (table->value_strings() != nullptr) {
      TF_RETURN_IF_ERROR(
          ToTensorFlow(keys.string_scope()->InternValues(exec, StringsOf(values), &numbers)));
      rows = numbers.data();
    }
    return ToTensorFlow(table->InsertOrAssign(exec, keys.batch(), rows));
  }

  bool distinct_ = false;
};

absl::Status RunAccum(tf::OpKernelContext* context, TableResource* table) {
  KeysInput keys(table->allocator());
  const tf::Tensor& old_values = context->input(3);
  const tf::Tensor& new_values = context->input(4);
  const tf::Tensor& exists = context->input(5);
  TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kWrite, &keys));
  TF_RETURN_IF_ERROR(CheckRows(old_values, "old_values", *table, keys));
  TF_RETURN_IF_ERROR(CheckRows(new_values, "new_values", *table, keys));
  if (exists.shape() != keys.shape()) {
    return InvalidArgumentError("`exists` of table '", table->name(),
                                "' must have the shape of the keys, ", keys.shape().DebugString(),
                                ". Received: ", exists.shape().DebugString(), ".");
  }
  TF_RETURN_IF_ERROR(keys.ReadScores(context, *table, 6));
  return ToTensorFlow(table->Accum(ExecContextOf(context), keys.batch(), old_values.data(),
                                   new_values.data(), exists.flat<bool>().data()));
}

class ApplyOp : public TableOp {
 public:
  explicit ApplyOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, ReadRuleKind(construction, &options_.rule));
    OP_REQUIRES_OK(construction, construction->GetAttr("distinct", &options_.distinct));
    OP_REQUIRES_OK(construction,
                   construction->GetAttr("stochastic_rounding", &options_.stochastic_rounding));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    tf::OpInputList trained;
    TF_RETURN_IF_ERROR(context->input_list("trained", &trained));
    if (trained.size() > 0) {
      bool is_trained;
      TF_RETURN_IF_ERROR(ReadScalar(trained[0], "trained", &is_trained));
      // Decided at run time and not by the graph, so `trainable` may change without a new trace.
      if (!is_trained) return absl::OkStatus();
    }
    RowStep step(table);
    TF_RETURN_IF_ERROR(step.Read(context, options_));
    tf::OpInputList scores, tokens;
    TF_RETURN_IF_ERROR(context->input_list("scores", &scores));
    TF_RETURN_IF_ERROR(context->input_list("token", &tokens));
    if (scores.size() > 0) TF_RETURN_IF_ERROR(step.keys.ReadScores(context, *table, 6));
    if (tokens.size() == 0) return step.Run(ExecContextOf(context));
    if (tokens[0].shape() != tf::TensorShape({2})) {
      return InvalidArgumentError("`token` of table '", table->name(),
                                  "' must be the number of a step, and one below which all steps "
                                  "are over, of shape [2]. Received: shape ",
                                  tokens[0].shape().DebugString(), ".");
    }
    const auto token = tokens[0].vec<int64_t>();
    // A worker that lost the answer sends the step again, which must not move the rows twice. A
    // repeated step waits for the first, and takes its place if the first fails.
    AppliedSteps::Arrival arrival(table->applied_steps(), token(0), token(1));
    if (!arrival.is_first()) return absl::OkStatus();
    TF_RETURN_IF_ERROR(step.Run(ExecContextOf(context)));
    arrival.End();
    return absl::OkStatus();
  }

  RowStep::Options options_;
};

absl::Status RunErase(tf::OpKernelContext* context, TableResource* table) {
  KeysInput keys(table->allocator());
  TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kErase, &keys));
  return ToTensorFlow(table->Erase(ExecContextOf(context), keys.batch()));
}

const Kernels<InsertOrAssignOp> insert_or_assign("TfEmbedInsertOrAssign", {"table", "owners"},
                                                 {"keys", "values", "scores"});
const Kernels<TableFunction<RunAccum>> accum("TfEmbedAccum", {"table", "owners"},
                                             {"keys", "old_values", "new_values", "exists",
                                              "scores"});
const Kernels<ApplyOp> apply("TfEmbedApply",
                             {"table", "owners", "hyper", "step", "token", "trained"},
                             {"keys", "gradients", "scores"});
const Kernels<TableFunction<RunErase>> erase("TfEmbedErase", {"table", "owners"}, {"keys"});

}  // namespace
}  // namespace tf_embed
