// SPDX-License-Identifier: Apache-2.0
// Reads of tables that tf.data may save the place of an iterator over, as TensorFlow's own lookup
// tables allow. They are stateful so that no optimizer folds or merges them, not because an
// iterator would have a state of theirs to save.
#include "tensorflow/core/framework/dataset_stateful_op_allowlist.h"

namespace tf_embed {
namespace {

bool AllowInDatasetFunctions() {
  for (const char* op : {"TfEmbedCheckBounds", "TfEmbedFind", "TfEmbedFindPooled",
                         "TfEmbedFindPooledTables", "TfEmbedPrefetch", "TfEmbedSize"}) {
    tensorflow::data::AllowlistedStatefulOpRegistry::Global()->Add(op).IgnoreError();
  }
  return true;
}

const bool allowed = AllowInDatasetFunctions();

}  // namespace
}  // namespace tf_embed
