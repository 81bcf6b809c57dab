# SPDX-License-Identifier: Apache-2.0
"""Each warning, each dropped error and each ignored status has a comment with the reason.

Rows, gradients and errors must not be lost silently. The comment is on the line, directly above it,
or in its block. For an accidentally ignored status of the core the compiler warns: `Status` is
[[nodiscard]].
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from absl.testing import absltest, parameterized

from support import ROOT

# Calls that warn the user and continue, and calls that drop an error.
_CALLS = re.compile(
    r"(absl\.)?logging\.(warning|warn|error|exception|log|log_\w+)"
    r"|warnings\.(warn|warn_explicit|simplefilter|filterwarnings)"
    r"|contextlib\.suppress"
)
_MODULES = {"contextlib", "logging", "warnings"}
_CC = re.compile(
    r"\(void\)!?[\w>.\-*:(]+\(|static_cast<void>\([^)]*\(|std::ignore|catch \(\.\.\.\)"
    r"|LOG\((WARNING|ERROR)\)|IgnoreError\(\)"
    # System calls whose result is ignored.
    r"|^\s*(?:if \(.*\) )?(?:::)?(?:close|dlclose|flock|fsync|munmap|rename|rmdir|unlink)\("
)
# A catch block that does nothing, or returns without using the error.
_CC_CATCH = re.compile(r"catch \([^)]*\) \{\s*(?:return(?: nullptr| false| \{\})?;)?\s*\}")
_NEAR = 2  # lines of code


def _drops(handler: ast.ExceptHandler) -> bool:
    """Whether a handler neither raises nor uses its error."""
    for node in (one for part in handler.body for one in ast.walk(part)):
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Name) and node.id == handler.name:
            return False
    return True


def _silences_in_python(source: str) -> Iterator[tuple[int, int]]:
    """The first and the last line of each call or handler that drops an error."""
    tree = ast.parse(source)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES:
            imported |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _drops(node):
            yield node.lineno, node.body[-1].end_lineno or node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if _CALLS.fullmatch(imported.get(name, name)):
                yield node.lineno, node.lineno


def unargued_in_python(source: str) -> list[int]:
    lines = source.splitlines()
    return [
        first
        for first, last in _silences_in_python(source)
        if not any("#" in line for line in lines[max(0, first - 1 - _NEAR) : last])
    ]


def unargued_in_cc(source: str) -> list[int]:
    lines = source.splitlines()
    found = {number for number, line in enumerate(lines) if _CC.search(line.partition("//")[0])}
    found |= {source.count("\n", 0, one.start()) for one in _CC_CATCH.finditer(source)}
    return [
        number + 1
        for number in sorted(found)
        if not any("//" in line for line in lines[max(0, number - _NEAR) : number + 2])
    ]


class SilenceTest(parameterized.TestCase):
    def test_each_silence_has_a_reason(self):
        found = []
        for path in sorted((ROOT / "tf_embed").rglob("*.py")):
            found += [f"{path}:{line}" for line in unargued_in_python(path.read_text())]
        for folder in ("cc", "tf_embed"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in (".cc", ".cu", ".h"):
                    found += [f"{path}:{line}" for line in unargued_in_cc(path.read_text())]
        self.assertEqual(found, [])

    def test_a_status_must_be_used(self):
        self.assertIn(
            "class [[nodiscard]] Status {", (ROOT / "cc" / "core" / "base" / "status.h").read_text()
        )

    @parameterized.parameters(
        "try:\n    f()\nexcept ValueError:\n    pass{}\n",
        "try:\n    f()\nexcept ValueError:\n    x = 0{}\n",
        "try:\n    f()\nexcept ValueError as error:\n    return{}\n",
        "with contextlib.suppress(OSError):{}\n    f()\n",
        "from contextlib import suppress\n\nwith suppress(OSError):{}\n    f()\n",
        "logging.warning('x'){}\n",
        "logging.exception('x'){}\n",
        "warnings.warn('x'){}\n",
        "from warnings import warn as say\n\n\nsay('x'){}\n",
        "warnings.simplefilter('ignore'){}\n",
    )
    def test_one_without_a_comment_is_found_in_python(self, source):
        self.assertLen(unargued_in_python(source.format("")), 1)
        self.assertEmpty(unargued_in_python(source.format("  # why")))

    @parameterized.parameters(
        "try:\n    f()\nexcept ValueError as error:\n    raise TypeError from error\n",
        "try:\n    f()\nexcept ValueError as error:\n    self.error = error\n",
        "logging.info('x')\n",
    )
    def test_an_error_that_is_used_is_not_silence(self, source):
        self.assertEmpty(unargued_in_python(source))

    @parameterized.parameters(
        "(void)table->Shrink(context);",
        "static_cast<void>(table->Shrink(context));",
        "std::ignore = table->Shrink(context);",
        'LOG(WARNING) << "x";',
        'LOG(ERROR) << "x";',
        "table->Clear().IgnoreError();",
        "} catch (...) {",
        "  close(descriptor);",
        "if (descriptor >= 0) close(descriptor);",
        "unlink(path.c_str());",
        "} catch (const std::bad_alloc&) {}",
        "} catch (const std::bad_alloc&) {\n  return nullptr;\n}",
    )
    def test_one_without_a_comment_is_found_in_cc(self, source):
        self.assertEqual(unargued_in_cc(source), [1])
        self.assertEmpty(unargued_in_cc(f"// Why.\n{source}"))
        self.assertEqual(unargued_in_cc(f"// Far.\n\n\n\n{source}"), [5])

    @parameterized.parameters(
        "if (unlink(path) == 0) return Status();",
        "const int error = fsync(file);",
        "table->close(client);",
    )
    def test_a_result_that_is_used_is_not_silence(self, source):
        self.assertEmpty(unargued_in_cc(source))

    def test_an_error_that_becomes_a_status_is_not_silence(self):
        self.assertEmpty(
            unargued_in_cc("} catch (const std::bad_alloc&) {\n  return NoMemory();\n}")
        )


if __name__ == "__main__":
    absltest.main()
