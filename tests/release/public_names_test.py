# SPDX-License-Identifier: Apache-2.0
"""`help` of each public name has a summary, arguments, result, errors and an example."""

from __future__ import annotations

import ast
import doctest
import enum
import importlib.util
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from absl.testing import absltest, parameterized

from support import ROOT, pyproject

# Methods that TableTrainer calls if an optimizer's rule runs in a table; no user calls them.
PROTOCOL = (
    *("check", "check_dim", "common_hyper", "factors", "hyper", "keep_slots", "number"),
    *("pass_over", "refuse", "slot_variables", "step_rows"),
)
# Keras's methods with Keras's arguments, which Keras documents.
OF_KERAS = re.compile(
    r"(distributed\.(Model|MultiWorker)|Model|ModelWithTables)\.\w+|.*\.LayerNormalization"
)
# Classes of objects that a user gets and does not make.
GIVEN = ("serving.Publication",)
WITHOUT_EXAMPLE = {
    "serving.Publication": "a Publisher makes it",
    "tfra.RedisTableCreator": "it needs a server",
}


def _loaded(name: str) -> types.ModuleType:
    """A module of tests/campaigns, a folder of programs that is not on the path."""
    path = ROOT / "tests" / "campaigns" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


def _is_plain(value: Any) -> bool:
    """Whether a value is neither an enum nor an exception. These have only members or a message."""
    return not (isinstance(value, type) and issubclass(value, (enum.Enum, BaseException)))


def _section(doc: str, *titles: str) -> str:
    """The lines below a title, up to the next title; empty if there is no such title."""
    found = re.search(rf"^(?:{'|'.join(titles)}):\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    return found.group(1) if found else ""


def without_docstring(name: str, value: Any) -> Iterator[str]:
    if not (inspect.getdoc(value) or "").strip():
        yield f"{name} has no docstring"


def without_example(name: str, value: Any) -> Iterator[str]:
    if not doctest.DocTestParser().get_examples(inspect.getdoc(value) or ""):
        yield f"{name} has no example that runs"


def arguments_untold(name: str, value: Any, arguments: tuple[str, ...]) -> Iterator[str]:
    doc = inspect.getdoc(value) or ""
    told = _section(doc, "Args", "Attributes")
    if "so are all others" in told or "so are those below" in told or "so the arguments" in told:
        return
    for argument in arguments:
        if not re.search(rf"(?<![\w.]){re.escape(argument)}(?!\w)", told):
            yield f"{name} does not say what `{argument}` is"


def result_untold(name: str, value: Any) -> Iterator[str]:
    wanted = inspect.signature(value).return_annotation
    if wanted in (None, "None", inspect.Signature.empty):
        return
    if not _section(inspect.getdoc(value) or "", "Returns", "Yields"):
        yield f"{name} does not say what it gives, {wanted}"


def errors_untold(name: str, value: Any) -> Iterator[str]:
    """Functions with a raise statement and without a `Raises:` section."""
    made: Any = value
    if isinstance(value, type):
        own = (vars(value).get("__post_init__"), vars(value).get("__init__"))
        made = next((one for one in own if inspect.isfunction(one) and _has_source(one)), None)
    if made is None or not _has_source(made):
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    if raises and not _section(inspect.getdoc(value) or "", "Raises"):
        yield f"{name} does not say what it raises"


def _has_source(function: Any) -> bool:
    return not function.__code__.co_filename.startswith("<")  # a generated __init__ has no file


def every(check: Callable[..., Iterator[str]], names: dict[str, Any]) -> list[str]:
    """The faults that a check finds in public names."""
    return [fault for name, value in names.items() for fault in check(name, value)]


class PublicNamesTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        listing = _loaded("public_names")
        cls.parameters = staticmethod(listing.parameters)
        cls.names = listing.public_names()
        # The name of a method begins with the name of its class.
        cls.methods = {
            name: value
            for name, value in cls.names.items()
            if isinstance(cls.names.get(name.rpartition(".")[0]), type)
        }
        cls.others = {name: one for name, one in cls.names.items() if name not in cls.methods}

    def test_there_are_names_of_each_kind(self):
        self.assertGreater(len(self.methods), 150)
        self.assertGreater(len(self.others), 100)

    def test_each_has_a_docstring(self):
        found = every(without_docstring, self.names)
        self.assertEmpty(found, "\n".join(found))

    def test_each_class_and_function_has_an_example_that_runs(self):
        found = every(
            without_example,
            {
                name: value
                for name, value in self.others.items()
                if _is_plain(value) and name not in WITHOUT_EXAMPLE
            },
        )
        self.assertEmpty(found, "\n".join(found))
        self.assertContainsSubset(set(WITHOUT_EXAMPLE), set(self.others))
        settings = pyproject()["tool"]["pytest"]
        options = settings["ini_options"]
        self.assertIn("--doctest-modules", options["addopts"])
        self.assertIn("tf_embed", options["testpaths"])

    def test_each_says_what_its_arguments_are(self):
        found = every(
            lambda name, value: arguments_untold(name, value, self.parameters(value)),
            {
                name: value
                for name, value in self._asked().items()
                if _is_plain(value) and name not in GIVEN
            },
        )
        self.assertEmpty(found, "\n".join(found))

    def test_each_function_says_what_it_gives(self):
        functions = {
            name: value for name, value in self._asked().items() if inspect.isfunction(value)
        }
        found = every(result_untold, functions)
        self.assertEmpty(found, "\n".join(found))

    def test_each_says_what_it_raises(self):
        found = every(errors_untold, self._asked())
        self.assertEmpty(found, "\n".join(found))

    def _asked(self) -> dict[str, Any]:
        """All names, except names documented elsewhere or never called by users."""
        return {
            name: value
            for name, value in self.names.items()
            if not OF_KERAS.fullmatch(name)
            and not (name in self.methods and name.rpartition(".")[2] in PROTOCOL)
        }


def _untold(x: int) -> int:
    """Does something."""
    raise ValueError(x)


def _told(x: int) -> int:
    """Does something.

    Args:
        x: A number.

    Returns:
        A number.

    Raises:
        ValueError: Always.

    Example:
        >>> 1 + 1
        2
    """
    raise ValueError(x)


class PlantedTest(parameterized.TestCase):
    """Each check finds a planted fault, and accepts a good docstring."""

    @parameterized.parameters(
        (without_example, "has no example"),
        (result_untold, "what it gives, int"),
        (errors_untold, "what it raises"),
        (lambda name, value: arguments_untold(name, value, ("x",)), "what `x` is"),
    )
    def test_a_gap_is_found(self, check, words):
        (fault,) = check("f", _untold)
        self.assertIn(words, fault)
        self.assertEmpty(list(check("f", _told)))

    def test_no_docstring_is_found(self):
        self.assertLen(list(without_docstring("f", lambda: None)), 1)
        self.assertEmpty(list(without_docstring("f", _told)))


if __name__ == "__main__":
    absltest.main()
