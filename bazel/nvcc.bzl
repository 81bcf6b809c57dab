# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA with the nvcc that configure.sh found."""

load("@cuda//:nvcc.bzl", "NVCC_VERSION")

def _nvcc_object(ctx):
    headers = depset(transitive = [
        dep[CcInfo].compilation_context.headers
        for dep in ctx.attr.deps
    ])
    object = ctx.actions.declare_file(ctx.label.name + ".pic.o")
    listed = ctx.actions.declare_file(ctx.label.name + ".headers")
    unused = ctx.actions.declare_file(ctx.label.name + ".unused")
    paths = sorted([header.path for header in headers.to_list()])
    ctx.actions.write(listed, "".join([path + "\n" for path in paths]))
    ctx.actions.run(
        executable = ctx.executable._compile,
        arguments = [
            file.path
            for file in [ctx.executable._nvcc, ctx.file.src, object, listed, unused]
        ] + ["--options-file=" + file.path for file in ctx.files.options],
        inputs = depset([ctx.file.src, listed] + ctx.files.options, transitive = [headers]),
        outputs = [object, unused],
        tools = [ctx.executable._nvcc],
        unused_inputs_list = unused,
        use_default_shell_env = True,
        mnemonic = "Nvcc",
        progress_message = "Compiling " + ctx.file.src.short_path + " with nvcc",
    )
    return [DefaultInfo(files = depset([object]))]

def _program(label):
    return attr.label(
        default = label,
        allow_single_file = True,
        cfg = "exec",
        executable = True,
    )

_nvcc_object_rule = rule(
    implementation = _nvcc_object,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "options": attr.label_list(allow_files = True),
        "src": attr.label(allow_single_file = [".cu"]),
        "_compile": _program("//bazel:nvcc.sh"),
        "_nvcc": _program("@cuda//:nvcc"),
    },
)

def nvcc_library(name, src, options, deps, otherwise, visibility):
    """A cc_library of one file that nvcc compiles, or another one where there is no nvcc.

    What asks for it need not depend on it: it is linked whole.

    Args:
      name: Name of the library.
      src: The .cu file. It sees the headers of `deps`, and nothing else of the tree.
      options: Files with options of nvcc.
      deps: Libraries.
      otherwise: The library that this is an alias of where there is no nvcc.
      visibility: Who may see it.
    """
    if not NVCC_VERSION:
        native.alias(name = name, actual = otherwise, visibility = visibility)
        return
    _nvcc_object_rule(name = name + "_object", src = src, options = options, deps = deps)
    native.cc_library(
        name = name,
        srcs = [name + "_object"],
        deps = deps + ["@cuda//:cudart"],
        alwayslink = True,
        visibility = visibility,
    )
