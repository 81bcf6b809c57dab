// SPDX-License-Identifier: Apache-2.0
#include "cc/core/base/instruction_set.h"

namespace tf_embed {
namespace {

InstructionSet Detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2")) {
    return InstructionSet::kPlain;
  }
  for (const bool supported :
       {__builtin_cpu_supports("avx512f") != 0, __builtin_cpu_supports("avx512dq") != 0,
        __builtin_cpu_supports("avx512bw") != 0, __builtin_cpu_supports("avx512vl") != 0}) {
    if (!supported) return InstructionSet::kAvx2;
  }
  return InstructionSet::kAvx512;
#else
  return InstructionSet::kPlain;
#endif
}

}  // namespace

InstructionSet BestInstructionSet() {
  static const InstructionSet best = Detect();
  return best;
}

std::vector<InstructionSet> InstructionSetsHere() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(BestInstructionSet()); ++set) {
    sets.push_back(static_cast<InstructionSet>(set));
  }
  return sets;
}

const char* NameOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kAvx2:
      return "AVX2";
    case InstructionSet::kAvx512:
      return "AVX-512";
    case InstructionSet::kPlain:
      break;
  }
  return "plain";
}

}  // namespace tf_embed
