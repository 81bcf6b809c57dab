// SPDX-License-Identifier: Apache-2.0
// Find, FindOrInsert and Prefetch.
#include <algorithm>

#include "cc/tf/kernels.h"
#include "cc/tf/table_op.h"
#include "cc/tf/table_parts.h"

namespace tf_embed {
namespace {

namespace tf = ::tensorflow;

template <bool insert>
class FindOp : public TableOp {
 public:
  explicit FindOp(tf::OpKernelConstruction* construction) : TableOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("training", &training_));
  }

 private:
  absl::Status Run(tf::OpKernelContext* context, TableResource* table) override {
    RowLookup lookup(table);
    KeysInput& keys = lookup.keys;
    tf::Tensor* exists;
    TF_RETURN_IF_ERROR(lookup.Read(context, insert ? KeyUse::kWrite : KeyUse::kRead));
    if (insert) TF_RETURN_IF_ERROR(keys.ReadScores(context, *table, 4));
    TF_RETURN_IF_ERROR(context->allocate_output(1, keys.shape(), &exists));
    const ExecContext exec = ExecContextOf(context, training_);
    bool* const flags = exists->flat<bool>().data();
    const auto find = [&](const DefaultRows& defaults, void* rows) {
      return ToTensorFlow(insert ? table->FindOrInsert(exec, keys.batch(), defaults, rows, flags)
                                 : table->Find(exec, keys.batch(), defaults, rows, flags));
    };
    const DefaultRows& defaults = lookup.defaults;
    tf::Tensor* const values = lookup.values;
    if (table->value_strings() == nullptr) return find(defaults, values->data());

    // Rows of strings are stored as rows of dictionary numbers.
    const tf::Tensor& strings = context->input(3);
    Buffer<int64_t> numbers(table->allocator());
    Buffer<int64_t> default_numbers(table->allocator());
    const size_t num_values = static_cast<size_t>(values->NumElements());
    TF_RETURN_IF_ERROR(ToTensorFlow(numbers.Resize(num_values)));
    DefaultRows default_rows;
    if (insert && strings.NumElements() > 0) {
      TF_RETURN_IF_ERROR(ToTensorFlow(
          keys.string_scope()->InternValues(exec, StringsOf(strings), &default_numbers)));
      default_rows = {defaults.kind, default_numbers.data()};
    }
    TF_RETURN_IF_ERROR(find(default_rows, numbers.data()));
    WriteStrings(exec, *table->value_strings(), numbers.data(), num_values, 0, values);
    // A lookup adds no strings to the dictionary, so the defaults of absent keys have no numbers.
    if (!insert) WriteDefaults(defaults, flags, table->dim(), values);
    return absl::OkStatus();
  }

  // Writes the defaults, if any, to the rows of absent keys.
  static void WriteDefaults(const DefaultRows& defaults, const bool* exists, size_t dim,
                            tf::Tensor* values) {
    if (defaults.kind == DefaultRows::Kind::kInitializer) return;
    tf::tstring* const out = values->flat<tf::tstring>().data();
    const size_t num_keys = static_cast<size_t>(values->NumElements()) / dim;
    for (size_t i = 0; i < num_keys; ++i) {
      if (exists[i]) continue;
      const char* const row = defaults.Row(i, dim * sizeof(tf::tstring));
      std::copy_n(reinterpret_cast<const tf::tstring*>(row), dim, out + i * dim);
    }
  }

  bool training_ = false;
};

const Kernels<FindOp<false>> find("TfEmbedFind", {"table", "owners", "tokens"},
                                  {"keys", "defaults", "values", "exists"});
const Kernels<FindOp<true>> find_or_insert("TfEmbedFindOrInsert", {"table", "owners"},
                                           {"keys", "defaults", "scores", "values", "exists"});

absl::Status RunPrefetch(tf::OpKernelContext* context, TableResource* table) {
  KeysInput keys(table->allocator());
  TF_RETURN_IF_ERROR(KeysInput::Read(context, table, KeyUse::kRead, &keys));
  return ToTensorFlow(table->Prefetch(ExecContextOf(context), keys.batch()));
}

const Kernels<TableFunction<RunPrefetch>> prefetch("TfEmbedPrefetch");

}  // namespace

}  // namespace tf_embed
