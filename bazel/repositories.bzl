# SPDX-License-Identifier: Apache-2.0
"""TensorFlow, CUDA and hiredis as they are installed, and GoogleTest's sources as the system has them."""

_TENSORFLOW_BUILD = """
# TensorFlow {version}
package(default_visibility = ["//visibility:public"])

cc_import(
    name = "framework",
    shared_library = "libtensorflow_framework.so.2",
)

# The defines are those of tf.sysconfig.get_compile_flags(). `includes` makes the headers system
# headers, so that the compiler keeps quiet about them.
cc_library(
    name = "tensorflow",
    hdrs = glob(["include/**"]),
    defines = [
        "_GLIBCXX_USE_CXX11_ABI=1",
        "EIGEN_MAX_ALIGN_BYTES=64",
    ],
    includes = ["include"],
    deps = [":framework"],
)
"""

def _tensorflow_repository(repository_ctx):
    # The version is not needed to find the files: it makes Bazel look again after an upgrade.
    folder = repository_ctx.os.environ.get("TF_EMBED_TENSORFLOW_DIR")
    version = repository_ctx.os.environ.get("TF_EMBED_TENSORFLOW_VERSION")
    if not folder or not version:
        fail("TensorFlow's place is not known: run ./configure.sh first.")
    for name in ["include", "libtensorflow_framework.so.2"]:
        repository_ctx.symlink(folder + "/" + name, name)
    repository_ctx.file("BUILD", _TENSORFLOW_BUILD.format(version = version))

tensorflow_repository = repository_rule(
    implementation = _tensorflow_repository,
    environ = [
        "TF_EMBED_TENSORFLOW_DIR",
        "TF_EMBED_TENSORFLOW_VERSION",
    ],
    local = True,
)

_NVCC = """#!/bin/sh
# Of CUDA {version}: another one compiles anew.
exec '{nvcc}' -ccbin='{compiler}' "$@"
"""

# The runtime is linked statically, so that the library loads where no CUDA is. It hides its symbols,
# so TensorFlow's of the same names, which are of another version, do not come in their place.
_CUDA_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["nvcc"])

cc_import(
    name = "cudart_static",
    static_library = "libcudart_static.a",
)

cc_library(
    name = "cudart",
    linkopts = [
        "-ldl",
        "-lpthread",
        "-lrt",
    ],
    deps = [":cudart_static"],
)
"""

def _cuda_repository(repository_ctx):
    environ = repository_ctx.os.environ
    nvcc = environ.get("TF_EMBED_NVCC")
    version = environ.get("TF_EMBED_NVCC_VERSION") if nvcc else ""
    repository_ctx.file("nvcc.bzl", "NVCC_VERSION = \"%s\"\n" % version)
    if not nvcc:
        repository_ctx.file("BUILD", "")
        return
    script = _NVCC.format(version = version, nvcc = nvcc, compiler = environ["CC"])
    repository_ctx.file("nvcc", script, executable = True)
    repository_ctx.symlink(environ["TF_EMBED_CUDART"], "libcudart_static.a")
    repository_ctx.file("BUILD", _CUDA_BUILD)

# Empty where configure.sh found no CUDA.
cuda_repository = repository_rule(
    implementation = _cuda_repository,
    environ = [
        "CC",
        "TF_EMBED_CUDART",
        "TF_EMBED_NVCC",
        "TF_EMBED_NVCC_VERSION",
    ],
    local = True,
)

# Linked statically, so that the library that has it needs no package where it runs.
_HIREDIS_BUILD = """
cc_import(
    name = "hiredis_static",
    static_library = "libhiredis.a",
)

cc_library(
    name = "hiredis",
    hdrs = glob(["include/hiredis/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
    deps = [":hiredis_static"],
)
"""

def _hiredis_repository(repository_ctx):
    headers = repository_ctx.os.environ.get("TF_EMBED_HIREDIS_HEADERS")
    repository_ctx.file("found.bzl", "HAS_HIREDIS = %s\n" % bool(headers))
    if not headers:
        repository_ctx.file("BUILD", "")
        return
    repository_ctx.symlink(headers, "include/hiredis")
    repository_ctx.symlink(repository_ctx.os.environ["TF_EMBED_HIREDIS"], "libhiredis.a")
    repository_ctx.file("BUILD", _HIREDIS_BUILD)

# Empty where configure.sh found no hiredis.
hiredis_repository = repository_rule(
    implementation = _hiredis_repository,
    environ = [
        "TF_EMBED_HIREDIS",
        "TF_EMBED_HIREDIS_HEADERS",
    ],
    local = True,
)

_GOOGLETEST_BUILD = """
cc_library(
    name = "gtest_main",
    testonly = True,
    srcs = [
        "googletest/src/gtest-all.cc",
        "googletest/src/gtest_main.cc",
    ],
    hdrs = glob(["googletest/include/**/*.h"]),
    copts = [
        "-std=c++17",
        "-O1",
    ],
    includes = [
        "googletest",
        "googletest/include",
    ],
    linkopts = ["-pthread"],
    textual_hdrs = glob(
        ["googletest/src/*"],
        exclude = ["googletest/src/gtest_main.cc"],
    ),
    visibility = ["//visibility:public"],
)
"""

def _googletest_repository(repository_ctx):
    source = repository_ctx.os.environ.get("GTEST_SOURCE", "/usr/src/googletest")
    if not repository_ctx.path(source + "/googletest/src").exists:
        fail(("There is no GoogleTest at %s: install Debian's libgtest-dev, or set GTEST_SOURCE " +
              "to a source tree of GoogleTest.") % source)
    repository_ctx.symlink(source + "/googletest", "googletest")
    repository_ctx.file("BUILD", _GOOGLETEST_BUILD)

googletest_repository = repository_rule(
    implementation = _googletest_repository,
    environ = ["GTEST_SOURCE"],
    local = True,
)
