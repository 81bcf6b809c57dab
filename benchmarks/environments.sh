#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the environments of the benchmarks, once, and installs what is in the tree now.
#
#   benchmarks/environments.sh peers    .venv/bench216: TensorFlow and TFRA, which needs that TensorFlow
#                                       .venv/benchfbgemm: FBGEMM, and the torch that it was built for
#   benchmarks/environments.sh ours     tf_embed into .venv/bench216, and what Bazel builds for it
#
# Variables: PYTHON, a Python 3.11, for which TFRA has wheels; and those of configure.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tensorflow=2.16.2
bench=.venv/bench216
fbgemm=.venv/benchfbgemm

peers() {
  if [[ ! -e $bench/.ready ]]; then
    "${PYTHON:-python3.11}" -m venv $bench
    # TFRA imports pkg_resources, which setuptools 81 has no more.
    $bench/bin/python -m pip install -q --upgrade pip "setuptools>=77,<81" wheel
    $bench/bin/python -m pip install -q tensorflow-cpu==$tensorflow \
      tensorflow-recommenders-addons==0.8.1 matplotlib
    touch $bench/.ready
  fi
  if [[ ! -e $fbgemm/.ready ]]; then
    "${PYTHON:-python3.11}" -m venv $fbgemm
    $fbgemm/bin/python -m pip install -q --upgrade pip
    # What imports is enough: an index may have torch with CUDA only, which serves as well.
    if $fbgemm/bin/python -m pip install -q torch==2.13.0 fbgemm-gpu-cpu==1.8.0 numpy &&
      $fbgemm/bin/python -c 'import fbgemm_gpu' 2>/dev/null; then
      touch $fbgemm/.ready
    else
      echo "FBGEMM can't be installed here: its figures will be reported as not judged." >&2
    fi
  fi
}

ours() {
  # The wheel, not the tree: the library in the tree is built for another TensorFlow.
  $bench/bin/python -m pip install -q --no-build-isolation --no-deps --force-reinstall .
  local bazel=(${BAZEL:-bazel} "--bazelrc=build/tf$tensorflow.bazelrc") bin
  "${bazel[@]}" build //benchmarks/...
  bin=$("${bazel[@]}" info bazel-bin 2>/dev/null)/benchmarks
  mkdir -p build/bench
  install "$bin/host_store_benchmark" "$bin/policy_benchmark" "$bin/tiers_benchmark" "$bin/floor_ops.so" \
    build/bench/
  # A peer of tables over disk. Without it its figures are left out.
  rm -f build/bench/tiers_benchmark_rocksdb
  if [[ -e /usr/include/rocksdb/c.h ]]; then
    "${bazel[@]}" build //benchmarks:tiers_benchmark_rocksdb
    install "$bin/tiers_benchmark_rocksdb" build/bench/
  fi
}

case ${1-} in
  peers | ours) "$1" ;;
  *) echo "environments.sh: Say what: peers or ours." >&2; exit 1 ;;
esac
