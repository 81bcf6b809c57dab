// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)

#include "cc/core/loops/table_loops_inl.h"
#include "cc/core/loops/table_loops_sets.h"

namespace tf_embed {
namespace {

struct Avx2Set {
  static constexpr size_t kPackBytes = 32;
};

}  // namespace

const TableLoops& Avx2Loops() { return Loops<Avx2Set>::kLoops; }

}  // namespace tf_embed

#endif  // defined(__x86_64__)
