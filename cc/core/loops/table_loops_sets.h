// SPDX-License-Identifier: Apache-2.0
// The loops of each instruction set. A machine that lacks a set must not call into its loops.
#ifndef TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_SETS_H_
#define TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_SETS_H_

#include "cc/core/loops/table_loops.h"

namespace tf_embed {

const TableLoops& PlainLoops();
const TableLoops& Avx2Loops();
const TableLoops& Avx512Loops();

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_LOOPS_TABLE_LOOPS_SETS_H_
