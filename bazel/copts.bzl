# SPDX-License-Identifier: Apache-2.0
"""Compiler options of every C++ target."""

# No contraction: a row's initial value must have the same bits on every instruction set.
TF_EMBED_COPTS = [
    "-std=c++17",
    "-ffp-contract=off",
    # Without it a square root may set errno, and loops with one are not vectorized.
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
]
