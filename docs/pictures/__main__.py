# SPDX-License-Identifier: Apache-2.0
"""Writes all pictures to docs/images/, or with names only these."""

from __future__ import annotations

import sys

from pictures.drawings import DRAWINGS, IMAGES

for name in sys.argv[1:] or DRAWINGS:
    (IMAGES / name).write_text(DRAWINGS[name]().svg())
    print(IMAGES / name)
