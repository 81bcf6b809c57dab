// SPDX-License-Identifier: Apache-2.0
#include "cc/tf/table_parts.h"

#include "cc/tf/gpu_tables.h"
#include "cc/tf/op_inputs.h"
#include "cc/tf/rule_attributes.h"

namespace tf_embed {

namespace tf = ::tensorflow;

absl::Status RowLookup::Read(const TableInputs& inputs, KeyUse use) {
  tf::OpKernelContext* const context = inputs.context;
  TF_RETURN_IF_ERROR(KeysInput::Read(inputs, table, use, &keys));
  TF_RETURN_IF_ERROR(ReadDefaults(inputs, *table, keys, &defaults));
  TF_RETURN_IF_ERROR(CheckOutputType(context->expected_output_dtype(inputs.number), *table));
  return context->allocate_output(inputs.number, keys.rows_shape(), &values);
}

absl::Status PooledLookup::Read(const TableInputs& inputs, const tf::OpInputList& bags,
                                const tf::OpInputList& weights, int found) {
  tf::OpKernelContext* const context = inputs.context;
  find_.pooling = {attributes_.combiner, nullptr, attributes_.padding_key()};
  TF_RETURN_IF_ERROR(KeysInput::Read(inputs, table_, KeyUse::kRead, &keys_));
  if (inputs[1].dtype() == tf::DT_STRING && !attributes_.padding_string.empty()) {
    // Padding is compared as a string, and gets the key that no string has. So it is never looked
    // up.
    keys_.ReplaceString(inputs[1], attributes_.padding_string.front(), StringKeys::kNoKey);
  }
  tf::TensorShape shape;
  TF_RETURN_IF_ERROR(ReadDefaults(inputs, *table_, keys_, &find_.defaults));
  TF_RETURN_IF_ERROR(ReadBags(bags, keys_.shape(), &bags_, &shape));
  const tf::DataType compute = ComputeType(table_->signature().value_dtype);
  TF_RETURN_IF_ERROR(ReadWeights(weights, compute, keys_.size(), &find_.pooling.weights));
  const tf::DataType asked = context->expected_output_dtype(inputs.number);
  if (asked != compute) {
    return InvalidArgumentError("Rows of table '", table_->name(), "' are pooled in ",
                                tf::DataTypeString(compute),
                                ". Asked for: ", tf::DataTypeString(asked), ".");
  }
  tf::Tensor* pooled;
  TF_RETURN_IF_ERROR(AddAxis(table_->signature().dim, &shape));
  TF_RETURN_IF_ERROR(context->allocate_output(inputs.number, shape, &pooled));
  if (found >= 0 && context->output_required(found)) {
    tf::Tensor* rows;
    if (context->expected_output_dtype(found) != compute) {
      return InvalidArgumentError(
          "`found_dtypes` must be ", tf::DataTypeString(compute), " for table '", table_->name(),
          "'. Received: ", tf::DataTypeString(context->expected_output_dtype(found)), ".");
    }
    TF_RETURN_IF_ERROR(context->allocate_output(found, keys_.rows_shape(), &rows));
    find_.found = rows->data();
  }
  const TableKeys& batch = keys_.batch();
  moment_ = table_->clock()->Now();
  find_.keys = {batch.keys, batch.owners, batch.unsigned_keys, table_->stores(batch.on_device),
                table_->num_shards()};
  find_.bags = &bags_;
  find_.pooled = pooled->data();
  find_.stride = table_->dim();
  find_.now = &moment_;
  return absl::OkStatus();
}

absl::Status PooledLookup::Run(const ExecContext& exec) const {
  const ExecContext now = find_.Dated(exec);
  return ToTensorFlow(is_on_device() ? OnDevice(*table_)->FindPooled(now, &find_, 1)
                                     : FindPooled(now, &find_, 1));
}

absl::Status RowStep::Read(const TableInputs& inputs, const Options& options) {
  const tf::Tensor& tensor = inputs[3];
  TF_RETURN_IF_ERROR(KeysInput::Read(inputs, table, KeyUse::kWrite, &keys));
  keys.TakeAsDistinct(options.distinct);
  TF_RETURN_IF_ERROR(CheckRowsShape(tensor, "gradients", *table, keys));
  TF_RETURN_IF_ERROR(ReadRule(options.rule, table->dim(), inputs[4], &rule));
  TF_RETURN_IF_ERROR(ReadStep(inputs[5], &rule));
  rule.stochastic_rounding = options.stochastic_rounding;
  gradients = {tensor.data(), CoreType(tensor.dtype()), nullptr, nullptr};
  return absl::OkStatus();
}

absl::Status RowStep::Run(const ExecContext& exec) const {
  return ToTensorFlow(table->Apply(exec, keys.batch(), gradients, rule));
}

}  // namespace tf_embed
