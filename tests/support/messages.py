# SPDX-License-Identifier: Apache-2.0
"""The messages of the tree, and whether a test has seen each.

    python tests/support/messages.py

prints the messages that no test has seen, each with its file and line, and the counts.

A message is known by its fixed pieces of text, because values stand between them. A test has seen
it if a text of the test has a distinctive part of a piece: three words or more in a row that no
other message has. The part must be half of the piece, half of the test's text, or six words:
shorter ones meet by chance. A message that has no distinctive part is seen if its longest piece
stands in a test as a whole.

A text of a test is a string of its code, not a docstring, a comment or a name. Patterns count
without their escapes. Headings of the page of troubles count, because a test compares each with a
real error.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("tf_embed", "cc")
TROUBLES = ROOT / "docs" / "guides" / "troubleshooting.md"
_NO_TESTS = {"messages.py", "messages_test.py"}  # the test plants messages of its own

_FEWEST_WORDS = 3  # of a distinctive part
_MANY_WORDS = 6  # that do not meet by chance
_MOST_WORDS = 12  # that are compared
# A part of these words alone is not distinctive.
_COMMON = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "can't", "does", "for", "from"),
    *("had", "has", "have", "in", "is", "it", "its", "must", "no", "not", "of", "on", "one"),
    *("or", "than", "that", "the", "there", "this", "to", "was", "were", "which", "with"),
    "Received",
}
_GAP = "\0"  # between two texts; no word
_WORD = re.compile(r"\w[\w']*(?:\.\w[\w']*)*")
_VALUE = re.compile(r"%[-.\d]*[rsdigfx]|\{[\w!:.]*\}")  # of a format
_SENTENCE = re.compile(r"(?:[A-Za-z`'][\w`'.]*,? ){2}[A-Za-z`'][\w`']*")

_PATTERN = re.compile(r"\\[dDsSwWbB][*+?]?|\[[^]]*\][*+?]?|\.[*+]\??|\|")
_ESCAPE = re.compile(r"\\([^A-Za-z0-9])")

# Calls in Python with text that is no error or warning: progress, help, names of things; and errors
# that say what can't happen.
_NO_MESSAGES = re.compile(
    r".*\b(?:info|add_argument|ArgumentParser|compile|name_scope|AssertionError|NotImplementedError)"
)

_CC_TOKEN = re.compile(
    r'(?P<raw>\bR"(?P<mark>\w*)\((?P<inner>.*?)\)(?P=mark)")|(?P<text>"(?:[^"\\\n]|\\.)*")'
    r"|//[^\n]*|/\*.*?\*/|(?<![\w])'(?:[^'\\\n]|\\.)+'|^[ \t]*#[ \t]*(?:include|error)\b[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_CC_ERROR = re.compile(r"\b(?:\w*Error|Status::[A-Z]\w+|\w*[Dd]amaged\w*|FileFailure)\s*(?=\()")
_CC_NO_MESSAGE = re.compile(
    r"\bREGISTER_\w+|\.(?:Attr|Input|Output|Doc)\(|\bSTAT\(|static_assert|constexpr char|\bthrow\b"
)


@dataclasses.dataclass(frozen=True)
class Message:
    """A message, or several of the same text.

    Attributes:
        pieces: Its fixed text, in order.
        places: "file:line" of each.
    """

    pieces: tuple[str, ...]
    places: tuple[str, ...]


def words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text))


def _parts(text: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The runs of words of a text that may be distinctive."""
    for begin in range(len(text)):
        for end in range(begin + _FEWEST_WORDS, min(len(text), begin + _MOST_WORDS) + 1):
            yield text[begin:end]


# Python.


def _strings(node: ast.AST) -> Iterator[str]:
    """The fixed text in an expression, piece by piece."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield _GAP.join(_text_of(node))
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from _strings(value.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def _text_of(node: ast.JoinedStr) -> Iterator[str]:
    text = ""
    for value in node.values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
        else:
            yield text
            text = ""
    yield text


def _docstrings(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def of_python(source: str) -> Iterator[tuple[int, list[str]]]:
    """The line and the texts of each message: errors that are raised, and other sentences."""
    tree = ast.parse(source)
    passed = set(_docstrings(tree))

    def visit(node: ast.AST) -> Iterator[tuple[int, list[str]]]:
        if node in passed:
            return
        if isinstance(node, ast.Call) and _NO_MESSAGES.fullmatch(ast.unparse(node.func)):
            return
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            if _NO_MESSAGES.fullmatch(ast.unparse(node.exc.func)):
                return
            yield node.lineno, [text for one in _inputs(node.exc) for text in _strings(one)]
            return
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            found = list(_strings(node))
            if any(_SENTENCE.search(text) and "import " not in text for text in found):
                yield node.lineno, found
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(tree)


def _inputs(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _texts_of_python_test(source: str) -> Iterator[str]:
    """The texts of a test, except docstrings and the errors that it raises itself."""
    tree = ast.parse(source)
    passed = set(_docstrings(tree))

    def visit(node: ast.AST) -> Iterator[str]:
        if node in passed or isinstance(node, ast.Raise):
            return
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            yield from _strings(node)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(tree)


# C++.


def _literals(source: str) -> tuple[str, list[tuple[int, int, str]]]:
    """The code with blanks in place of texts and comments; and each text, with begin and end."""
    found: list[tuple[int, int, str]] = []
    for token in _CC_TOKEN.finditer(source):
        if token["raw"] or token["text"]:
            text = token["inner"] if token["raw"] else _unescaped(token["text"][1:-1])
            if found and not source[found[-1][1] : token.start()].strip():
                begin, _, before = found.pop()
                found.append((begin, token.end(), before + text))
            else:
                found.append((token.start(), token.end(), text))
    code = _CC_TOKEN.sub(lambda token: re.sub(r"[^\n]", " ", token.group()), source)
    return code, found


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


def _end_of_call(code: str, begin: int) -> int:
    depth = 0
    for at in range(begin, len(code)):
        depth += (code[at] == "(") - (code[at] == ")")
        if depth == 0:
            return at
    return len(code)


def of_cc(source: str) -> Iterator[tuple[int, list[str]]]:
    """The line and the texts of each message: calls that make an error, and other sentences.

    Other sentences of one statement are one message.
    """
    code, literals = _literals(source)
    calls = [(one.start(), _end_of_call(code, one.end())) for one in _CC_ERROR.finditer(code)]
    found: dict[tuple[int, int], list[str]] = {}
    for begin, _, text in literals:
        around = [(first, last) for first, last in calls if first < begin < last]
        if around:
            found.setdefault(around[0], []).append(text)
            continue
        first = max(code.rfind(mark, 0, begin) for mark in ";{}") + 1
        if _CC_NO_MESSAGE.search(code[first:begin]) or not _SENTENCE.search(text):
            continue
        first = begin - len(code[first:begin].lstrip())
        found.setdefault((first, -1), []).append(text)
    for (first, _), texts in sorted(found.items()):
        yield source.count("\n", 0, first) + 1, texts


# The tree.


def _pieces(texts: Iterable[str]) -> tuple[str, ...]:
    split = (piece for text in texts for piece in _VALUE.sub(_GAP, text).split(_GAP))
    return tuple(piece for piece in split if words(piece))


def messages_of(sources: Iterable[tuple[str, str]]) -> list[Message]:
    """The messages of sources, each a name, by which its language is told, and its text."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, source in sources:
        for line, texts in of_python(source) if name.endswith(".py") else of_cc(source):
            if pieces := _pieces(texts):
                found.setdefault(pieces, []).append(f"{name}:{line}")
    return [Message(pieces, tuple(places)) for pieces, places in found.items()]


def texts_of_test(name: str, source: str) -> Iterator[str]:
    """The texts of a test that may be those of messages, as they are and as patterns."""
    if name.endswith(".py"):
        texts = _texts_of_python_test(source)
    else:
        texts = (text for _, _, text in _literals(source)[1])
    for text in texts:
        yield text
        yield _ESCAPE.sub(r"\1", _PATTERN.sub(_GAP, text))


def _seen(messages: list[Message], texts: Iterable[str]) -> set[Message]:
    """The messages of which a part is in one of the texts."""
    owners: dict[tuple[str, ...], set[int]] = collections.defaultdict(set)
    longest_piece: dict[tuple[str, ...], int] = {}
    for number, message in enumerate(messages):
        for piece in map(words, message.pieces):
            for part in _parts(piece):
                owners[part].add(number)
                longest_piece[part] = max(len(piece), longest_piece.get(part, 0))
    distinctive = {part: number for part, (number, *others) in owners.items() if not others}
    distinctive = {part: of for part, of in distinctive.items() if not _COMMON.issuperset(part)}
    have_one = set(distinctive.values())
    wholes: dict[tuple[str, ...], set[int]] = collections.defaultdict(set)
    for number, message in enumerate(messages):
        if number not in have_one:
            wholes[max(map(words, message.pieces), key=len)].add(number)

    found: set[int] = set()
    segments = {words(segment) for text in texts for segment in text.split(_GAP)}
    for segment in segments:
        found |= wholes.get(segment, set())
        for part in _parts(segment):
            found |= wholes.get(part, set())
            if part in distinctive:
                enough = min(_MANY_WORDS, len(segment) / 2, longest_piece[part] / 2)
                if len(part) >= enough:
                    found.add(distinctive[part])
    return {messages[number] for number in found}


def unseen(
    messages: list[Message], tests: Iterable[str], cc_tests: Iterable[str] = ()
) -> list[Message]:
    """The messages that no test has seen.

    Args:
        messages: All messages.
        tests: The texts of tests in Python.
        cc_tests: The texts of tests in C++, which see no message of Python.
    """
    in_cc = [one for one in messages if not all(".py:" in place for place in one.places)]
    seen = _seen(messages, tests) | _seen(in_cc, cc_tests)
    return [message for message in messages if message not in seen]


def sources_of(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each source file."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".cu", ".h") and path.name not in _NO_TESTS:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def texts_of_tests(suffixes: tuple[str, ...]) -> Iterator[str]:
    for name, source in sources_of(["tests"]):
        if name.endswith(suffixes):
            yield from texts_of_test(name, source)
    if ".py" in suffixes:
        yield from re.findall(r"^## (.*)", TROUBLES.read_text(), re.MULTILINE)


def unseen_of_tree() -> tuple[list[Message], list[Message]]:
    """All messages of the tree, and those that no test has seen."""
    messages = messages_of(sources_of(FOLDERS))
    cc = texts_of_tests((".cc", ".cu", ".h"))
    return messages, unseen(messages, texts_of_tests((".py",)), cc)


def counts(messages: Iterable[Message]) -> dict[str, int]:
    """How many messages each folder has. One that both have counts for the first."""
    found = collections.Counter(one.places[0].partition("/")[0] for one in messages)
    return {folder: found[folder] for folder in FOLDERS}


def main() -> None:
    messages, missing = unseen_of_tree()
    for message in missing:
        print(f"{', '.join(message.places)}: {' ... '.join(message.pieces)}")
    all_of, unseen_of = counts(messages), counts(missing)
    for folder in FOLDERS:
        print(f"{folder}: {all_of[folder]} messages, {unseen_of[folder]} of them unseen")


if __name__ == "__main__":
    main()
