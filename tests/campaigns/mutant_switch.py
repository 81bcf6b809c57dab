# SPDX-License-Identifier: Apache-2.0
"""Mutants of Python that are in one copy of the sources, which the environment chooses among.

The campaign of mutants copies this module into the package and writes `a < b` as
`a < b if plain(7) else a <= b`. `TF_EMBED_MUTANT=7` makes the change of number 7 and no other.
`TF_EMBED_MUTANTS_REACHED` is a file with a byte for each number, which becomes 1 if the place is
evaluated. mutant_switch.h does the same for C++.
"""

from __future__ import annotations

import mmap
import os

import tensorflow as tf

_chosen = int(os.environ.get("TF_EMBED_MUTANT", "0"))
_file = os.environ.get("TF_EMBED_MUTANTS_REACHED")
# A map of the file, so that a process that is killed leaves its marks.
_reached: mmap.mmap | bytearray = bytearray()
if _file is not None:
    with open(_file, "r+b") as _opened:
        _reached = mmap.mmap(_opened.fileno(), 0)


@tf.autograph.experimental.do_not_convert
def plain(number: int) -> bool:
    """Whether the code stays as it is at a place.

    Args:
        number: Number of the mutant there, from 1 on.
    """
    if number < len(_reached):
        _reached[number] = 1
    return number != _chosen
