// SPDX-License-Identifier: Apache-2.0
// The instruction sets that inner loops are compiled for. One library serves all machines: which
// loops run is decided when a table is made.
#ifndef TF_EMBED_CC_CORE_BASE_INSTRUCTION_SET_H_
#define TF_EMBED_CC_CORE_BASE_INSTRUCTION_SET_H_

#include <cstdint>
#include <vector>

namespace tf_embed {

// Each set contains the sets before it. kPlain is the compiler's baseline: SSE2 on x86-64, NEON on
// 64-bit ARM.
enum class InstructionSet : uint8_t { kPlain, kAvx2, kAvx512 };

// The best set of this machine.
InstructionSet BestInstructionSet();

// All sets of this machine, in order.
std::vector<InstructionSet> InstructionSetsHere();

const char* NameOf(InstructionSet set);

}  // namespace tf_embed

#endif  // TF_EMBED_CC_CORE_BASE_INSTRUCTION_SET_H_
