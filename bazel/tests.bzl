# SPDX-License-Identifier: Apache-2.0
"""C++ tests, one target a file."""

load("//bazel:copts.bzl", "TF_EMBED_COPTS")

def cc_tests(deps, shards = {}, exclude = [], data = []):
    """Makes a test of each *_test.cc of a folder.

    Args:
      deps: What they link.
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
            deps = deps,
        )

def fuzzer(name, deps, srcs = [], data = [], replay = True):
    """Makes two programs of a target of tests/cc/fuzz.

    NAME_replay_test reads the target's seeds and its corpus, and is a test like others. NAME_fuzzer
    is libFuzzer's, which needs `--config=fuzz` and clang.

    Args:
      name: Name of the target. Its file is NAME_fuzzer.cc, its corpus is in corpus/NAME.
      deps: What it links.
      srcs: Sources besides.
      data: Files that it reads.
      replay: Whether to make the test.
    """
    corpus = native.glob(["corpus/" + name + "/*"], allow_empty = True)
    srcs = srcs + [name + "_fuzzer.cc", "target.h", "tools.h"]
    if replay:
        native.cc_test(
            name = name + "_replay_test",
            timeout = "long",
            srcs = srcs + ["replay.cc"],
            args = [native.package_name() + "/corpus/" + name] if corpus else [],
            copts = TF_EMBED_COPTS,
            data = data + corpus,
            linkstatic = True,
            deps = deps,
        )
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = srcs + ["libfuzzer.cc"],
        copts = TF_EMBED_COPTS,
        data = data,
        linkopts = ["-fsanitize=fuzzer"],
        linkstatic = True,
        tags = ["manual"],
        deps = deps,
    )
