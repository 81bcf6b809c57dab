# SPDX-License-Identifier: Apache-2.0
"""Sources that are compiled in groups."""

def grouped(name, groups):
    """Makes files that each include some of a folder's *.cc.

    TensorFlow's headers take ten times as long to compile as a file of ours, and each group
    compiles them once. Names in unnamed namespaces must differ within the folder.

    Args:
      name: Of the files: NAME_0.cc, NAME_1.cc, ...
      groups: How many files to make.

    Returns:
      Arguments of cc_library: the files, and what they include.
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
    return {"srcs": files, "textual_hdrs": sources}
