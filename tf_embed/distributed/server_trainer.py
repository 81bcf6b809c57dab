# SPDX-License-Identifier: Apache-2.0
"""`ParameterServerTrainer`: trains a Keras model with parameter servers.

Keras 3 has no `fit` for a ParameterServerStrategy. A step is a function that the coordinator runs
on any worker. Steps run concurrently and asynchronously.
"""

from __future__ import annotations

import ctypes
import dataclasses
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.distributed.server_checkpoints import ServerCheckpoints, TrainingState, keep_rows
from tf_embed.distributed.servers import server_errors
from tf_embed.distributed.step_metrics import StepMetrics
from tf_embed.distributed.worker_calls import WorkerCalls
from tf_embed.distributed.worker_datasets import DatasetFunction, WorkerDatasets
from tf_embed.sharded.servers import servers_of
from tf_embed.table import step_tokens

# Maximum number of steps per worker that are queued, running, or not yet fetched.
_STEPS_OF_WORKER = 4


@dataclasses.dataclass
class _Totals:
    """The totals over the steps of an epoch.

    Attributes:
        loss: The sum of each step's loss times the rows of its batch.
        rows: The rows of all batches.
        metrics: The contributions to the states of the model's metrics.
    """

    loss: float = 0.0
    rows: float = 0.0
    metrics: list[np.ndarray] | None = None

    def add(self, loss: Any, rows: Any, metrics: Sequence[Any]) -> None:
        """Adds the results of a step."""
        self.loss += float(loss) * float(rows)
        self.rows += float(rows)
        arrays = [np.asarray(one) for one in metrics]
        if self.metrics is None:
            # In double, because float32 would lose small additions to large sums.
            self.metrics = [one.astype(np.float64) for one in arrays]
        else:
            for total, one in zip(self.metrics, arrays, strict=True):
                total += one


class ParameterServerTrainer:
    """Trains a Keras model on the workers of a tf.distribute.ParameterServerStrategy.

    The servers hold the model's dense variables and the rows of its tables. A worker reads the
    values that a batch needs, computes gradients, and sends them. Each server applies the gradients
    of its rows in a single op. Workers do not wait for each other. If a worker dies, its step runs
    again on another worker. Tables apply a step once, no matter how often it runs. A worker that is
    restarted at the same address joins again.

    A new trainer resumes from the newest checkpoint in `checkpoint_dir`. A server that was not
    restarted keeps its rows, which may be newer. A restarted server gets the rows of the
    checkpoint. Dense variables are always restored from the checkpoint.

    Several trainers may train the same tables in turn, but not at the same time: tables drop the
    steps of a trainer that arrive after another trainer's later call of `fit`.

    Metrics must have additive states, such as means, sums and confusion matrices. Each step returns
    its contribution, and the chief sums the contributions. A layer must update its metrics outside
    of loops, conditions and tf.functions. Other updates are not counted, and a warning is logged.

    Args:
        model: A compiled model that was made, built and compiled in the scope of the strategy.
        checkpoint_dir: A folder for checkpoints, shared by all processes. The first checkpoint is
            written before the first step. Default: no checkpoints.
        save_every: Steps between checkpoints, an int from 1. Default: a checkpoint at the end of
            each epoch.
        keep: Number of checkpoints to keep, an int from 1.

    Attributes:
        model: The model.
        steps: Number of steps so far.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If the model is not compiled, was not made under such a strategy, or an argument
            is out of range.

    Example, of the function `train` of `run_with_servers`:
        >>> def train(strategy):
        ...     with strategy.scope():
        ...         embedding = tf_embed.layers.DynamicEmbedding(8, optimizer="adagrad")
        ...         model = keras.Sequential([embedding, keras.layers.Dense(1)])
        ...         model.compile("sgd", "mse")
        ...     trainer = tf_embed.distributed.ParameterServerTrainer(model)
        ...     return trainer.fit(dataset, epochs=2)
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        save_every: int | None = None,
        keep: int = 2,
    ) -> None:
        if not isinstance(model, keras.Model):
            raise TypeError(
                f"`model` must be a keras.Model. Received: model={validation.shown(model)}"
            )
        strategy = model.distribute_strategy
        if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
            raise ValueError(
                "`model` must be made in the scope of a tf.distribute.ParameterServerStrategy. "
                f"Received: a model of {type(strategy).__name__}"
            )
        if not model.compiled:
            raise ValueError(
                f"`model` must be compiled. Received: {model.name!r}, which is not compiled"
            )
        if save_every is not None:
            validation.int_in(save_every, "save_every")
            if checkpoint_dir is None:
                raise ValueError(
                    "`save_every` is for a trainer with a `checkpoint_dir`. Received: "
                    f"save_every={save_every}"
                )
        validation.int_in(keep, "keep")
        self.model = model
        self._strategy = strategy
        self._servers = servers_of(strategy)
        self._coordinator = _coordinator_of(strategy)
        self._save_every = save_every
        self._state = TrainingState()
        self._compiled: list[Any] | None = None
        self._step_function: Any = None
        self._own_step_function: Any = None
        self._test_function: Any = None
        self._generation = 0
        self._has_begun = False
        self._checkpoints: ServerCheckpoints | None = None
        if checkpoint_dir is not None:
            folder = validation.path_of(checkpoint_dir, "checkpoint_dir")
            self._checkpoints = ServerCheckpoints(folder, model, self._servers, keep)

    @property
    def steps(self) -> int:
        """Number of steps so far, including the steps of earlier chiefs."""
        return self._state.steps

    def fit(
        self,
        x: tf.data.Dataset | DatasetFunction,
        *,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation_data: tf.data.Dataset | None = None,
        validation_steps: int | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains the model. Resumes from the newest checkpoint if there is one.

        If `x` is a dataset, the chief reads it and sends each batch to a worker. Each batch is
        trained once in a pass over the dataset, in roughly its order. A new chief skips the batches
        that its checkpoint has trained, so the dataset must have the same order each time.

        If `x` is a function, each worker reads its own dataset, and batches may be trained more
        than once. A step that a worker did not finish runs again with another worker's batch. A
        restarted worker, or a new chief, begins with the first batch.

        Callbacks run on the chief. A callback after a batch is called when the batch's result
        arrives, while workers train later batches. If a callback stops training within an epoch,
        the running steps still end, and the epoch counts as complete. Checkpoints at the end of an
        epoch are written after its callbacks.

        If the model was compiled again, in the scope of the strategy, this trains with its new
        optimizer, loss and metrics. A new chief is at the first `compile` of its program again. If
        its checkpoint is of a later `compile` with other optimizer variables, the model's variables
        are restored, the optimizer's are re-initialized, and a warning is logged.

        Args:
            x: A dataset of batches, as (x, y) or (x, y, sample_weight). Or a function that returns
                the dataset of a worker. Its arguments are the worker's number, an int64 scalar
                tensor, and the number of workers, an int. The function is traced on the chief and
                runs on each worker. The dataset begins again at its end.
            epochs: The number of the last epoch, an int from 1, counting epochs of earlier chiefs.
            steps_per_epoch: Batches per epoch, over all workers. Default: the whole dataset, which
                must be finite. Required if `x` is a function.
            validation_data: A dataset to evaluate after each epoch.
            validation_steps: Number of its batches to evaluate. Default: all.
            callbacks: Keras callbacks.
            verbose: As in Keras's `fit`.

        Returns:
            The history of losses and metrics in the epochs of this call, as from Keras's `fit`.

        Raises:
            ServerLostError: If a server has died, or a step has lost its connection to a server.
            RuntimeError: If a server has lost rows, and no checkpoint has them.
            TypeError: If an argument has a wrong type.
            ValueError: If an argument is out of range, a dataset has no batch, or `x` is a function
                that uses an existing dataset.
        """
        if not callable(x):
            _check_dataset(x, "x")
        elif steps_per_epoch is None:
            raise ValueError(
                "`steps_per_epoch` must be given if `x` is a function. Received: "
                "steps_per_epoch=None"
            )
        validation.int_in(epochs, "epochs")
        if steps_per_epoch is not None:
            validation.int_in(steps_per_epoch, "steps_per_epoch")
        if validation_data is not None:
            _check_dataset(validation_data, "validation_data")
        if validation_steps is not None:
            validation.int_in(validation_steps, "validation_steps")
        own = None
        with server_errors(self._servers):
            if callable(x):
                own = WorkerDatasets(x, self._coordinator, self._servers)
            self._prepare(x if own is None else own)
            self._begin()
            # Another trainer of the same tables may have trained since the last call.
            self._generation = self._servers.begin_generation()
        model, state = self.model, self._state
        called = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            add_progbar=verbose != 0,
            verbose=1 if verbose == "auto" else verbose,
            epochs=epochs,
            steps=steps_per_epoch,
            model=model,
        )
        model.stop_training = False
        called.on_train_begin()
        with server_errors(self._servers):
            batches: _Batches | _OwnBatches
            if own is not None:
                assert steps_per_epoch is not None  # as checked above
                batches = _OwnBatches(own, steps_per_epoch, state)
            else:
                batches = _Batches(x, steps_per_epoch, state)
            while state.epoch < epochs and not model.stop_training:
                called.on_epoch_begin(state.epoch)
                logs = self._train_epoch(batches.of_epoch(), steps_per_epoch, called, own)
                if validation_data is not None:
                    results = self._evaluate(validation_data, validation_steps)
                    logs.update({f"val_{name}": value for name, value in results.items()})
                epoch, state.epoch, state.steps_of_epoch = state.epoch, state.epoch + 1, 0
                if steps_per_epoch is None:
                    state.batch = 0  # a pass has ended
                called.on_epoch_end(epoch, logs)
                if state.epoch >= epochs or model.stop_training:
                    state.batch = 0  # the next call of `fit` may have other data
                if self._checkpoints is not None:
                    self._checkpoints.save(state)
        called.on_train_end()
        return model.history

    def evaluate(self, x: tf.data.Dataset, *, steps: int | None = None) -> dict[str, Any]:
        """Computes the loss and the metrics of a dataset on the workers.

        Args:
            x: A dataset of batches, as (x, y) or (x, y, sample_weight).
            steps: Number of its batches to evaluate. Default: all.

        Returns:
            The loss and the metrics, by name. Each is a float, or an array if a metric has several
            values.

        Raises:
            ServerLostError: If a server has died, or a step has lost its connection to a server.
            TypeError: If an argument has a wrong type.
            ValueError: If an argument is out of range, or the dataset has no batch.
        """
        _check_dataset(x, "x")
        if steps is not None:
            validation.int_in(steps, "steps")
        with server_errors(self._servers):
            self._prepare(x)
            self._begin()
            return self._evaluate(x, steps)

    # Helpers.

    def _prepare(self, x: tf.data.Dataset | WorkerDatasets) -> None:
        """Builds the model, its optimizer and its metrics from the first batch, on the chief.

        Does nothing if it was already called after the last `compile`.
        """
        if self._compiled is not None and _is_same(self._compiled, _compiled_parts(self.model)):
            return
        if isinstance(x, WorkerDatasets):
            batch = x.first_batch()
        else:
            batch = next(iter(x.take(1)), None)
        if batch is None:
            raise ValueError("`x` must have a batch. Received: a dataset without any")
        model = self.model
        features, target, weight = keras.utils.unpack_x_y_sample_weight(batch)
        # In the scope, so that variables are created on the servers. Here, because a step on a
        # worker must not create any.
        with self._strategy.scope():
            predicted = model(features, training=False)
            model.compute_loss(features, target, predicted, weight, training=False)
            model.compute_metrics(features, target, predicted, weight)
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        model.reset_metrics()
        self._step_function = tf.function(self._train_step)
        self._own_step_function = tf.function(self._train_own_step)
        self._test_function = tf.function(self._test_step)
        self._compiled = _compiled_parts(model)

    def _begin(self) -> None:
        """Restores the newest checkpoint, or writes a first one. Later calls do nothing."""
        if self._has_begun:
            return
        if self._checkpoints is not None:
            restored = self._checkpoints.restore()
            if restored is None:  # a server may die before the next checkpoint
                self._checkpoints.save(self._state)
            self._state = restored or self._state
        else:
            ServerCheckpoints.check_rows(self.model, self._servers)
        keep_rows(self.model)  # the servers now have the rows
        self._has_begun = True

    def _train_own_step(self, iterator: Any) -> Any:
        # No token: a repeated step has another batch, which all servers must apply.
        return self._train_step(next(iterator), [])

    def _train_step(self, batch: Any, token: Any) -> Any:
        model = self.model

        def replica(batch: Any, token: Any) -> Any:
            features, target, weight = keras.utils.unpack_x_y_sample_weight(batch)
            variables = model.trainable_variables
            with step_tokens.with_tokens(token):
                with tf.GradientTape() as tape:
                    result = self._called(features, target, weight, training=True)
                    scaled = model.optimizer.scale_loss(result[0])
                model.optimizer.apply(tape.gradient(scaled, variables), variables)
            return result

        return self._strategy.run(replica, args=(batch, token))

    def _test_step(self, batch: Any) -> Any:
        def replica(batch: Any) -> Any:
            features, target, weight = keras.utils.unpack_x_y_sample_weight(batch)
            return self._called(features, target, weight, training=False)

        return self._strategy.run(replica, args=(batch,))

    def _called(self, features: Any, target: Any, weight: Any, *, training: bool) -> Any:
        """Returns the loss and rows of a batch, and its contribution to the metrics' states."""
        model = self.model
        # Workers that race on the same state would lose updates. So each step starts at zero, and
        # the chief sums the results. Losses of outputs and metrics of layers are among the metrics.
        with StepMetrics(self._metric_variables()) as metrics:
            predicted = model(features, training=training)
            loss = model.compute_loss(features, target, predicted, weight, training=training)
            model.compute_metrics(features, target, predicted, weight)
        rows = tf.shape(tf.nest.flatten(features)[0])[0]
        return loss, rows, metrics.contribution()

    def _metric_variables(self) -> list[keras.Variable]:
        return [one for metric in self.model.metrics for one in metric.variables]

    def _train_epoch(
        self,
        batches: Iterable[Any],
        steps_per_epoch: int | None,
        called: keras.callbacks.CallbackList,
        own: WorkerDatasets | None,
    ) -> Any:
        """Trains for an epoch and returns its results.

        Args:
            batches: The batch of each step, or an iterator on the workers that yields it.
            steps_per_epoch: Steps of a whole epoch, if known.
            called: The callbacks.
            own: The datasets, if workers read the batches.
        """
        state, totals = self._state, _Totals()
        begun = dataclasses.replace(state)  # as of the last step that a worker may have begun
        done = dataclasses.replace(state)  # as of the last step whose result was fetched
        calls: WorkerCalls[TrainingState] = (
            WorkerCalls(self._coordinator, self._servers) if own is None else own.calls()
        )
        logs: dict[str, Any] = {}

        def finish_one() -> None:
            after, result = calls.fetch()
            vars(done).update(vars(after))
            totals.add(*result)
            logs.update(self._results(totals, whole=False))
            called.on_train_batch_end(after.steps_of_epoch - 1, logs)

        def finish_all() -> None:
            while calls:
                finish_one()
            calls.settle()

        try:
            for batch in batches:
                # Without a limit the chief would read the whole dataset ahead of the workers.
                while len(calls) >= self._most_pending:
                    finish_one()
                if self.model.stop_training:
                    break
                called.on_train_batch_begin(state.steps_of_epoch)
                if own is not None:
                    function, arguments = self._own_step_function, [batch]
                else:
                    # All steps before `oldest` are over, so tables may forget their numbers.
                    oldest = state.steps - len(calls)
                    token = tf.constant([self._token(state.steps), self._token(oldest)], tf.int64)
                    function, arguments = self._step_function, [batch, [token]]
                state.steps += 1
                state.steps_of_epoch += 1
                begun = dataclasses.replace(state)
                calls.add(function, arguments, begun)
                # At the end of an epoch, the checkpoint is written after the callbacks.
                is_last = state.steps_of_epoch == steps_per_epoch
                if self._save_every and state.steps % self._save_every == 0 and not is_last:
                    # A checkpoint is taken between steps, so all running steps must end first.
                    finish_all()
                    if self.model.stop_training:
                        break
                    assert self._checkpoints is not None
                    self._checkpoints.save(state)
            finish_all()
        except Exception:
            # Drawn batches may be untrained, including the batches of failed steps.
            vars(state).update(vars(begun if calls.drop() else done))
            raise
        return self._results(totals, whole=True)

    def _token(self, step: int) -> int:
        """Returns a unique number of a step. Steps of later calls of `fit` have higher numbers."""
        return (self._generation << 40) + step

    @property
    def _most_pending(self) -> int:
        return _STEPS_OF_WORKER * self._servers.num_workers

    def _evaluate(self, x: tf.data.Dataset, steps: int | None) -> dict[str, Any]:
        totals = _Totals()
        calls: WorkerCalls[None] = WorkerCalls(self._coordinator, self._servers)
        try:
            for batch in x if steps is None else x.take(steps):
                while len(calls) >= self._most_pending:
                    totals.add(*calls.fetch()[1])
                calls.add(self._test_function, [batch], None)
            while calls:
                totals.add(*calls.fetch()[1])
            calls.settle()
        except Exception:
            calls.drop()
            raise
        return self._results(totals, whole=True)

    def _results(self, totals: _Totals, *, whole: bool) -> dict[str, Any]:
        """Returns the loss. Adds the metrics, which are slow to compute, for a whole epoch."""
        if not totals.rows:
            return {}  # an earlier chief has run all steps of the epoch
        results: dict[str, Any] = {"loss": totals.loss / totals.rows}
        if not whole or totals.metrics is None:
            return results
        for variable, total in zip(self._metric_variables(), totals.metrics, strict=True):
            variable.assign(total.astype(variable.dtype))
        of_model = self.model.get_metrics_result()
        of_model.pop("loss", None)
        for name, value in of_model.items():
            array = np.asarray(value)
            # Some metrics have a value for each class.
            results[name] = array.item() if array.ndim == 0 else array
        self.model.reset_metrics()
        return results


def _compiled_parts(model: keras.Model) -> list[Any]:
    """Returns the objects that `compile` creates again, such as the metric of the loss."""
    return [model.optimizer, model.loss, *model.metrics]


def _is_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _coordinator_of(strategy: tf.distribute.ParameterServerStrategy) -> Any:
    """Returns the coordinator of a strategy. TensorFlow keeps only one per strategy."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    # Leaks the coordinator on purpose: if a worker has died, its destructor blocks forever, even at
    # the exit of the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coordinator))
    return coordinator


class _Batches:
    """Yields the batches of successive epochs.

    Args:
        steps: Batches per epoch. None: the whole dataset.
        state: The progress of training. This class advances its `batch`.
    """

    def __init__(self, dataset: tf.data.Dataset, steps: int | None, state: TrainingState) -> None:
        self._dataset = dataset
        self._steps = steps
        self._state = state
        self._iterator: Iterator[Any] | None = None

    def of_epoch(self) -> Iterator[Any]:
        """Yields the remaining batches of the current epoch."""
        state = self._state
        if self._steps is None:
            for batch in self._dataset.skip(state.batch):
                state.batch += 1
                yield batch
            return
        for _ in range(self._steps - state.steps_of_epoch):
            batch = self._next()
            state.batch += 1
            yield batch

    def _next(self) -> Any:
        """Returns the next batch of a dataset that repeats, and continues across epochs."""
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._dataset.skip(self._state.batch))
            batch = next(self._iterator, None)
            if batch is not None:
                return batch
            self._iterator, self._state.batch = None, 0
        raise ValueError("`x` must have a batch. Received: a dataset without any")


class _OwnBatches:
    """Yields stand-ins for the batches that workers read, in successive epochs.

    Args:
        steps: Batches per epoch.
        state: The progress of training.
    """

    def __init__(self, datasets: WorkerDatasets, steps: int, state: TrainingState) -> None:
        self._iterator = datasets.iterator()
        self._steps = steps
        self._state = state

    def of_epoch(self) -> Iterator[Any]:
        """Yields the argument of each remaining step of the current epoch."""
        for _ in range(self._steps - self._state.steps_of_epoch):
            yield self._iterator


def _check_dataset(dataset: Any, argument: str) -> None:
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"`{argument}` must be a tf.data.Dataset. Received: {argument}="
            f"{validation.shown(dataset)}"
        )
