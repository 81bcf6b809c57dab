# SPDX-License-Identifier: Apache-2.0
"""Reads every import and every include, and fails if any of them points upward.

The order of the rooms is the architecture: a lower room does not use the rooms above it, and
within a room no modules import each other in a circle. A new room needs a place in PYTHON_ROOMS or
CC_ROOMS before this test passes. The folders of tests have the names of the rooms.

    python tests/release/architecture_test.py --write

draws docs/images/rooms.svg.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Lowest first. A module may import from lower rooms, and from its own room without a circle.
PYTHON_ROOMS = (
    "_version",
    "launch",
    "_library",
    "callers",
    "ops",
    "validation",
    "configs",
    "table",
    "sharded",
    "saving",
    "variable",
    "optimizers",
    "layers",
    "models",
    "snapshots",
    "serving",
    "inspect",
    "callbacks",
    "distributed",
    "tbe",
    "tfra",
    "one_embedding",
    "sok",
    "static_export",
    "__init__",
)
PYTHON_LEVEL = {name: level for level, name in enumerate(PYTHON_ROOMS)}

PRIVATE_PYTHON = ("tensorflow.python", "keras.src")

# The wings of cc/core, lowest first. Bazel holds the same order, by the wings' dependencies.
CORE_WINGS = (
    *("base", "rules", "rows", "batch", "index", "policy"),
    *("loops", "files", "store", "table", "saves", "pooling", "exchange"),
)

# The files that a room of cc/ may include, in addition to the standard library. Other rooms may
# include the list of key types of cc/ops.
CC_ROOMS = {
    **{
        f"core/{wing}": tuple(f"cc/core/{lower}/" for lower in CORE_WINGS[: level + 1])
        for level, wing in enumerate(CORE_WINGS)
    },
    "tiers/memory": ("cc/core/", "cc/tiers/memory/"),
    "tiers/disk": ("cc/core/", "cc/tiers/disk/", "linux/io_uring.h"),
    "stores/host": ("cc/core/", "cc/stores/host/"),
    "stores/device": ("cc/core/", "cc/stores/device/", "cub/", "cuda", "thrust/"),
    "stores/tiered": ("cc/core/", "cc/stores/tiered/"),
    "stores/redis/client": ("cc/stores/redis/client/", "hiredis/"),
    "stores/redis": ("cc/core/", "cc/stores/host/", "cc/stores/redis/"),
    "stores": ("cc/core/", "cc/stores/", "cc/tiers/"),
    # From the core, only the lists of names.
    "ops": (
        *("absl/", "cc/core/policy/eviction_order.h", "cc/core/pooling/bags.h"),
        *("cc/core/rules/", "cc/core/store/store_stats.h", "cc/ops/", "tensorflow/"),
    ),
    "tf": (
        *("absl/", "cc/core/", "cc/ops/key_types.h", "cc/stores/", "cc/tf/"),
        *("tensorflow/", "tsl/", "xla/"),
    ),
}
PICTURE = ROOT / "docs" / "images" / "rooms.svg"
# The groups of rooms in the picture, lowest first, each with its colors.
GROUPS = (
    ("cc/core/", CORE_WINGS, "#fcefdf", "#b2601a"),
    ("cc/", [room for room in CC_ROOMS if not room.startswith("core/")], "#e3f3ec", "#1f7a5c"),
    ("tf_embed/", PYTHON_ROOMS, "#e7effa", "#1f5aa6"),
)
STANDARD_HEADER = re.compile(r"[a-z_0-9]+")
SYSTEM_HEADERS = {
    *(
        "dirent.h",
        "dlfcn.h",
        "elf.h",
        "fcntl.h",
        "immintrin.h",
        "link.h",
        "poll.h",
        "pthread.h",
        "sched.h",
        "signal.h",
        "stddef.h",
        "stdint.h",
        "unistd.h",
    ),
}
SYSTEM_FOLDERS = ("sys/",)

# Folders of tests/ with tests of Python. The folders of tests/python are rooms.
TEST_FOLDERS = (
    "campaigns/small",
    "docs",
    "integration",
    "one_embedding",
    "processes",
    "python",
    "release",
    "sok",
    "tbe",
    "tfra",
)
# Folders of tests/ with other modules: campaigns, helpers, and programs that write files.
OTHER_TEST_FOLDERS = ("campaigns", "support", "tables")
TESTS = {path.stem for path in (ROOT / "tests").rglob("*_test.py")}

SOURCE_FOLDERS = ("bazel", "benchmarks", "cc", "docs", "examples", "release", "tests", "tf_embed")
SOURCE_SUFFIXES = {".bzl", ".cc", ".cu", ".h", ".py"}
DEVICE_MAKEFILE = ROOT / "cc" / "stores" / "device" / "Makefile"
LICENCE = "SPDX-License-Identifier: Apache-2.0"
# Split a longer file if it has two purposes. Otherwise name it here with a reason.
MAX_LINES = 600
LONGER = {
    "tf_embed/tbe/layer.py": "the public methods of the layer, with their docstrings",
    "tf_embed/variable/variable.py": "the public methods of Variable, with their docstrings",
}


def top_name(module: str) -> str:
    """A module's room: "tf_embed.layers.pooled" is in "layers"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names of all imports of a module, also within functions."""
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
    """Returns the violations in a module's imports, a sentence each."""
    tree = ast.parse(source)
    own = top_name(module)
    if own not in PYTHON_LEVEL:
        return [f"{module} has no place in PYTHON_ROOMS"]
    found = []
    for name in imported_modules(tree, module, is_package):
        if name.startswith(PRIVATE_PYTHON):
            found.append(f"{module} imports the private {name}")
        if name.split(".")[0] != "tf_embed":
            continue
        # A name that is not a module is defined in tf_embed/__init__.py, the highest layer.
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


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, in order; empty if there is no circle."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return []
        for other in sorted(imports.get(module, ())):
            if found := walk(other, [*path, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(imports) if (found := walk(module, []))), [])


def source_files() -> Iterator[pathlib.Path]:
    """All code files."""
    for folder in SOURCE_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SOURCE_SUFFIXES:
                yield path


def names_licence(source: str) -> bool:
    """Whether the first line, or the second after a shebang, names the licence."""
    lines = [line for line in source.splitlines()[:2] if not line.startswith("#!")]
    return lines[:1] in ([f"# {LICENCE}"], [f"// {LICENCE}"])


def wrong_lengths(lines: dict[str, int], longer: dict[str, str]) -> list[str]:
    """Returns the files of wrong length, a sentence each.

    Args:
        lines: The number of lines of each file.
        longer: The files that may be longer than MAX_LINES, with a reason each.
    """
    found = [
        f"{path} has {count} lines: split it, or give LONGER a reason"
        for path, count in lines.items()
        if count > MAX_LINES and not longer.get(path)
    ]
    return found + [
        f"{path} has {lines.get(path, 0)} lines: LONGER must not name it"
        for path in longer
        if lines.get(path, 0) <= MAX_LINES
    ]


def cc_violations(source: str, room: str, path: str) -> list[str]:
    """Returns the violations in a file's includes, a sentence each."""
    found = []
    for opening, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)', source, re.MULTILINE):
        allowed = name.startswith(CC_ROOMS[room])
        if opening == "<":
            allowed |= bool(STANDARD_HEADER.fullmatch(name)) or name in SYSTEM_HEADERS
            allowed |= name.startswith(SYSTEM_FOLDERS)
        if not allowed:
            found.append(f"{path} includes {name}, which cc/{room} may not know")
    return found


def misplaced_tests(paths: Iterable[str]) -> list[str]:
    """Returns the misplaced modules in tests/, a sentence each."""
    rooms = {name for name in PYTHON_ROOMS if (ROOT / "tf_embed" / name).is_dir()}
    folders = {*TEST_FOLDERS, *(f"python/{room}" for room in rooms)}
    found = []
    for path in map(pathlib.PurePath, paths):
        folder, is_test = str(path.parent), path.stem.endswith("_test")
        is_other = path.parts[0] in OTHER_TEST_FOLDERS
        if str(path) == "conftest.py" or (is_other and not is_test):
            continue
        if not is_test:
            found.append(f"tests/{path} is a helper outside of tests/support")
        elif folder not in folders:
            found.append(f"tests/{path} is in a folder that mirrors no room")
    return found


def imported_tests(source: str) -> list[str]:
    """Returns the imports of tests in a module: shared code belongs in tests/support."""
    lines = re.findall(r"^ *(?:from|import) .*", source, re.MULTILINE)
    return [line for line in lines if TESTS & set(re.findall(r"\w+", line))]


def picture() -> str:
    """Rows of boxes as SVG. The lowest room is below, on the left."""
    parts, y, columns = [], 0, 5
    for name, rooms, fill, line in GROUPS:
        for start in range(0, len(rooms), columns):
            y -= 36
            for column, room in enumerate(rooms[start : start + columns]):
                x = 130 + 126 * column
                box = f'x="{x}" y="{y}" width="118" height="28" rx="4"'
                parts.append(f'<rect {box} fill="{fill}" stroke="{line}"/>')
                parts.append(f'<text x="{x + 59}" y="{y + 19}" text-anchor="middle">{room}</text>')
        parts.append(f'<text x="20" y="{y + 19}" fill="{line}">{name}</text>')
        y -= 12
    note = "a room uses rooms below it, or on its left"
    parts.append(f'<text x="752" y="{y - 6}" text-anchor="end">{note}</text>')
    top = y - 30
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" font-family="monospace" font-size="12" '
        f'width="772" height="{-top}" viewBox="0 {top} 772 {-top}">'
    )
    title = "<title>The rooms of tf_embed, of cc and of cc/core, lowest at the bottom</title>"
    card = f'<rect y="{top}" width="772" height="{-top}" fill="#ffffff"/>'
    return "\n".join([head, title, card, *parts, "</svg>", ""])


OP_LAYERS = {
    "cc/ops": r'REGISTER_OP\("TfEmbed(\w+)"',
    "cc/tf": r'\(\s*"TfEmbed(\w+)"',
    "tf_embed/ops": r"\.tf_embed_(\w+)\(",
}


def op_families(sources: Mapping[str, str], pattern: str) -> dict[str, set[str]]:
    """For each op, the names of the files that match the pattern, without endings."""
    families: dict[str, set[str]] = {}
    for path, source in sources.items():
        for op in re.findall(pattern, source):
            families.setdefault(op.replace("_", "").lower(), set()).add(pathlib.Path(path).stem)
    return families


def strays(declared: Mapping[str, set[str]], used: Mapping[str, set[str]]) -> list[str]:
    """Ops that no file of a layer has whose name equals the declaring file's."""
    return [op for op, files in used.items() if not files & declared.get(op, set())]


class TreeTest(absltest.TestCase):
    """The checks of the actual tree."""

    def test_the_picture_has_these_rooms(self):
        self.assertEqual(
            PICTURE.read_text(),
            picture(),
            "draw it by `python tests/release/architecture_test.py --write`",
        )

    def test_python_imports_point_downward(self):
        found, modules = [], sorted((ROOT / "tf_embed").rglob("*.py"))
        for path in modules:
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            found += python_violations(path.read_text(), module, is_package)
        self.assertNotEmpty(modules)
        self.assertEmpty(found, "\n".join(found))

    def test_no_modules_import_each_other_in_a_circle(self):
        paths = {}
        for path in (ROOT / "tf_embed").rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] != "__init__":
                paths[".".join(parts)] = path
        imports = {
            module: {
                known
                for name in imported_modules(ast.parse(path.read_text()), module, False)
                for known in (name, name.rpartition(".")[0])
                if known in paths
            }
            for module, path in paths.items()
        }
        self.assertGreater(sum(map(len, imports.values())), 100)
        self.assertEmpty(circle(imports))

    def test_tests_are_in_the_folders_of_their_rooms(self):
        paths = [str(path.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("*.py")]
        self.assertNotEmpty(paths)
        self.assertEmpty(misplaced_tests(paths), "\n".join(misplaced_tests(paths)))

    def test_no_module_of_tests_imports_a_test(self):
        found = [
            f"{path.relative_to(ROOT)}: {line}"
            for path in (ROOT / "tests").rglob("*.py")
            for line in imported_tests(path.read_text())
        ]
        self.assertEmpty(found, "\n".join(found))

    def test_no_two_modules_of_tests_have_one_name(self):
        # A module is imported by its name alone.
        names = [path.name for path in (ROOT / "tests").rglob("*.py")]
        self.assertLen(set(names), len(names))

    def test_cc_includes_stay_within_their_room(self):
        found, files = [], []
        for room in CC_ROOMS:
            for path in sorted((ROOT / "cc" / room).glob("*")):
                if path.suffix in {".cc", ".cu", ".h"}:
                    files.append(path)
                    name = str(path.relative_to(ROOT))
                    found += cc_violations(path.read_text(), room, name)
        self.assertNotEmpty(files)
        self.assertEmpty(found, "\n".join(found))

    def test_cc_has_only_known_rooms(self):
        folders = {path.parent for path in (ROOT / "cc").rglob("*.h")}
        folders |= {path.parent for path in (ROOT / "cc").rglob("*.cc")}
        rooms = {str(path.relative_to(ROOT / "cc")) for path in folders}
        self.assertEqual(rooms, set(CC_ROOMS))

    def test_an_op_is_in_a_file_of_one_name_in_each_layer(self):
        layers = {
            folder: op_families(
                {
                    str(path): path.read_text()
                    for path in (ROOT / folder).iterdir()
                    if path.is_file()
                },
                pattern,
            )
            for folder, pattern in OP_LAYERS.items()
        }
        declared = layers["cc/ops"]
        self.assertGreater(len(declared), 80)
        self.assertEqual(set(layers["cc/tf"]), set(declared))
        for folder, used in layers.items():
            self.assertEmpty(strays(declared, used), folder)

    def test_each_long_file_has_a_reason(self):
        lines = {
            str(path.relative_to(ROOT)): len(path.read_text().splitlines()) - 1  # the licence
            for path in source_files()
        }
        found = wrong_lengths(lines, LONGER)
        self.assertEmpty(found, "\n".join(found))

    def test_each_object_of_the_gpu_programs_has_a_source(self):
        objects = re.findall(r"\(CUDA_OUT\)/(\w+(?:/\w+)+)\.o", DEVICE_MAKEFILE.read_text())
        self.assertNotEmpty(objects)
        for name in objects:
            sources = [ROOT / f"{name}{suffix}" for suffix in (".cc", ".cu")]
            self.assertTrue(any(source.is_file() for source in sources), name)

    def test_each_file_names_its_licence(self):
        found = [path for path in source_files() if not names_licence(path.read_text())]
        self.assertEmpty(found, "\n".join(map(str, found)))


class PlantedTest(parameterized.TestCase):
    """The checks can fail: each finds the planted violation, and accepts correct code."""

    @parameterized.parameters(
        ("from tf_embed.layers import DynamicEmbedding", "tf_embed.optimizers.wrapper"),
        ("from tf_embed import layers", "tf_embed.optimizers"),
        ("import tf_embed.variable", "tf_embed.table"),
        ("import tf_embed", "tf_embed.table"),
        ("from tf_embed import Variable", "tf_embed.table"),
        ("from tf_embed.table import table", "tf_embed.ops.policy_ops"),
        ("from tf_embed.layers import ids", "tf_embed.optimizers.trainer"),
        ("from ..variable.variable import Variable", "tf_embed.table.table"),
        ("from ..layers import pooled", "tf_embed.optimizers.wrapper"),
        ("from . import Variable", "tf_embed.table"),
        ("def f():\n  from tf_embed import tfra", "tf_embed.layers.dynamic_embedding"),
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

    @parameterized.parameters(
        "import ops_test",
        "from ops_test import RawTable",
        "def f():\n  from python.ops import ops_test",
    )
    def test_an_imported_test_is_found(self, source):
        self.assertLen(imported_tests(source), 1)
        self.assertEmpty(imported_tests("from support.cases.raw_tables import RawTable"))

    def test_a_circle_is_found(self):
        imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
        self.assertEqual(circle(imports), ["b", "c"])
        self.assertEmpty(circle({"a": {"b", "c"}, "b": {"c"}}))

    def test_an_op_in_a_file_of_another_name_is_found(self):
        declared = op_families({"a_ops.cc": 'REGISTER_OP("TfEmbedSetClock")'}, OP_LAYERS["cc/ops"])
        python = OP_LAYERS["tf_embed/ops"]
        used = op_families({"b_ops.py": "_raw.tf_embed_set_clock(x)"}, python)
        self.assertEqual(strays(declared, used), ["setclock"])
        both = {"b_ops.py": "_raw.tf_embed_set_clock(x)", "a_ops.py": "_raw.tf_embed_set_clock(y)"}
        self.assertEmpty(strays(declared, op_families(both, python)))

    @parameterized.parameters(
        ({"a.py": MAX_LINES + 1}, {}),
        ({"a.py": MAX_LINES + 1}, {"a.py": ""}),
        ({"a.py": MAX_LINES}, {"a.py": "one table of cases"}),
        ({}, {"a.py": "one table of cases"}),
    )
    def test_a_bad_length_is_found(self, lines, longer):
        self.assertLen(wrong_lengths(lines, longer), 1)

    @parameterized.parameters(
        ({"a.py": MAX_LINES}, {}),
        ({"a.py": MAX_LINES + 1}, {"a.py": "one table of cases"}),
    )
    def test_a_good_length_passes(self, lines, longer):
        self.assertEmpty(wrong_lengths(lines, longer))

    def test_a_licence_is_found_where_it_belongs(self):
        self.assertTrue(names_licence(f"// {LICENCE}\n\n"))
        self.assertTrue(names_licence(f"#!/usr/bin/env bash\n# {LICENCE}\n"))
        for source in ("", "#!/usr/bin/env bash\n", f"x = 1\n# {LICENCE}\n", "# Apache-2.0\n"):
            self.assertFalse(names_licence(source), source)

    def test_the_package_may_import_everything(self):
        source = "from tf_embed.layers import DynamicEmbedding\nfrom . import tfra"
        self.assertEmpty(python_violations(source, "tf_embed", is_package=True))

    @parameterized.parameters(
        "places.py",
        "places_test.py",
        "python/places.py",
        "python/ops/places.py",
        "python/places/places_test.py",
        "python/validation/validation_test.py",
        "python/ops/lookups/places_test.py",
        "tbe/optimizers/places_test.py",
        "lookups/places_test.py",
        "support/cases/places_test.py",
        "campaigns/places_test.py",
    )
    def test_a_misplaced_test_is_found(self, path):
        self.assertLen(misplaced_tests([path]), 1)

    def test_a_test_in_its_folder_passes(self):
        paths = ("conftest.py", "python/import_test.py", "python/ops/ops_test.py")
        paths += ("tbe/adam_test.py", "integration/golden_test.py", "support/cases/places.py")
        paths += ("campaigns/leaks.py", "campaigns/small/leaks_campaign_test.py")
        self.assertEmpty(misplaced_tests(paths))

    @parameterized.parameters(
        ("core/base", '#include "tensorflow/core/framework/op.h"'),
        ("core/store", "#include <cuda_runtime.h>"),
        ("core/batch", '#include "absl/status/status.h"'),
        ("core/store", '#  include "cc/tf/table_op.h"'),
        ("core/rows", '#include "cc/core/policy/row_policy.h"'),
        ("stores/host", '#include "cc/stores/device/device_store.h"'),
        ("stores/device", '#include "cc/tf/table_op.h"'),
        ("stores/device", '#include "tensorflow/core/framework/op.h"'),
        ("ops", '#include "cc/core/store/store.h"'),
        ("tf", '#include "cc/ops/table_shapes.h"'),
        ("tf", "#include <cc/ops/table_shapes.h>"),
    )
    def test_a_bad_include_is_found(self, room, source):
        self.assertLen(cc_violations(source, room, "planted.cc"), 1)

    @parameterized.parameters(
        (
            "core/store",
            '#include <vector>\n#include <sys/mman.h>\n#include "cc/core/store/store.h"',
        ),
        ("stores/device", '#include <cub/cub.cuh>\n#include "cc/core/rows/row_layout.h"'),
        ("ops", '#include "tensorflow/core/framework/op.h"'),
        ("tf", '#include "cc/core/store/store.h"\n#include "tensorflow/core/framework/op.h"'),
    )
    def test_a_good_include_passes(self, room, source):
        self.assertEmpty(cc_violations(source, room, "good.cc"))


if __name__ == "__main__":
    if "--write" in sys.argv:
        PICTURE.write_text(picture())
    else:
        absltest.main()
