# SPDX-License-Identifier: Apache-2.0
"""Libraries whose sources are compiled in groups."""

load("//bazel:copts.bzl", "TF_EMBED_COPTS")

def grouped_library(name, groups, hdrs, deps):
    """Makes a library of a folder's *.cc files, compiled in groups.

    TensorFlow's headers take ten times as long to compile as a file of ours, and each group compiles
    them once. Names in unnamed namespaces must differ within the folder.

    Args:
      name: Its name.
      groups: How many groups to make.
      hdrs: Its headers.
      deps: What it uses.
    """
    sources = native.glob(["*.cc"])
    files = ["%s_%d.cc" % (name, i) for i in range(groups)]
    for i in range(groups):
        native.genrule(
            name = files[i][:-len(".cc")],
            srcs = sources[i::groups],
            outs = [files[i]],
            cmd = "for source in $(SRCS); do echo \"#include \\\"$$source\\\"\"; done > $@",
        )
    native.cc_library(
        name = name,
        srcs = files,
        hdrs = hdrs,
        copts = TF_EMBED_COPTS,
        textual_hdrs = sources,
        visibility = ["//:__pkg__"],
        deps = deps,
        alwayslink = True,
    )
