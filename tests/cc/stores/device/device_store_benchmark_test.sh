#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A line for each operation and part of a step; none of them zero, and new keys do come.
set -e
"$1" --keys=500 --capacity=2000 --dims=8,32 --loads=0.5,1 --rounds=1 --ids=100 > "$TEST_TMPDIR/out"
cat "$TEST_TMPDIR/out"
[ "$(grep -c '^| tf_embed' "$TEST_TMPDIR/out")" -eq 42 ]
[ "$(grep -cE '^\| (static )?(forward|backward|step|evaluate) ' "$TEST_TMPDIR/out")" -eq 7 ]
grep -qE '^step / static array.s: [0-9]+\.[0-9]+$' "$TEST_TMPDIR/out"
"$1" --only=hkv --keys=500 --capacity=2000 --dims=8 --loads=1 --rounds=1 --max_row_bytes=0 \
    > "$TEST_TMPDIR/pinned"
[ "$(grep -c '^| tf_embed' "$TEST_TMPDIR/pinned")" -eq 11 ]
! grep -qiE 'nan|inf|refused|less full' "$TEST_TMPDIR/out"
