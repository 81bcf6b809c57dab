#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nvcc.sh NVCC SOURCE OBJECT HEADERS UNUSED OPTION...
#
# Compiles SOURCE, and writes to UNUSED those of the paths in HEADERS that it does not include, by
# which Bazel knows what else would give the same object. HEADERS is sorted as in LC_ALL=C. With -I.
# nvcc names included files with a leading ./, which paths of Bazel do not have.
set -euo pipefail
export LC_ALL=C

nvcc=$1 source=$2 object=$3 headers=$4 unused=$5
"$nvcc" "${@:6}" -I. -MMD -MF "$object.d" -c "$source" -o "$object"
tr -s ' \\' '\n' <"$object.d" | sed 's:^\./::' | sort -u | comm -13 - "$headers" >"$unused"
rm "$object.d"
