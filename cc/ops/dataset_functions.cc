// SPDX-License-Identifier: Apache-2.0
// Reads of tables that tf.data may save the position of an iterator over, as TensorFlow's lookup
// tables allow. They are stateful so that no optimizer folds or merges them, not because an
// iterator would have to save their state.
#include "tensorflow/core/framework/dataset_stateful_op_allowlist.h"

namespace tf_embed {
namespace {

using tensorflow::data::AllowlistedStatefulOpRegistry;

// The registry of TensorFlow's library; null if a later version has none by this name. The header's
// Global() is inline, so it would give this library a separate registry, and which of the two it
// means depends on how Python has loaded TensorFlow. tests/python/variable/lookups_test.py fails if
// the name changes.
extern "C" __attribute__((weak)) AllowlistedStatefulOpRegistry* registry_of_tensorflow asm(
    "_ZZN10tensorflow4data29AllowlistedStatefulOpRegistry6GlobalEvE3reg");

bool AllowInDatasetFunctions() {
  if (&registry_of_tensorflow == nullptr || registry_of_tensorflow == nullptr) return false;
  for (const char* op : {"TfEmbedCheckBounds", "TfEmbedFind", "TfEmbedFindPooled",
                         "TfEmbedFindPooledTables", "TfEmbedPrefetch", "TfEmbedSize"}) {
    // Fails for an op that is registered already.
    registry_of_tensorflow->Add(op).IgnoreError();
  }
  return true;
}

const bool allowed = AllowInDatasetFunctions();

}  // namespace
}  // namespace tf_embed
