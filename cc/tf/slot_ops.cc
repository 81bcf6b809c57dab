// SPDX-License-Identifier: Apache-2.0
// Ops of a rule that runs outside of the table. FindSlots and AssignSlots read and write whole
// rows, and RowsOfOtherRule counts the rows whose slots a rule would replace. ReadSlots, and
// AssignSlots too, take any rule, including fused rules. LargestSlot serves rules that count steps.
#include "cc/core/files/table_meta.h"
#include "cc/tf/kernels.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/rule_attributes.h"
#include "cc/tf/table_op.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

absl::Status SlotsShape(const TableResource& table, const KeysInput& keys, const RuleSlots& rule,
                        tf::TensorShape* shape) {
  const size_t most = TableMeta::MostSlots(table.dim());
  if (rule.slots_per_row() > most) {
    return InvalidArgumentError("`slot_widths` of table '", table.name(), "', of dim ", table.dim(),
                                ", must be at most ", most,
                                " together. Received: ", rule.slots_per_row(), ".");
  }
  *shape = keys.shape();
  return AddAxis(static_cast<int64_t>(rule.slots_per_row()), shape);
}

absl::Status CheckSlotType(tf::DataType type, const TableResource& table) {
  if (tf::DataTypeSize(type) == static_cast<int>(SlotSize(table.value_type()))) {
    return absl::OkStatus();
  }
  return InvalidArgumentError("The slots of table '", table.name(), "', ",
                              table.signature().DebugString(),
                              ", are of another type. Received: ", tf::DataTypeString(type), ".");
}

class FindSlotsOp : public TableOp {
 public:
  explicit FindSlotsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, ReadExternalRule(construction, &rule_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    DefaultRows defaults;
    tf::TensorShape slots_shape;
    tf::Tensor *values, *slots, *exists;
    TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kRead, &keys));
    TF_RETURN_IF_ERROR(ReadDefaults(context, *table, keys, &defaults));
    TF_RETURN_IF_ERROR(CheckOutputType(output_type(0), *table));
    TF_RETURN_IF_ERROR(CheckSlotType(output_type(1), *table));
    TF_RETURN_IF_ERROR(SlotsShape(*table, keys, rule_, &slots_shape));
    TF_RETURN_IF_ERROR(context->allocate_output(0, keys.rows_shape(), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(1, slots_shape, &slots));
    TF_RETURN_IF_ERROR(context->allocate_output(2, keys.shape(), &exists));
    // Part of a training step, so expired rows are re-initialized by this lookup.
    return ToTensorFlow(table->FindSlots(ExecContextOf(context), keys.batch(), defaults, rule_,
                                         values->data(), slots->data(),
                                         exists->flat<bool>().data()));
  }

  RuleSlots rule_;
};

// A fused or an external rule, as given by attributes.
class AnyRule {
 public:
  absl::Status Read(tf::OpKernelConstruction* construction) {
    TF_RETURN_IF_ERROR(ReadRuleKind(construction, &kind_));
    return ReadExternalRule(construction, &external_);
  }
  bool is_external() const { return kind_ == RuleKind::kExternal; }
  RuleSlots SlotsOf(const TableResource& table, double initial_value = 0.0) const {
    return is_external() ? external_ : FusedSlots(kind_, table.dim(), initial_value);
  }

 private:
  RuleKind kind_ = RuleKind::kNone;
  RuleSlots external_;
};

class AssignSlotsOp : public TableOp {
 public:
  explicit AssignSlotsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, rule_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("initial_value", &initial_value_));
    OP_REQUIRES_OK(construction, construction->GetAttr("distinct", &distinct_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    const tf::Tensor& values = context->input(3);
    const tf::Tensor& slots = context->input(4);
    TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kWrite, &keys));
    keys.TakeAsDistinct(distinct_);
    TF_RETURN_IF_ERROR(CheckRows(values, "values", *table, keys));
    TF_RETURN_IF_ERROR(CheckSlotType(slots.dtype(), *table));
    const RuleSlots rule = rule_.SlotsOf(*table, initial_value_);
    tf::TensorShape slots_shape;
    TF_RETURN_IF_ERROR(SlotsShape(*table, keys, rule, &slots_shape));
    if (slots.shape() != slots_shape) {
      return InvalidArgumentError("`slots` of table '", table->name(), "' must have shape ",
                                  slots_shape.DebugString(),
                                  ". Received: ", slots.shape().DebugString(), ".");
    }
    TF_RETURN_IF_ERROR(keys.ReadScores(context, *table, 5));
    // An external rule was set by FindSlots. A fused rule has no such lookup, so a table that it
    // has not trained yet takes it here.
    return ToTensorFlow(table->InsertOrAssign(ExecContextOf(context, /*training=*/true),
                                              keys.batch(), values.data(), {&rule, slots.data()},
                                              /*sets_rule=*/!rule_.is_external()));
  }

  AnyRule rule_;
  float initial_value_ = 0;
  bool distinct_ = false;
};

class ReadSlotsOp : public TableOp {
 public:
  explicit ReadSlotsOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, rule_.Read(construction));
    OP_REQUIRES_OK(construction, construction->GetAttr("initial_value", &initial_value_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    KeysInput keys(table->allocator());
    tf::Tensor *slots, *exists;
    TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kRead, &keys));
    TF_RETURN_IF_ERROR(CheckSlotType(output_type(0), *table));
    const RuleSlots wanted = rule_.SlotsOf(*table, initial_value_);
    tf::TensorShape slots_shape;
    TF_RETURN_IF_ERROR(SlotsShape(*table, keys, wanted, &slots_shape));
    TF_RETURN_IF_ERROR(context->allocate_output(0, slots_shape, &slots));
    TF_RETURN_IF_ERROR(context->allocate_output(1, keys.shape(), &exists));
    return ToTensorFlow(table->ReadSlots(ExecContextOf(context), keys.batch(), wanted,
                                         slots->data(), exists->flat<bool>().data()));
  }

  AnyRule rule_;
  float initial_value_ = 0;
};

class RowsOfOtherRuleOp : public TableOp {
 public:
  explicit RowsOfOtherRuleOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, rule_.Read(construction));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    return GiveScalar<int64_t>(context, 0, table->RowsOfOtherRule(rule_.SlotsOf(*table)));
  }

  AnyRule rule_;
};

class LargestSlotOp : public TableOp {
 public:
  explicit LargestSlotOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, ReadRuleKind(construction, &kind_));
    OP_REQUIRES_OK(construction, ReadNumber(construction, "slot", 0, INT64_MAX, &slot_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    tf::Tensor* largest;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &largest));
    return ToTensorFlow(table->LargestSlot(ExecContextOf(context), FusedSlots(kind_, table->dim()),
                                           static_cast<size_t>(slot_),
                                           &largest->scalar<double>()()));
  }

  RuleKind kind_ = RuleKind::kNone;
  int64_t slot_ = 0;
};

const Kernels<FindSlotsOp> find_slots("TfEmbedFindSlots", {"table", "owners"},
                                      {"keys", "defaults", "values", "slots", "exists"});
const Kernels<AssignSlotsOp> assign_slots("TfEmbedAssignSlots", {"table", "owners"},
                                          {"keys", "values", "slots", "scores"});
const Kernels<ReadSlotsOp> read_slots("TfEmbedReadSlots",
                                      {"table", "keys", "owners", "slots", "exists"});
const Kernels<RowsOfOtherRuleOp> rows_of_other_rule("TfEmbedRowsOfOtherRule", {"table", "rows"});
const Kernels<LargestSlotOp> largest_slot("TfEmbedLargestSlot", {"table", "largest"});

}  // namespace
}  // namespace tf_embed
