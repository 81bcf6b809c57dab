// SPDX-License-Identifier: Apache-2.0
#include "cc/core/loops/table_loops_inl.h"
#include "cc/core/loops/table_loops_sets.h"

namespace tf_embed {
namespace {

struct PlainSet {
  static constexpr size_t kPackBytes = 16;
};

}  // namespace

const TableLoops& PlainLoops() { return Loops<PlainSet>::kLoops; }

}  // namespace tf_embed
