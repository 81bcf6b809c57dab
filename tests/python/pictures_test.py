# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/ are those that the code draws, and they agree with its sources."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import tensorflow as tf
from architecture_test import CC_ROOMS, CORE_WINGS, PYTHON_ROOMS

from pictures import badges, drawings, exchange, rooms, rows, tables
from pictures.svg import Picture, width_of
from support import ROOT
from tf_embed.ops import exchange_ops

PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]


def texts_of(name: str) -> list[str]:
    """The lines of text in a committed picture."""
    tree = ElementTree.parse(drawings.IMAGES / name)
    return ["".join(one.itertext()) for one in tree.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_committed_picture_is_the_one_that_is_drawn(name):
    assert (drawings.IMAGES / name).read_text() == drawings.DRAWINGS[name]().svg(), (
        "run `make pictures`"
    )


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_a_picture_is_shown_with_a_text_in_its_place(name):
    shown = re.compile(rf"!\[[^\]]{{20,}}\]\([^)]*\b{name}\)")
    assert any(shown.search(page.read_text()) for page in PAGES)


def test_each_svg_is_drawn():
    assert {path.name for path in drawings.IMAGES.glob("*.svg")} == set(drawings.DRAWINGS)


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_ops_and_files_in_a_picture_are_there(name):
    text = "\n".join(texts_of(name))
    ops = "".join(path.read_text() for path in (ROOT / "cc" / "ops").glob("*.cc"))
    for op in re.findall(r"TfEmbed\w+", text):
        assert f'REGISTER_OP("{op}")' in ops, op
    for path in re.findall(r"\b(?:cc|tf_embed)/[\w/]*(?:\.\w+)?", text):
        assert (ROOT / path).exists(), path


def test_badges_are_facts_of_the_settings_and_agree_with_the_readme():
    found = badges.facts()
    low, high = found["TensorFlow"].split(" to ")
    pythons = found["Python"].replace("|", "or")
    sentence = (
        r"Linux on x86-64 is supported, with Python "
        rf"{re.escape(pythons)} and TensorFlow {re.escape(low)}\.\d+ to {re.escape(high)}\."
    )
    readme = (ROOT / "README.md").read_text()
    assert re.search(sentence, readme)
    assert f"License: {found['license']}." in readme
    assert found["Keras"] == tf.keras.__version__.split(".")[0]


def test_badges_follow_the_settings():
    project = {
        "classifiers": [
            "Programming Language :: Python :: 3",
            *(f"Programming Language :: Python :: 3.{minor}" for minor in (13, 14)),
        ],
        "optional-dependencies": {"cpu": ["tensorflow-cpu>=2.20.1,<2.31"]},
        "license": {"text": "MIT"},
    }
    found = badges.facts({"project": project})
    assert (found["Python"], found["TensorFlow"], found["license"]) == (
        "3.13 | 3.14",
        "2.20 to 2.30",
        "MIT",
    )


def test_the_rooms_are_those_of_the_architecture():
    def names(rows):
        return [room for _, some in reversed(rows) for room in some]

    assert names(rooms.PYTHON) == list(PYTHON_ROOMS)
    assert names(rooms.CORE) == list(CORE_WINGS)
    assert {*names(rooms.CC), *(f"core/{wing}" for wing in CORE_WINGS)} == set(CC_ROOMS)


def test_a_bucket_is_that_of_the_index():
    header = (ROOT / "cc/core/index/bucket.h").read_text()
    fields = re.findall(r"std::atomic<u?int(\d+)_t> (\w+)(\[kLanes\])?;", header)
    lanes = int(re.search(r"kLanes = (\d+)", header)[1])
    found = [(name, lanes if many else 1, int(bits) // 8) for bits, name, many in fields]
    assert found == list(rows.BUCKET)
    word = re.search(r"word: +\|(.*)\|", header)[1].split("|")
    assert [tuple(one.split(" : ")) for one in map(str.strip, word)] == [
        (name, str(bits)) for name, bits in rows.WORD
    ]


def test_a_hash_is_that_of_the_index():
    header = (ROOT / "cc/core/index/striped_index.h").read_text()
    stripe, unused, place = re.search(
        r"stripe : (\d+) \| \.\.\. (\d+) unused \.\.\. \| place : (\d+)", header
    ).groups()
    assert [bits for _, bits in rows.HASH] == [int(stripe), int(unused), int(place)]


def test_statistics_are_those_of_rows():
    header = (ROOT / "cc/core/rows/row_statistics.h").read_text()
    words = re.findall(r"STATISTIC\(k(\w+), \d+, ", header)
    found = [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", word).lower() for word in words]
    assert found == list(rows.STATISTICS)


@pytest.mark.parametrize(
    ("arguments", "bytes_of_parts"),
    [
        ((64, 4, 0, 4), [256, 0, 0, 0]),
        ((5, 4, 5, 4), [20, 4, 20, 4]),
        ((1, 2, 2, 4), [2, 6, 8, 0]),
        ((3, 8, 3, 8), [24, 0, 24, 0]),
    ],
)
def test_the_parts_of_a_row_are_those_of_its_layout(arguments, bytes_of_parts):
    assert [size for _, size in rows.row_bytes(*arguments)] == bytes_of_parts


def test_keys_go_to_the_owners_that_the_op_chooses():
    for batch in exchange.BATCHES:
        (keys,), _, counts = exchange_ops.route_keys(
            [tf.constant(batch, tf.int64)],
            owners=[tf.zeros([0], tf.int32)],
            num_workers=exchange.WORKERS,
            owner_rules=["hash"],
        )
        of_owners = exchange.routed(batch)
        assert keys.numpy().tolist() == [key for some in of_owners for key in some]
        assert counts.numpy().flatten().tolist() == [len(some) for some in of_owners]


def test_a_table_is_found_by_its_columns():
    page = "| a | b |\n|---|---|\n| 1 | 2 |\n\n| b | c |\n|---|---|\n| **3.5** | 4, 5 |\n| 6 | |\n"
    assert tables.table_with(["b"], page) == [["2"]]
    assert tables.table_with(["c", "b"], page) == [["4, 5", "**3.5**"], ["", "6"]]
    assert tables.numbers("**3.5**, 4") == [3.5, 4.0]
    with pytest.raises(ValueError, match="columns"):
        tables.table_with(["a", "c"], page)


def test_a_text_without_room_is_refused():
    picture = Picture(200, 100, "A title", "A description.")
    picture.text(20, 50, "short")
    with pytest.raises(ValueError, match="needs"):
        picture.text(20, 50, "a line that is wider than the card, by some letters")
    with pytest.raises(ValueError, match="height"):
        picture.box(20, 50, 100, 20, ["one", "two"])
    assert width_of("`code`", 10) == pytest.approx(10 * 0.94 * 0.602 * 4)
