# SPDX-License-Identifier: Apache-2.0
"""The warning about tables that a traced step looks up and no optimizer trains."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_embed
from support.cases.replicas import CPUS
from tf_embed.tfra import shadow_ops
from tf_embed.variable import anchor_tokens

DIM = 2
IDS = np.arange(8, dtype=np.int64)
LABELS = np.ones([8, 1], np.float32)
BARE = "Table 'bare' was looked up in a training step, but no optimizer has it"


def messages_of(action: Callable[[], Any]) -> list[str]:
    """The warnings about untrained tables."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # by default, Python drops repeated warnings
        action()
    return [str(one.message) for one in caught if "was looked up in a training" in str(one.message)]


def table(name: str = "bare", **settings: Any) -> tf_embed.Variable:
    return tf_embed.Variable(dim=DIM, name=name, **settings)


def sgd() -> tf_embed.DynamicEmbeddingOptimizer:
    return tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))


class Model(keras.Model):
    """Looks up in a variable that is an attribute."""

    def __init__(self, variable: Any, lookup: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.table = variable
        self.lookup = lookup or tf_embed.embedding_lookup
        self.out = keras.layers.Dense(1)

    def call(self, ids: Any) -> Any:
        return self.out(self.lookup(self.table, ids))


def compiled(model: keras.Model, **settings: Any) -> keras.Model:
    model.compile(sgd(), "mse", **settings)
    return model


def fit(model: keras.Model, **settings: Any) -> Any:
    return model.fit(IDS, LABELS, batch_size=2, verbose=0, **settings)


def loss_of(*variables: tf_embed.Variable) -> tf.Tensor:
    rows = [tf_embed.embedding_lookup(one, IDS) for one in variables]
    return tf.reduce_sum(tf.add_n(rows))


@pytest.mark.smoke
def test_fit_warns_once_of_a_variable_that_is_an_attribute():
    model = compiled(Model(table()))
    (message,) = messages_of(lambda: fit(model, epochs=2))
    assert message.startswith(BARE)
    assert "use tf_embed.layers.DynamicEmbedding, or give" in message
    assert int(model.table.size()) == 0  # as the warning says


@pytest.mark.parametrize(
    "settings",
    [
        {"jit_compile": False},
        {"jit_compile": "auto"},
        {"steps_per_execution": 2},
    ],
)
def test_settings_of_compile_do_not_hide_it(settings):
    model = compiled(Model(table()), **settings)
    assert len(messages_of(lambda: fit(model))) == 1


def test_a_mirrored_strategy_does_not_hide_it():
    with tf.distribute.MirroredStrategy(CPUS[:1]).scope():
        model = compiled(Model(table()))
    assert len(messages_of(lambda: fit(model))) == 1


@pytest.mark.parametrize(
    "lookup",
    [
        tf_embed.embedding_lookup_unique,
        lambda variable, ids: tf_embed.embedding_lookup_sparse(
            variable, tf.RaggedTensor.from_tensor(ids[:, tf.newaxis]).to_sparse(), None
        ),
        tf.function(tf_embed.embedding_lookup),
        lambda variable, ids: tf.map_fn(
            lambda one: tf_embed.embedding_lookup(variable, one), ids, tf.float32
        ),
    ],
    ids=["unique", "sparse", "function", "loop"],
)
def test_each_kind_of_lookup_is_seen(lookup):
    model = compiled(Model(table(), lookup))
    assert len(messages_of(lambda: fit(model))) == 1


def test_the_warning_is_of_the_line_that_applies():
    bare, other = table(), keras.Variable(1.0)
    optimizer = sgd()

    @tf.function(autograph=False)
    def step() -> None:
        loss_of(bare)
        optimizer.apply([tf.constant(1.0)], [other])

    with pytest.warns(UserWarning, match=BARE) as caught:
        step()
    assert caught[0].filename == __file__


def test_each_table_and_each_optimizer_warns():
    tables = [table(), table("second")]
    dense = keras.Variable(1.0)

    def step(optimizer: Any) -> None:
        loss_of(*tables)
        optimizer.apply([tf.constant(1.0)], [dense])

    for _ in range(2):
        found = messages_of(lambda: tf.function(step)(sgd()))
        assert sorted(one.split("'")[1] for one in found) == ["bare", "second"]


def test_a_step_that_is_traced_again_does_not_warn_again():
    model = compiled(Model(table()))
    assert len(messages_of(lambda: fit(model))) == 1
    model.make_train_function(force=True)
    assert not messages_of(lambda: fit(model))


def layer_model() -> keras.Model:
    return keras.Sequential([tf_embed.layers.DynamicEmbedding(DIM), keras.layers.Dense(1)])


def frozen_layer_model() -> keras.Model:
    model = layer_model()
    model.layers[0].trainable = False
    return model


def own_optimizer_model() -> keras.Model:
    return keras.Sequential(
        [tf_embed.layers.DynamicEmbedding(DIM, optimizer="sgd"), keras.layers.Dense(1)]
    )


def model_with_anchor() -> keras.Model:
    """A model with the anchor as a weight, in addition to the variable."""
    model = Model(table())
    model.anchor = model.table.anchor
    return model


def model_of_tracked_shadow() -> keras.Model:
    """A model that trains the table by another anchor than its lookup uses."""
    variable = table()
    model = Model(tf_embed.tfra.shadow_ops.ShadowVariable(variable, name="shadow"))
    model.anchor = variable.anchor
    return model


def model_with_frozen_anchor() -> keras.Model:
    variable = table()
    variable.anchor.trainable = False
    return Model(variable)


@pytest.mark.parametrize(
    "make",
    [
        layer_model,
        frozen_layer_model,
        own_optimizer_model,
        model_with_anchor,
        model_with_frozen_anchor,
        model_of_tracked_shadow,
        lambda: Model(table(trainable=False)),
        lambda: Model(table(), lambda variable, ids: variable.lookup(ids)),
    ],
    ids=["layer", "frozen layer", "own", "anchor", "frozen", "shadow", "not trainable", "read"],
)
def test_right_models_do_not_warn(make):
    model = compiled(make())
    assert not messages_of(lambda: fit(model))


def test_evaluation_does_not_warn():
    model = compiled(Model(table()))
    assert not messages_of(lambda: (model.evaluate(IDS, LABELS, verbose=0), model.predict(IDS)))


def test_a_loop_that_names_the_anchors_does_not_warn():
    first, second = table("first"), table("second")
    optimizer = sgd()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(first, second)
        variables = [*first.trainable_variables, *second.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    assert not messages_of(step)
    assert int(second.size()) == len(IDS)


def test_tables_of_another_optimizer_do_not_warn():
    first, second = table("first"), table("second")
    of_first, of_second = sgd(), sgd()
    of_second.build(second.trainable_variables)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(first, second)
        gradients = tape.gradient(loss, [first.anchor, second.anchor])
        of_first.apply(gradients[:1], [first.anchor])
        of_second.apply(gradients[1:], [second.anchor])

    assert not messages_of(step)
    assert (int(first.size()), int(second.size())) == (len(IDS), len(IDS))


def train_first(optimizer: Any, first: Any, second: Any) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(first, second)
    optimizer.apply(tape.gradient(loss, [first.anchor]), [first.anchor])


def test_an_eager_step_does_not_warn():
    assert not messages_of(lambda: train_first(sgd(), table("first"), table()))


def test_other_graphs_do_not_count():
    first, second = table("first"), table("second")
    read = tf.function(lambda: loss_of(second))
    optimizer = sgd()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(first)
        optimizer.apply(tape.gradient(loss, [first.anchor]), [first.anchor])

    assert not messages_of(lambda: (read(), step()))


def test_neither_graphs_nor_tables_are_kept():
    bare = table()
    graphs, counts = [], []

    optimizer, dense = sgd(), keras.Variable(1.0)

    def traced() -> None:
        def step() -> None:
            graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
            loss_of(bare)
            counts.append(len(anchor_tokens.anchors_of_step()))
            optimizer.apply([tf.constant(1.0)], [dense])

        tf.function(step, autograph=False).get_concrete_function()

    assert len(messages_of(traced)) == 1
    assert counts == [1]
    gc.collect()
    assert graphs[0]() is None
    kept = weakref.ref(bare.table)
    bare = None
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("is_function", [False, True])
def test_a_table_without_a_gradient_is_warned_of_once(is_function):
    bare, dense = table(), keras.Variable([1.0])
    frozen, reached = table("frozen"), table("reached")
    frozen.anchor.frozen = True
    shadows = [shadow_ops.ShadowVariable(one, name="shadow") for one in (bare, reached)]
    optimizer = sgd()
    sources = [dense, bare.anchor, frozen.anchor, reached.anchor, shadows[1]]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.convert_to_tensor(dense))
            for one in shadows:
                loss += tf.reduce_sum(shadow_ops.embedding_lookup(one, IDS))
        optimizer.apply_gradients(zip(tape.gradient(loss, sources), sources, strict=True))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            (tf.function(step) if is_function else step)()
    (message,) = [str(one.message) for one in caught if "Gradients do not" in str(one.message)]
    assert message.startswith("Gradients do not exist for tables ['bare'] when minimizing the loss")
    assert (int(bare.size()), int(reached.size())) == (0, len(IDS))


def test_a_traced_step_has_nothing_that_autograph_cannot_read():
    # AutoGraph warns about a function only once in a process.
    code = """
import keras, tensorflow as tf, tf_embed
v = tf_embed.Variable(dim=1)
optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.1))
@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf_embed.embedding_lookup(v, ids))
    optimizer.apply_gradients(zip(tape.gradient(loss, [v.anchor]), [v.anchor]))
step(tf.constant([1], tf.int64))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "AutoGraph" not in done.stderr + done.stdout
