#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The files that are compiled for an instruction set share no function with others: the linker would
# keep one copy, perhaps theirs, and an old machine would run it.
set -euo pipefail
for library in "$@"; do
  symbols=$(nm -C "$library")
  if grep -qE "__(asan|tsan|ubsan)" <<< "$symbols"; then
    echo "$library is instrumented, and that is compiled into functions of its own."
    continue
  fi
  grep -q " T .*Loops()" <<< "$symbols" || { echo "$library has no loops."; exit 1; }
  if grep -E " [WVu] " <<< "$symbols"; then
    echo "$library shares the above: make them TF_EMBED_INLINE."
    exit 1
  fi
done
