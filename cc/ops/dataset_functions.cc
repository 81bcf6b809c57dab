// SPDX-License-Identifier: Apache-2.0
// Reads of tables that tf.data may save the place of an iterator over, as TensorFlow's own lookup
// tables allow. They are stateful so that no optimizer folds or merges them, not because an
// iterator would have a state of theirs to save.
#include "tensorflow/core/framework/dataset_stateful_op_allowlist.h"

namespace tf_embed {
namespace {

using tensorflow::data::AllowlistedStatefulOpRegistry;

// The registry of TensorFlow's library; null if a later one has none by this name. The header's
// Global() is inline, so with it this library has a registry of its own, and which of the two it
// means depends on how Python has loaded TensorFlow. tests/python/variable/lookups_test.py fails if
// the name changes.
extern "C" __attribute__((weak)) AllowlistedStatefulOpRegistry* registry_of_tensorflow asm(
    "_ZZN10tensorflow4data29AllowlistedStatefulOpRegistry6GlobalEvE3reg");

bool AllowInDatasetFunctions() {
  if (&registry_of_tensorflow == nullptr || registry_of_tensorflow == nullptr) return false;
  for (const char* op : {"TfEmbedCheckBounds", "TfEmbedFind", "TfEmbedFindPooled",
                         "TfEmbedFindPooledTables", "TfEmbedPrefetch", "TfEmbedSize"}) {
    // It fails for an op that is there already.
    registry_of_tensorflow->Add(op).IgnoreError();
  }
  return true;
}

const bool allowed = AllowInDatasetFunctions();

}  // namespace
}  // namespace tf_embed
