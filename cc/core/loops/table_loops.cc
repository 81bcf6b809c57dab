// SPDX-License-Identifier: Apache-2.0
#include "cc/core/loops/table_loops.h"

#include "cc/core/loops/table_loops_sets.h"

namespace tf_embed {

const TableLoops& LoopsOf(InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return Avx512Loops();
  if (set == InstructionSet::kAvx2) return Avx2Loops();
#else
  (void)set;
#endif
  return PlainLoops();
}

}  // namespace tf_embed
