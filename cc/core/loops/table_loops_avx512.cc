// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)

#include "cc/core/loops/table_loops_inl.h"
#include "cc/core/loops/table_loops_sets.h"

namespace tf_embed {
namespace {

struct Avx512Set {
  static constexpr size_t kPackBytes = 64;
};

}  // namespace

const TableLoops& Avx512Loops() { return Loops<Avx512Set>::kLoops; }

}  // namespace tf_embed

#endif  // defined(__x86_64__)
