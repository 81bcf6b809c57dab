// SPDX-License-Identifier: Apache-2.0
// The parts of ops that concern one table: the inputs that are read, the output that is allocated,
// and the verb. An op of one table has one part; an op of many has one for each table.
#ifndef TF_EMBED_CC_TF_TABLE_PARTS_H_
#define TF_EMBED_CC_TF_TABLE_PARTS_H_

#include <cstdint>

#include "cc/core/pooling/pooled_find.h"
#include "cc/core/rules/optimizer_rule.h"
#include "cc/tf/pooling_inputs.h"
#include "cc/tf/table_op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_embed {

// A lookup of rows, without its verb.
struct RowLookup {
  explicit RowLookup(TableResource* table) : table(table), keys(table->allocator()) {}

  // Reads inputs 1 to 3: keys, owners, defaults. Allocates the output of the table's number.
  absl::Status Read(const TableInputs& inputs, KeyUse use);

  TableResource* const table;
  KeysInput keys;
  DefaultRows defaults;
  tensorflow::Tensor* values = nullptr;
};

// A pooled lookup.
class PooledLookup {
 public:
  // The attributes outlive this object.
  PooledLookup(TableResource* table, const PoolingAttributes& attributes)
      : table_(table),
        attributes_(attributes),
        keys_(table->allocator()),
        bags_(table->allocator()) {}

  // Reads inputs 1 to 3, and those of the table's bags and weights. Allocates the output of the
  // table's number; and output `found`, the row of each key, if the graph uses it. -1: none.
  absl::Status Read(const TableInputs& inputs, const tensorflow::OpInputList& bags,
                    const tensorflow::OpInputList& weights, int found);

  absl::Status Run(const ExecContext& exec) const;

  // Whether keys, rows and weights are in the memory of a device.
  bool is_on_device() const { return keys_.batch().on_device; }
  // For a lookup in several tables at once, each of its own moment.
  const PooledFind& find() const { return find_; }

 private:
  TableResource* const table_;
  const PoolingAttributes& attributes_;
  KeysInput keys_;
  Bags bags_;
  Moment moment_;
  PooledFind find_;
};

// A step of a rule.
struct RowStep {
  struct Options {
    RuleKind rule = RuleKind::kNone;
    bool distinct = false;
    bool stochastic_rounding = false;
  };

  explicit RowStep(TableResource* table) : table(table), keys(table->allocator()) {}

  // Reads inputs 1 to 5: keys, owners, gradients, hyper, step.
  absl::Status Read(const TableInputs& inputs, const Options& options);

  absl::Status Run(const ExecContext& exec) const;

  TableResource* const table;
  KeysInput keys;
  Gradients gradients;
  Rule rule;
};

}  // namespace tf_embed

#endif  // TF_EMBED_CC_TF_TABLE_PARTS_H_
