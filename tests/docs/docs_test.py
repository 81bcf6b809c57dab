# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/: their code runs, and the code has the names that they give.

Each page with code has a line in PAGES.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import operator
import os
import re
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_embed
from support import ROOT, TESTS
from support.cases.doc_pages import DOCS, Page, Row, blocks_of, code_in, execute, rows_of
from support.cases.migration_pages import MIGRATIONS
from support.oracles.reference import SEED
from support.processes.redis_servers import RedisProcess
from support.processes.stock_process import StockProcess
from tf_embed import tfra
from tf_embed.layers import DynamicEmbedding
from tf_embed.static_export import quantization

TFRA = "migrating/from_tfra.md"


def redis(page: Page) -> None:
    """Runs the page with a server on another port. The server's keys are as the page says."""
    with contextlib.closing(RedisProcess()) as server:
        page.blocks = [block.replace("port=6379", f"port={server.port}") for block in page.blocks]
        page.run()
        for table, seconds in (("a", None), ("b", 1000.0)):
            policy = seconds and tf_embed.TablePolicy(ttl_seconds=seconds)
            storage = server.storage(model="m", table=table)
            tf_embed.Variable(dim=2, policy=policy, storage=storage).upsert([65], [[1.0, 2.0]])
        assert server.command("TYPE", "{m:a:0}") == "hash"
        assert server.command("HLEN", "{m:a:0}") == "1"
        assert server.command("EXISTS", "m:a:meta") == "1"
        script = "return redis.call('STRLEN', '{m:b:0}A' .. string.rep('\\0', 7))"
        assert server.command("EVAL", script, "0") == str(16 + 2 * 4)


def gpu(page: Page) -> None:
    """Runs the page without a call that TensorFlow takes only before it uses a GPU."""
    growth = "tf.config.experimental.set_memory_growth(gpu, True)"
    assert any(growth in block for block in page.blocks)
    page.blocks = [block.replace(growth, "pass") for block in page.blocks]
    page.run()


def serving(page: Page) -> None:
    ids = np.random.default_rng(0).integers(0, 1000, [400, 8])
    page.run(ids=ids, targets=ids[:, 0] % 2)
    assert re.search(r"\d+ \d+\.\d+ None", page.printed)
    answers = page.names["model"].predict_on_batch(ids)
    np.testing.assert_array_equal(page.names["answers"], answers)


def snapshots(page: Page) -> None:
    ids = np.arange(80).reshape(40, 2)
    page.run(keras=keras, tf_embed=tf_embed, ids=ids, targets=np.ones((40, 1)))
    assert "[('monday', None, 80), ('tuesday', 'monday', 80)]" in page.printed
    assert "[('tuesday', None), ('wednesday', 'tuesday')]" in page.printed
    left = os.listdir(page.folder / "nvme" / "snapshots")
    assert sorted(left) == ["snapshot-000001", "tuesday", "wednesday"]


def inspect_saves(page: Page) -> None:
    """The page has the output of its calls. Reports differ in dates only."""
    page.run()
    report, of_calls = (block.lstrip("\n") for block in blocks_of(page.text, "text"))
    assert page.printed.startswith(of_calls)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        page.names["main"]([f"{page.folder}/snapshots/tuesday"])
    dates = r"\d{4}-\d\d-\d\d \S+ UTC( \(.* ago\))?"
    same = [re.sub(dates, "", text) for text in (report, printed.getvalue())]
    assert same[0].replace("/mnt", str(page.folder)) == same[1]


def static_export(page: Page) -> None:
    """In a process without tf_embed, the second block computes the model's answers."""
    rng = np.random.default_rng(1)
    page.names = {"keras": keras, "tf": tf, "tf_embed": tf_embed}
    page.run(1, items=rng.integers(0, 9, [64, 3]), clicked=rng.integers(0, 2, [64, 1]))
    serve = page.blocks.pop(0)
    page.run()
    ids, folder = np.array([[5, 8, 0], [10**12, 0, 0]]), page.folder / "models" / "clicks"
    answers = tf.function(page.names["model"])(tf.constant(ids)).numpy()
    with StockProcess() as stock:
        assert stock.run(serve) == str(tf.constant(answers)) + "\n"
        (same,) = stock.call(f"{folder}/2", [ids])
        (byte,) = stock.call(f"{folder}/3", [ids])
    np.testing.assert_array_equal(same, answers)
    np.testing.assert_allclose(byte, answers, atol=0.01)


def tiers(page: Page) -> None:
    rng = np.random.default_rng(SEED)
    ids, labels = rng.integers(0, 1000, [500, 2]), rng.normal(size=[500, 1])
    pair = {"user": ids[:, 0], "item": ids[:, 1]}
    of_one, of_two = (
        tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(50) for inputs in (ids, pair)
    )
    page.run(1, tf_embed=tf_embed)
    assert not os.path.exists(page.folder / "nvme")  # before the layer is built
    layer, storage = page.names["layer"], page.names["storage"]
    model = keras.Sequential(
        [keras.Input([2], dtype="int64"), layer, keras.layers.Flatten(), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", jit_compile=False)
    page.run(2, model=model, dataset=of_one)

    layers = {name: DynamicEmbedding(4, optimizer="adagrad", storage=storage) for name in pair}
    page.run(1, dataset=of_two, **{f"{name}_layer": one for name, one in layers.items()})
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in pair}
    rows = keras.layers.Concatenate()([layers[name](inputs[name]) for name in pair])
    two = keras.Model(inputs, keras.layers.Dense(1)(rows))
    two.compile("sgd", "mse", jit_compile=False)
    two.fit(page.names["dataset"], verbose=0)

    page.run(dataset=of_one)
    assert os.listdir("logs")
    (report,) = re.findall(r"```\n'items'.*(A row takes .*)", page.text)
    assert report in page.printed


def from_keras(page: Page) -> None:
    """The table has all arguments of keras.layers.Embedding, and its code runs."""
    page.run()
    rows = rows_of(page.text)
    matrix = np.ones([1000, 16])
    for row in rows:
        if row.ours == "not there":
            for name in code_in(row.theirs):
                with pytest.raises(ValueError, match=f"`{name}` is not supported"):
                    DynamicEmbedding(2, **{name: 4})
        else:
            (code,) = code_in(row.ours)
            execute(code, page.name, {"DynamicEmbedding": DynamicEmbedding, "matrix": matrix})
            assert all(name in code or "_dim" in name for name in code_in(row.theirs))
    arguments = {name for row in rows for name in code_in(row.theirs)}
    theirs = set(inspect.signature(keras.layers.Embedding.__init__).parameters)
    assert arguments >= theirs - {"self", "kwargs"}


def troubleshooting(page: Page) -> None:
    """In each section, the first block raises the section's heading, and the second block works."""
    page.run(1)
    for section in page.text.split("\n## ")[1:]:
        if blocks := blocks_of(section):
            assert len(blocks) == 2
            with pytest.raises((TypeError, ValueError, tf.errors.OpError)) as raised:
                page.run(1)
            assert section.partition("\n")[0] in str(raised.value)
            page.run(1)


# The pages of docs/ with code: the number of Python blocks, and the function that runs the page.
PAGES: dict[str, tuple[int, Callable[[Page], None]]] = {
    "index.md": (1, Page.run),
    "quickstart.md": (3, Page.run),
    "guides/control_flow.md": (1, Page.run),
    "guides/custom_loops.md": (4, Page.run),
    "guides/eviction.md": (4, Page.run),
    "guides/from_keras_embedding.md": (9, from_keras),
    "guides/gpu.md": (4, gpu),
    "guides/inspect.md": (2, inspect_saves),
    "guides/redis.md": (3, redis),
    "guides/saving_and_serving.md": (5, Page.run),
    "guides/serving.md": (3, serving),
    "guides/snapshots.md": (4, snapshots),
    "guides/static_export.md": (4, static_export),
    "guides/strings.md": (1, Page.run),
    "guides/table_batched.md": (3, Page.run),
    "guides/tiers.md": (7, tiers),
    "guides/training.md": (7, Page.run),
    "guides/troubleshooting.md": (25, troubleshooting),
    "migrating/from_fbgemm.md": (2, Page.run),
    "migrating/from_oneembedding.md": (2, Page.run),
    "migrating/from_sok.md": (2, Page.run),
    "migrating/from_tfra.md": (2, Page.run),
}
# Pages whose code starts processes, and the tests that run it.
IN_PROCESSES = {
    "guides/servers.md": "servers_test.py",
    "guides/workers.md": "workers_doc_test.py",
}


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


ROWS = {page: rows_of(text_of(page)) for page in MIGRATIONS}


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """A new folder for each test, without variables of other tests."""
    monkeypatch.chdir(tmp_path)
    yield
    for name in ("v", "users"):
        tfra.forget_variable(name)


@pytest.mark.parametrize("name", PAGES)
def test_each_block_of_a_page_runs(name, tmp_path):
    count, run = PAGES[name]
    page = Page(name, tmp_path)
    assert len(page.blocks) == count
    run(page)
    assert page.blocks == []


def test_every_page_with_code_is_tested():
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert {page for page in pages if blocks_of(text_of(page))} == {*PAGES, *IN_PROCESSES}
    for page, file in IN_PROCESSES.items():
        assert page.rpartition("/")[2] in (TESTS / "processes" / file).read_text()


def test_a_block_keeps_its_lines(tmp_path):
    page = Page("index.md", tmp_path)
    page.blocks = blocks_of("# A page\n\n```python\nx = 1\nprint(x)  # 2\n```\n")
    with pytest.raises(AssertionError, match=r"docs/index.md:5 prints \['1'\]"):
        page.run()
    page.blocks = blocks_of("# A page\n\n```python\nx = 1\nprint(y)\n```\n")
    with pytest.raises(NameError) as raised:
        page.run()
    assert (raised.traceback[-1].path, raised.traceback[-1].lineno + 1) == (DOCS / "index.md", 5)


@pytest.mark.parametrize(
    ("page", "row"),
    [pytest.param(page, row, id=f"{page}:{row.line}") for page in ROWS for row in ROWS[page]],
)
def test_a_row_of_a_table_is_so(page, row, tmp_path):
    migration, names = MIGRATIONS[page], code_in(row.theirs)
    if row.ours == "not there":
        assert row.differs
        assert not any(migration.has(name) for name in names), names
        return
    (code,) = code_in(row.ours)
    assert row.ours == f"`{code}`"
    common = {"keras": keras, "tf": tf, "tf_embed": tf_embed}
    execute("\n" * (row.line - 1) + code, page, common | migration.names_for(str(tmp_path)))
    for name in names:
        if name.startswith(migration.prefix) and name not in migration.replaced.split():
            assert re.search(rf"\b{re.escape(name)}\b", code) or migration.has(name), name


@pytest.mark.parametrize("page", ROWS)
def test_every_documented_name_has_a_row(page):
    assert len(ROWS[page]) > (40 if page == TFRA else 20)
    said = {name for row in ROWS[page] for name in code_in(row.theirs)}
    assert MIGRATIONS[page].documented - said == set()


def test_rows_and_missing_names_are_noticed():
    table = "| TFRA | tf_embed | x |\n|---|---|---|\n| `a`, `b` | `c(1)` | so |\n"
    assert rows_of(table) == [Row(3, "`a`, `b`", "`c(1)`", "so")]
    assert code_in("`a`, `b`") == ["a", "b"]
    assert not MIGRATIONS[TFRA].has("de.Variables")
    assert not MIGRATIONS[TFRA].has("de.keras.layers.Nothing")
    assert MIGRATIONS[TFRA].has("de.keras.layers.Embedding")
    assert all(code_in(row.theirs) for row in ROWS[TFRA])


def test_a_field_of_tfra_that_is_taken_changes_the_server(tmp_path):
    names = MIGRATIONS[TFRA].names_for(str(tmp_path))
    codes = {row.ours.strip("`") for row in ROWS[TFRA] if "`config(" in row.ours}
    taken = {code for code in codes if ")." in code}
    assert len(taken) == 12
    for code in taken:
        default = getattr(tf_embed.RedisServer(), code.rpartition(".")[2])
        assert eval(code, names) != default, code
    for code in codes - taken:
        assert eval(code, names) == tf_embed.RedisServer(), code
    with pytest.raises(ValueError, match=r"must have these fields: .*Received: redis_hosts"):
        names["config"](redis_hosts=["10.0.0.7"])


def test_what_the_page_of_tfra_calls_refused_is_refused():
    v = tfra.Variable(dim=2, name="v")
    for wrong, words in (
        (lambda: v.save_to_file_system("saved", append_to_file=True), "`append_to_file`"),
        (lambda: tf_embed.Variable(value_dtype=tf.int32, initializer=0.1), "whole number"),
        (lambda: tfra.TimestampRestrictPolicy(v), "restrict_policy=Timestamp"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()


def test_what_a_shadow_of_tfra_lacks_is_not_there():
    shadow = tfra.shadow_ops.ShadowVariable(tf_embed.Variable(dim=2))
    assert shadow.value.shape == (0, 2)
    for name in ("ids", "exists", "read_value", "prefetch_values", "size"):
        assert not hasattr(shadow, name), name
        assert f"`{name}`" in text_of(TFRA)


def test_the_numbers_of_snapshots_are_those_of_the_code():
    log = (ROOT / "cc" / "core" / "store" / "change_log.h").read_text()
    assert "kMaxLeft = size_t{1} << 24" in log
    assert "kMaxMarks = 64" in log
    assert "16 million keys and 64 snapshots at most" in text_of("guides/snapshots.md")


def test_the_bounds_of_rounding_are_those_of_the_code():
    for kind, code, words in (
        (quantization.HalfFormat, "|w| / 2048 + 2**-25", "abs(w) / 2048 + 2^-25"),
        (quantization.ByteFormat, "/ 510 + 2**-21 * greatest |w|", "/ 510 + 2^-21 * (greatest"),
    ):
        assert code in " ".join(kind.__doc__.split())
        assert words in text_of("guides/static_export.md")


def test_what_the_page_of_tiers_names_is_there():
    text = text_of("guides/tiers.md")
    layer = DynamicEmbedding(4)
    layer.build([None])
    names = re.findall(r"`((?:layer|variable)\.[a-z_.]+)\(", text)
    assert "layer.variable.table.shrink" in names
    for name in names:
        kind, _, rest = name.partition(".")
        root = {"layer": layer, "variable": layer.variable}[kind]
        assert callable(operator.attrgetter(rest)(root)), name
    (metrics,) = re.findall(r"\| name \| meaning.*?\n\n", text, re.DOTALL)
    first = " ".join(line.split("|")[1] for line in metrics.splitlines()[2:] if line)
    assert set(code_in(first)) <= set(layer.variable.stats())
    arguments = re.findall(r"^\| `([a-z_]+)` \| ", text.split("## Prefetch")[0], re.MULTILINE)
    assert sorted(arguments) == sorted(tf_embed.Storage.__dataclass_fields__)


def test_messages_at_import_are_those_of_the_code():
    code = (ROOT / "tf_embed" / "_library.py").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", text_of("guides/troubleshooting.md"), re.MULTILINE)
    assert len(messages) == 3
    for message in messages:
        assert message in code, message
