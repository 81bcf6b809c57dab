# SPDX-License-Identifier: Apache-2.0
"""C++ tests, one target a file."""

load("//bazel:copts.bzl", "TF_EMBED_COPTS")

def cc_tests(deps, locks = [], shards = {}, exclude = [], data = []):
    """Makes a test of each *_test.cc of a folder.

    Args:
      deps: What they link.
      locks: Names of those that `--config=locks` runs too: many threads at once, and the contract.
      shards: By name, into how many parts a long one is cut; the parts run side by side.
      exclude: Files that are no such tests.
      data: Files that they read.
    """
    for source in native.glob(["*_test.cc"], exclude = exclude):
        name = source[:-len(".cc")]
        native.cc_test(
            name = name,
            timeout = "long",  # for the sanitizers on a busy machine
            srcs = [source],
            copts = TF_EMBED_COPTS,
            data = data,
            linkstatic = True,
            shard_count = shards.get(name),
            tags = ["locks"] if name in locks else [],
            deps = deps,
        )
