"""Reads every import and every include, and fails where one points upward.

The order of the layers is the architecture: what stands lower knows nothing of what stands above.
A new module needs a place in PYTHON_LAYERS before this test passes.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Lowest first. A module may import from lower layers and from its own package only.
PYTHON_LAYERS = (
    {"_version"},
    {"_library"},
    {"ops", "policy_ops", "row_file_ops"},
    {"slot_ops"},
    {"lookup_gradient"},
    {"pooled_gradient", "table_batch"},
    {"arguments", "table_meta", "math", "data_flow", "model_mode"},
    {"definitions"},
    {"initializers", "policies", "quantized_rows", "storage", "tbe_types"},
    {"restrict_policies", "creators", "devices"},
    {"distributed"},
    {"table_options"},
    {"table"},
    {"snapshot", "stored_rows", "shard", "slot_variable"},
    {"anchor"},
    {"batch_anchor"},
    {"tfra_files"},
    {"file_methods", "policy_methods", "training_methods"},
    {"variable"},
    {"row_array", "variable_store"},
    {"lookup"},
    {"shadow_variable", "sparse_lookup"},
    {"shadow_ops"},
    {"ragged_embedding_ops"},
    {"optimizers"},
    {"layers"},
    {"keras"},
    {"checkpoint", "export"},
    {"__init__"},
)
PYTHON_LEVEL = {name: level for level, names in enumerate(PYTHON_LAYERS) for name in names}

PRIVATE_PYTHON = ("tensorflow.python", "keras.src")

# What a room of cc/ may include besides the standard library. No other may include cc/ops.
CC_ROOMS = {
    "core": ("cc/core/",),
    "cuda": ("cc/core/", "cc/cuda/", "cub/", "cuda", "thrust/"),
    "ops": ("absl/", "cc/ops/", "tensorflow/"),
    "kernels": ("absl/", "cc/core/", "cc/cuda/", "cc/kernels/", "tensorflow/", "tsl/", "xla/"),
}
STANDARD_HEADER = re.compile(r"[a-z_0-9]+")
SYSTEM_HEADERS = {"fcntl.h", "immintrin.h", "sched.h", "stddef.h", "stdint.h", "unistd.h"}
SYSTEM_FOLDERS = ("sys/",)

SOURCE_FOLDERS = ("bazel", "benchmarks", "cc", "examples", "tests", "tf_embed")
SOURCE_SUFFIXES = {".bzl", ".cc", ".cu", ".h", ".py"}
MOST_LINES = 600


def top_name(module: str) -> str:
    """The module's name in PYTHON_LAYERS: "tf_embed.layers.pooled" is in "layers"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names of all that a module imports, also within functions."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            if base == "tf_embed":  # from tf_embed import ops
                yield from (f"tf_embed.{alias.name}" for alias in node.names)
            else:
                yield from (f"{base}.{alias.name}" for alias in node.names)


def python_violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What is wrong with one module's imports, a sentence each."""
    tree = ast.parse(source)
    own = top_name(module)
    if own not in PYTHON_LEVEL:
        return [f"{module} has no place in PYTHON_LAYERS"]
    found = []
    for name in imported_modules(tree, module, is_package):
        if name.startswith(PRIVATE_PYTHON):
            found.append(f"{module} imports the private {name}")
        if name.split(".")[0] != "tf_embed":
            continue
        # A name that is no module is defined in tf_embed/__init__.py, the highest layer.
        other = top_name(name) if top_name(name) in PYTHON_LEVEL else "__init__"
        if own != other and PYTHON_LEVEL[other] >= PYTHON_LEVEL[own]:
            found.append(f"{module} imports {name}, which does not stand lower")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.match(r"(tensorflow\.python|keras\.src)(\.\w+)*$", node.value):
                found.append(f"{module} names the private {node.value}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"tf.python", "keras.src"}:
            found.append(f"{module} uses the private {ast.unparse(node)}")
    return found


def cc_violations(source: str, room: str, path: str) -> list[str]:
    """What is wrong with one file's includes, a sentence each."""
    found = []
    for opening, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)', source, re.MULTILINE):
        allowed = name.startswith(CC_ROOMS[room])
        if opening == "<":
            allowed |= bool(STANDARD_HEADER.fullmatch(name)) or name in SYSTEM_HEADERS
            allowed |= name.startswith(SYSTEM_FOLDERS)
        if not allowed:
            found.append(f"{path} includes {name}, which cc/{room} may not know")
    return found


class TreeTest(absltest.TestCase):
    """The tree as it is."""

    def test_python_imports_point_downward(self):
        found, modules = [], sorted((ROOT / "tf_embed").rglob("*.py"))
        for path in modules:
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            found += python_violations(path.read_text(), module, is_package)
        self.assertNotEmpty(modules)
        self.assertEmpty(found, "\n".join(found))

    def test_cc_includes_stay_within_their_room(self):
        found, files = [], []
        for room in CC_ROOMS:
            for path in sorted((ROOT / "cc" / room).glob("**/*")):
                if path.suffix in {".cc", ".cu", ".h"}:
                    files.append(path)
                    name = str(path.relative_to(ROOT))
                    found += cc_violations(path.read_text(), room, name)
        self.assertNotEmpty(files)
        self.assertEmpty(found, "\n".join(found))

    def test_cc_has_only_known_rooms(self):
        rooms = {path.name for path in (ROOT / "cc").iterdir() if path.is_dir()}
        self.assertContainsSubset(rooms, set(CC_ROOMS))

    def test_no_file_is_longer_than_600_lines(self):
        long = []
        for folder in SOURCE_FOLDERS:
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in SOURCE_SUFFIXES:
                    lines = len(path.read_text().splitlines())
                    if lines > MOST_LINES:
                        long.append(f"{path.relative_to(ROOT)} has {lines} lines")
        self.assertEmpty(long, "\n".join(long))


class PlantedTest(parameterized.TestCase):
    """The checks can fail: each finds what is planted, and lets the good pass."""

    @parameterized.parameters(
        ("from tf_embed.layers import DynamicEmbedding", "tf_embed.optimizers.wrapper"),
        ("from tf_embed import layers", "tf_embed.optimizers"),
        ("import tf_embed.variable", "tf_embed.table"),
        ("import tf_embed", "tf_embed.table"),
        ("from tf_embed import Variable", "tf_embed.table"),
        ("from tf_embed import table", "tf_embed.distributed.sharding"),
        ("from tf_embed.storage import Disk", "tf_embed.policies"),
        ("from .variable import Variable", "tf_embed.table"),
        ("from ..layers import pooled", "tf_embed.optimizers.wrapper"),
        ("from . import Variable", "tf_embed.table"),
        ("def f():\n  from tf_embed import export", "tf_embed.layers.dynamic_embedding"),
        ("from tensorflow.python.framework import ops", "tf_embed.ops"),
        ("from tensorflow import python", "tf_embed.ops"),
        ("import keras.src.backend", "tf_embed.ops"),
        ("from keras import src", "tf_embed.ops"),
        ("import importlib\nimportlib.import_module('keras.src.backend')", "tf_embed.ops"),
        ("import keras\nkeras.src.backend", "tf_embed.ops"),
        ("x = 1", "tf_embed.helper"),
    )
    def test_a_bad_module_is_found(self, source, module):
        self.assertLen(python_violations(source, module), 1)

    @parameterized.parameters(
        ("import keras\nimport tensorflow as tf\nfrom tf_embed import ops", "tf_embed.table"),
        ("from tf_embed.optimizers import rules", "tf_embed.layers.dynamic_embedding"),
        ("from tf_embed.layers.bag import Bag", "tf_embed.layers.dynamic_embedding"),
        ("from .bag import Bag", "tf_embed.layers.dynamic_embedding"),
        ("from tf_embed import _library\n'Not tensorflow.python.'", "tf_embed.ops"),
    )
    def test_a_good_module_passes(self, source, module):
        self.assertEmpty(python_violations(source, module))

    def test_the_package_may_import_everything(self):
        source = "from tf_embed.layers import DynamicEmbedding\nfrom . import export"
        self.assertEmpty(python_violations(source, "tf_embed", is_package=True))

    @parameterized.parameters(
        ("core", '#include "tensorflow/core/framework/op.h"'),
        ("core", "#include <cuda_runtime.h>"),
        ("core", '#include "absl/status/status.h"'),
        ("core", '#  include "cc/kernels/table_op.h"'),
        ("cuda", '#include "cc/kernels/table_op.h"'),
        ("cuda", '#include "tensorflow/core/framework/op.h"'),
        ("ops", '#include "cc/core/table.h"'),
        ("kernels", '#include "cc/ops/table_ops.h"'),
        ("kernels", "#include <cc/ops/table_ops.h>"),
    )
    def test_a_bad_include_is_found(self, room, source):
        self.assertLen(cc_violations(source, room, "planted.cc"), 1)

    @parameterized.parameters(
        ("core", '#include <vector>\n#include <sys/mman.h>\n#include "cc/core/table.h"'),
        ("cuda", '#include <cub/cub.cuh>\n#include "cc/core/row_layout.h"'),
        ("ops", '#include "tensorflow/core/framework/op.h"'),
        ("kernels", '#include "cc/core/table.h"\n#include "tensorflow/core/framework/op.h"'),
    )
    def test_a_good_include_passes(self, room, source):
        self.assertEmpty(cc_violations(source, room, "good.cc"))


if __name__ == "__main__":
    absltest.main()
