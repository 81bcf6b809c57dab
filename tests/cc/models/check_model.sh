#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Explores a model with SPIN, all of it: as it is, where nothing may go wrong, and with parts of the
# protocol taken out, where something must.
#
#     check_model.sh MODEL [good:OPTIONS | bad:OPTIONS]...
#
# OPTIONS are switches of the model, as in "bad:-DNO_CHECK -DERASING". Prints a line for each.
set -euo pipefail

die() {
  echo "$*" >&2
  exit 1
}

command -v spin >/dev/null || die "There is no spin: apt-get install spin"
model=$(realpath "$1")
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for run in "$@"; do
  wanted=${run%%:*}
  options=${run#*:}
  # shellcheck disable=SC2086  # some options, or none
  spin -a $options "$model"
  gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -o pan pan.c
  ./pan -m2000000 -n >said || die "$(cat said)"
  errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' said)
  states=$(sed -n 's/ *\([0-9]*\) states, stored.*/\1/p' said)
  echo "$(basename "$model") ${options:-as it is}: $states states, $errors errors"
  case $wanted in
    good)
      ! grep -q "max search depth too small\|out of memory\|Search not completed" said ||
        die "$(cat said)"
      if [[ $errors != 0 ]]; then
        spin -t -k ./*.trail -p $options "$model" | tail -60
        die "$(cat said)"
      fi
      ;;
    bad) [[ $errors != 0 ]] || die "Nothing goes wrong with $options." ;;
    *) die "A run is good:OPTIONS or bad:OPTIONS. Received: $run" ;;
  esac
done
