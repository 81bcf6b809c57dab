# SPDX-License-Identifier: Apache-2.0
"""The wings of cc/core: one library each."""

load("//bazel:copts.bzl", "TF_EMBED_COPTS")

def core_wing(name, deps = [], exclude = []):
    """A wing of the engine: a library of its folder.

    Bazel refuses an include of a wing that is not among `deps` or theirs.

    Args:
      name: Name of the wing and of its folder.
      deps: Names of the wings that it stands on.
      exclude: Sources that are built apart.
    """
    native.cc_library(
        name = name,
        srcs = native.glob(
            ["*.cc"],
            allow_empty = True,
            exclude = exclude,
        ),
        hdrs = native.glob(["*.h"]),
        copts = TF_EMBED_COPTS,
        linkopts = ["-pthread"],
        visibility = [
            "//cc:__subpackages__",
            "//tests/cc:__subpackages__",
        ],
        deps = ["//cc/core/" + dep for dep in deps],
    )
