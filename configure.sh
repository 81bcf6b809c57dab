#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Finds Python with TensorFlow, Bazel and a C++ compiler, and writes what the build must know to
# .bazelrc.generated. Asks nothing; what is wrong or missing is said in one sentence.
#
#   ./configure.sh [--cpu | --cuda] [--output=FILE]
#
# --cuda, or NVCC: for GPUs too, or not at all. --cpu: without them. With none of these: for GPUs
# where there is an nvcc that serves.
#
# Variables: PYTHON  the Python whose TensorFlow to build for (else: the active virtual
#                    environment's, else python3)
#            BAZEL   Bazel or Bazelisk (else: bazel, else bazelisk)
#            CC      the C++ compiler (else: gcc, else clang)
#            NVCC    CUDA's compiler, 12 or 13 (else: nvcc, else /usr/local/cuda/bin/nvcc)
#            HIREDIS a folder with include/hiredis and lib/libhiredis.a, for tables in Redis; ""
#                    for none (else: /usr, if it is there)
#            TF_EMBED_CUDA   1: as --cuda; 0: as --cpu, for pip and make; an option counts first
#            TF_EMBED_CACHE  folder of the build cache (else: tf_embed in the user's cache folder)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output=$root/.bazelrc.generated

die() {
  echo "configure.sh: $*" >&2
  exit 1
}

# found NAME...: the full path of the first NAME that exists.
found() {
  local name
  for name in "$@"; do
    [[ -n $name ]] && command -v "$name" && return
  done
  return 1
}

case ${TF_EMBED_CUDA-} in
  0) cuda=no ;;
  1) cuda=yes ;;
  "") cuda=${NVCC:+yes} ;;
  *) die "TF_EMBED_CUDA must be 0 or 1. Received: $TF_EMBED_CUDA" ;;
esac
for option in "$@"; do
  case $option in
    --cpu) cuda=no ;;
    --cuda) cuda=yes ;;
    --output=*) output=${option#--output=} ;;
    *) die "Unknown option $option: use --cpu, --cuda or --output=FILE." ;;
  esac
done

# Python and its TensorFlow ------------------------------------------------------------------------

python=$(found "${PYTHON:-${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}}" ${PYTHON:-python3}) ||
  die "There is no Python at ${PYTHON:-python3}: set PYTHON to a Python 3.10 or newer that has TensorFlow."

# Prints the version and the folder. TensorFlow is not imported: that takes seconds.
tensorflow=$("$python" -c '
import importlib.metadata, importlib.util, os, sys

def stop(sentence):
    sys.exit(f"configure.sh: {sentence}")

if sys.version_info < (3, 10):
    stop(f"{sys.executable} is Python {sys.version.split()[0]}: set PYTHON to a Python 3.10 or newer.")
spec = importlib.util.find_spec("tensorflow")
names = importlib.metadata.packages_distributions().get("tensorflow")
if spec is None or not names:
    stop(f"{sys.executable} has no TensorFlow: install tensorflow-cpu or tensorflow there, "
         "or set PYTHON to a Python that has it.")
version = importlib.metadata.version(names[0]).split("+")[0]
folder = os.path.dirname(spec.origin)
if tuple(int(part) for part in version.split(".")[:2]) < (2, 16):
    stop(f"TensorFlow {version} in {folder} is too old: install TensorFlow 2.16.2 or newer.")
for name in ("include", "libtensorflow_framework.so.2"):
    if not os.path.exists(os.path.join(folder, name)):
        stop(f"TensorFlow {version} in {folder} has no {name}: install the tensorflow-cpu or tensorflow wheel.")
print(version, folder)
') || exit 1
tensorflow_version=${tensorflow%% *}
tensorflow_dir=${tensorflow#* }

# Compiler -----------------------------------------------------------------------------------------

compiler=$(found "${CC:-gcc}" ${CC:-clang}) ||
  die "There is no C++ compiler${CC:+ at $CC}: install g++ 9 or newer, or set CC."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
printf '#include <optional>\n#include <string_view>\nint main() { return std::optional<std::string_view>() ? 1 : 0; }\n' \
  >"$scratch/try.cc"
"$compiler" -std=c++17 -o "$scratch/try" "$scratch/try.cc" -lstdc++ 2>/dev/null ||
  die "$compiler cannot build a C++17 program: install g++ 9 or newer, or set CC to a compiler that can."
aarch64=
[[ $("$compiler" -dumpmachine) != aarch64-* ]] || aarch64="build --define=TF_EMBED_MACHINE=aarch64"

# CUDA ---------------------------------------------------------------------------------------------

nvcc=
nvcc_version=
cudart=

# Finds nvcc, its version and its static library, or says in one sentence why there is none.
find_cuda() {
  nvcc=$(found "${NVCC:-nvcc}" ${NVCC:-/usr/local/cuda/bin/nvcc}) || {
    echo "There is no nvcc${NVCC:+ at $NVCC}"
    return
  }
  nvcc_version=$("$nvcc" --version 2>/dev/null | sed -n 's/.* release .*, V\([0-9.]*\).*/\1/p') || true
  case $nvcc_version in
    12.[1-9]* | 13.*) ;;  # kernels of many tables have parameters of 30 KiB, from 12.1 on
    *)
      echo "$nvcc is of CUDA ${nvcc_version:-without a version}, not of 12.1 to 13"
      return
      ;;
  esac
  printf '#include <cuda_runtime.h>\n#include <cub/version.cuh>\n' >"$scratch/try.cu"
  "$nvcc" -ccbin="$compiler" -std=c++17 -E -o "$scratch/try.ii" "$scratch/try.cu" >"$scratch/said" 2>&1 || {
    echo "$nvcc fails with $compiler ($(grep -m 1 error "$scratch/said"))"
    return
  }
  # Debian's package has its libraries among the system's, all others where nvcc looks for them.
  local folder
  while read -r folder; do
    cudart=$folder/libcudart_static.a
    [[ ! -e $cudart ]] || return 0
  done < <(
    "$nvcc" --dryrun -o try try.o 2>&1 | sed -n 's/^#\$ LIBRARIES=//p' | grep -o '"-L[^"]*"' |
      sed 's/^"-L//; s/"$//' || true
    dirname "$("$compiler" -print-file-name=libcudart_static.a)"
  )
  echo "$nvcc has no libcudart_static.a"
}

devices=CPU
if [[ $cuda != no ]]; then
  find_cuda >"$scratch/why_not"
  why_not=$(cat "$scratch/why_not")
  if [[ -z $why_not ]]; then
    devices="CPU and CUDA $nvcc_version"
  elif [[ $cuda = yes ]]; then
    die "$why_not: install the CUDA toolkit, 12 or 13, set NVCC, or build for the CPU with --cpu."
  else
    [[ $why_not = "There is no nvcc" ]] || devices="CPU ($why_not)"
    nvcc= nvcc_version= cudart=
  fi
fi

# hiredis: for tables in Redis -----------------------------------------------------------------------

# HIREDIS: a folder with include/hiredis and lib/libhiredis.a; "" for none. Else the system's.
hiredis=
hiredis_headers=
if [[ -n ${HIREDIS-/usr} ]]; then
  folder=${HIREDIS-/usr}
  for archive in "$folder/lib/libhiredis.a" "$folder"/lib/*-linux-gnu/libhiredis.a "$folder/lib64/libhiredis.a"; do
    if [[ -e $archive && -e $folder/include/hiredis/hiredis.h ]]; then
      hiredis=$archive hiredis_headers=$folder/include/hiredis
      break
    fi
  done
  [[ -n $hiredis || -z ${HIREDIS-} ]] ||
    die "There is no hiredis in $folder: HIREDIS must be a folder with include/hiredis and lib/libhiredis.a, or empty."
fi

# Bazel --------------------------------------------------------------------------------------------

bazel=$(found "${BAZEL:-bazel}" ${BAZEL:-bazelisk}) ||
  die "There is no Bazel${BAZEL:+ at $BAZEL}: install bazel-bootstrap (Debian) or Bazelisk, or set BAZEL."
bazel_version=$(cd "$root" && "$bazel" --version 2>/dev/null) ||
  die "$bazel does not run: repair it, or set BAZEL to another Bazel."
bazel_version=${bazel_version#bazel }

repository_overrides() {
  local debian=/usr/share/bazel name folder
  while read -r name folder; do
    [[ -d $folder ]] ||
      die "Debian's Bazel lacks $folder: install bazel-rules-java, bazel-rules-proto, bazel-skylib and bazel-platforms."
    echo "build --override_repository=$name=$folder"
  done <<EOF
bazel_skylib $debian/tools/skylib
platforms $debian/tools/platforms
remote_coverage_tools $root/bazel/debian/remote_coverage_tools
rules_cc $root/bazel/debian/rules_cc
rules_java $debian/rules/java
rules_proto $debian/rules/proto
EOF
}

case $bazel_version in
  no_version*) bazel_lines=$(repository_overrides) || exit 1 ;;  # Debian's: works offline.
  [4-6].*) bazel_lines= ;;
  7.*) bazel_lines="common --noenable_bzlmod" ;;
  8.*) bazel_lines="common --noenable_bzlmod --enable_workspace" ;;
  *) die "Bazel $bazel_version is none of 4 to 8, which read a WORKSPACE file: with Bazelisk, set USE_BAZEL_VERSION=7.4.1." ;;
esac

# The answer ---------------------------------------------------------------------------------------

home=~  # also where HOME is not set
cache=${TF_EMBED_CACHE:-${XDG_CACHE_HOME:-$home/.cache}/tf_embed}
mkdir -p "$cache/bazel" "$(dirname "$output")" 2>/dev/null || die "Cannot write to $cache: set TF_EMBED_CACHE."
cat >"$scratch/bazelrc" <<EOF
# Written by configure.sh.
build --disk_cache=$cache/bazel
build --repo_env=CC=$compiler
build --repo_env=TF_EMBED_TENSORFLOW_DIR=$tensorflow_dir
build --repo_env=TF_EMBED_TENSORFLOW_VERSION=$tensorflow_version
build --repo_env=TF_EMBED_NVCC=$nvcc
build --repo_env=TF_EMBED_NVCC_VERSION=$nvcc_version
build --repo_env=TF_EMBED_CUDART=$cudart
build --repo_env=TF_EMBED_HIREDIS=$hiredis
build --repo_env=TF_EMBED_HIREDIS_HEADERS=$hiredis_headers
$aarch64
$bazel_lines
EOF
cmp -s "$scratch/bazelrc" "$output" || cp "$scratch/bazelrc" "$output"
echo "TensorFlow $tensorflow_version, $("$compiler" -dumpversion | sed "s|^|$(basename "$compiler") |"), Bazel ${bazel_version/no_version/of Debian}${hiredis:+, hiredis}, $devices"
