# SPDX-License-Identifier: Apache-2.0
"""The messages that no test has seen become fewer, and tests/support/messages.py finds them.

`python tests/support/messages.py` prints them.
"""

from __future__ import annotations

import messages
import pytest

# How many messages no test has seen. A test that sees one more lowers its folder's ceiling.
CEILINGS = {"tf_embed": 14, "cc": 70}

PYTHON = """
def f(dim, x):
    '''No message stands in a docstring.'''
    if dim < 1:
        raise ValueError(f"`dim` of {x!r} must be at least one column (dim={dim}) wide.")
    check(x, "the second of two messages, by a helper")
"""
CC = """
// No message stands in a comment.
Status F(const std::string& name) {
  if (name.empty()) return Status::DataLoss("File '" + name + "' has lost "
                                            "its last page.");
  return name == "x" ? Status() : Refused(name, "rows that have no place");
}
REGISTER_OP("Op").Attr("no message of the op");
"""


def pieces_of(name: str, source: str) -> list[tuple[str, ...]]:
    return [one.pieces for one in messages.messages_of([(name, source)])]


def unseen_lines(name: str, source: str, test: str, language: str = "test.py") -> list[str]:
    """The lines of `source` with messages that a test in `language` has not seen."""
    found = messages.messages_of([(name, source)])
    texts = list(messages.texts_of_test(language, test))
    if language.endswith(".py"):
        missing = messages.unseen(found, texts)
    else:
        missing = messages.unseen(found, [], texts)
    return [place.rpartition(":")[2] for one in missing for place in one.places]


def test_unseen_messages_do_not_become_more():
    _, missing = messages.unseen_of_tree()
    above = {
        folder: count
        for folder, count in messages.counts(missing).items()
        if count > CEILINGS[folder]
    }
    assert not above, (
        f"{above}, ceilings {CEILINGS}: write a test that sees the new message, which "
        "python tests/support/messages.py prints"
    )


def test_messages_of_python_are_errors_and_texts_of_helpers():
    assert pieces_of("a.py", PYTHON) == [
        ("`dim` of ", " must be at least one column (dim=", ") wide."),
        ("the second of two messages, by a helper",),
    ]


def test_messages_of_cc_are_statuses_and_texts_of_helpers():
    assert pieces_of("a.cc", CC) == [
        ("File '", "' has lost its last page."),
        ("rows that have no place",),
    ]


@pytest.mark.parametrize(
    "test",
    [
        "",
        "# must be at least one column\n",
        "'''must be at least one column'''\n",
        "raise ValueError('must be at least one column')\n",
        "match = 'may be two columns wide'\n",
        "match = 'must be at'\n",
        "match = 'must be .*one column'\n",
    ],
)
def test_an_unseen_message_is_found(test):
    assert unseen_lines("a.py", PYTHON, test) == ["5", "6"]


@pytest.mark.parametrize(
    "test",
    [
        "match = 'must be at least one column'\n",
        "match = r'`dim` of .* must be at least one column \\(dim=0\\) wide\\.'\n",
        "match = 'must be at least' ' one column'\n",
        "match = f'{name} must be at least one column'\n",
        "CASES = [(0, 'at least one column')]\n",
    ],
)
def test_a_seen_message_is_accepted(test):
    assert unseen_lines("a.py", PYTHON, test) == ["6"]


def test_a_part_that_two_messages_have_shows_neither():
    source = "raise ValueError('a row must have a key')\nraise ValueError('a row must have a slot')"
    assert unseen_lines("a.py", source, "match = 'row must have a'") == ["1", "2"]
    assert unseen_lines("a.py", source, "match = 'row must have a key'") == ["2"]


def test_a_message_whose_words_others_have_must_stand_in_a_test_as_a_whole():
    source = "raise ValueError('no row is left')\nraise ValueError('no row is left in the table')"
    assert unseen_lines("a.py", source, "match = 'no row is'") == ["1", "2"]
    assert unseen_lines("a.py", source, "match = 'no row is left'") == ["2"]


def test_words_that_meet_by_chance_show_nothing():
    source = "raise ValueError('each of the rows that were read must have the width of its table')"
    chance = "'a long text that holds the rows that were in another place for a while'"
    assert unseen_lines("a.py", source, f"text = {chance}") == ["1"]


@pytest.mark.parametrize("test", ["has lost its last page", "lost its last page\\\\."])
def test_a_test_in_either_language_sees_a_message_of_cc(test):
    lines = unseen_lines("a.cc", CC, "")
    assert len(lines) == 2
    assert unseen_lines("a.cc", CC, f'text = "{test}"') == lines[1:]
    assert unseen_lines("a.cc", CC, f'EXPECT_EQ(text, "{test}");', "test.cc") == lines[1:]


def test_a_test_in_cc_sees_no_message_of_python():
    test = 'EXPECT_EQ(text, "must be at least one column");'
    assert unseen_lines("a.py", PYTHON, test, "test.cc") == ["5", "6"]
