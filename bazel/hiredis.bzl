# SPDX-License-Identifier: Apache-2.0
"""Links the hiredis that configure.sh found."""

load("@hiredis//:found.bzl", "HAS_HIREDIS")

def hiredis_library(name, srcs, copts, visibility):
    """A shared library of its own that has hiredis within, or no file where there is no hiredis.

    Args:
      name: Name of the library.
      srcs: Its sources.
      copts: Compiler options.
      visibility: Who may see it.
    """
    if not HAS_HIREDIS:
        native.filegroup(name = name, srcs = [], visibility = visibility)
        return
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = copts,
        linkopts = ["-pthread"],
        linkshared = True,
        visibility = visibility,
        deps = ["@hiredis//:hiredis"],
    )
