# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers on tables: once for all replicas, and not for frozen tables."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_embed.sharded.worker_table import gradients_to_owners
from tf_embed.table.joined import joined_steps
from tf_embed.variable.anchor import Anchor


@dataclasses.dataclass(frozen=True)
class TableGradient:
    """The gradient of a table in a step.

    Attributes:
        anchor: The anchor whose gradient it is.
        trainer: The `TableTrainer` of the table, or the trainer of its own optimizer.
        keys: [n].
        values: [n, dim].
        is_summed: Whether keys are distinct, and only the rule is left to run.
    """

    anchor: Anchor
    trainer: Any
    keys: tf.Tensor
    values: tf.Tensor
    is_summed: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the table has its own optimizer, which counts its steps itself."""
        return self.anchor.own_trainer is not None


def train_all(gradients: Sequence[TableGradient], scale: Any = 1.0) -> None:
    """Makes a step of each table, with the gradients of all replicas of a strategy.

    All replicas share a table, so a step in each replica would be several steps.

    Args:
        gradients: The gradients of this replica, at most one for each table.
        scale: The factor of the loss.
    """
    if not gradients:
        return
    keys, values = [one.keys for one in gradients], [one.values for one in gradients]
    context = tf.distribute.get_replica_context()
    # MultiWorkerMirroredStrategy assigns variables in a merge call, also if there is one worker.
    on_workers = isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy)
    # Outside of replicas this already runs once.
    if context is None or (context.num_replicas_in_sync == 1 and not on_workers):
        _train_owned(gradients, keys, values, scale)
        return

    def merged(strategy: tf.distribute.Strategy, *all_tensors: Any) -> None:
        all_keys, all_values = tf.nest.map_structure(
            lambda tensor: tf.concat(strategy.experimental_local_results(tensor), 0), all_tensors
        )
        _train_owned(gradients, all_keys, all_values, scale)

    # The replicas wait here, and `merged` runs once for all of them.
    context.merge_call(merged, args=(keys, values))


def _train_owned(
    gradients: Sequence[TableGradient],
    all_keys: list[tf.Tensor],
    all_values: list[tf.Tensor],
    scale: Any,
) -> None:
    """Makes the steps with the keys that this process owns, unless a table is frozen."""
    tables = [one.anchor.table_of_keys for one in gradients]
    owned = zip(gradients, *gradients_to_owners(tables, all_keys, all_values), strict=True)
    with joined_steps():
        for gradient, keys, values in owned:
            trainer, is_trained = gradient.trainer, gradient.anchor.is_trained
            step = functools.partial(_train, gradient, keys, values, scale)
            if not gradient.is_own and trainer.counts_frozen_steps:
                step()  # a frozen table has no keys
            elif trainer.accepts_frozen_flag:
                # A condition of TensorFlow has a switch for each tensor that it captures. An input
                # of the op is cheaper.
                step(is_trained)
            else:
                run_if(is_trained, step)
            # The optimizer of a model counts its step once, for all tables without their own
            # optimizer.
            if gradient.is_own:
                trainer.advance(is_trained)


def _train(
    gradient: TableGradient,
    keys: tf.Tensor,
    values: tf.Tensor,
    scale: Any,
    unless_frozen: tf.Tensor | None = None,
) -> None:
    trainer = gradient.trainer
    if gradient.is_summed:
        trainer.train_sums(keys, values, unless_frozen)
    else:
        trainer.train(keys, values, scale, unless_frozen)


# Per thread, because steps of other threads must not be deferred.
class _Local(threading.local):
    deferred: list[TableGradient] | None = None
    compiles_dense: bool = False


_local = _Local()


@contextlib.contextmanager
def deferred_updates() -> Iterator[None]:
    """Defers steps of tables with their own optimizer to the end of the block.

    Keras requests them one at a time. Together they need one exchange between workers.
    """
    before, _local.deferred = _local.deferred, []
    try:
        yield
        # Not reached if the block raises: a step that failed trains none of its tables.
        make_deferred_updates()
    finally:
        _local.deferred = before


def make_deferred_updates() -> None:
    """Makes the steps that have been deferred so far, before code that may read the tables."""
    gradients = _local.deferred
    if gradients:
        _local.deferred = []
        train_all(gradients)


@contextlib.contextmanager
def compiled_dense_steps() -> Iterator[None]:
    """Lets XLA compile the block's steps of dense variables by optimizers that train tables too."""
    before, _local.compiles_dense = _local.compiles_dense, True
    try:
        yield
    finally:
        _local.compiles_dense = before


def dense_step(step: Callable[[], Any]) -> None:
    """Makes a step of dense variables, compiled in `compiled_dense_steps`."""
    if _local.compiles_dense:
        step = tf.function(step, jit_compile=True, autograph=False)
    step()


class StepTrainer(tf.Module):
    """The base of trainers: the steps of a table's own optimizer."""

    def check_strategy(self) -> None:
        """Refuses a strategy whose replicas can't train the table together.

        Raises:
            NotImplementedError: If a subclass does not define this method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have `check_strategy`, which refuses the strategies that "
            "its optimizer can't train tables under: define it, or inherit from TableTrainer."
        )

    def step(self, anchor: Anchor, keys: tf.Tensor, gradients: tf.Tensor) -> None:
        """Makes a step, in `deferred_updates` at the end of the block; see `anchor.Trainer`."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            self.check_strategy()
        gradient = TableGradient(anchor, self, keys, gradients)
        if _local.deferred is None:
            train_all([gradient])
        else:
            _local.deferred.append(gradient)


def run_if(condition: Any, action: Callable[[], None]) -> None:
    """Runs an action now, or in the graph, if a bool scalar is true."""

    # Both branches of a tf.cond must return the same outputs, and `action` returns none.
    def run() -> tf.Tensor:
        action()
        return tf.constant(True)

    tf.cond(tf.convert_to_tensor(condition), run, lambda: tf.constant(False))
