# SPDX-License-Identifier: Apache-2.0
"""Keras's `fit`, `evaluate` and `predict` under MultiWorkerMirroredStrategy.

Keras 3 alone fails under this strategy (keras-team/keras issue 20585). It concatenates the workers'
batches before it builds the model, and it reduces scalars along an axis that scalars lack.

With several workers, this module replaces these parts of Keras:

    the step functions      Keras's public `make_train_function` and `make_test_function`
    the first build         Keras's private `_maybe_symbolic_build`, the only private hook
    logs                    metrics over the rows of all workers, by an all-reduce per step
    the gradient of a loss  weighted by the rows of a worker, so that batches of unequal size count
                            as in a single process
    saving                  only the chief's files are kept. Workers make backups together, by the
                            counts of batches, which are private in Keras
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_embed.models import model
from tf_embed.models.joined_lookups import step_of
from tf_embed.models.model import ModelWithTables
from tf_embed.optimizers.steps import deferred_updates
from tf_embed.sharded import strategies, timeouts

_SUMS = {"sum", "none", None}
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


# The time-out of the current `fit` or `evaluate`. A process runs at most one call at a time.
_timeout = timeouts.RenewedTimeout()


class WorkerLostError(RuntimeError):
    """Another worker has died, or did not answer in time. This process can't continue training."""


def check_keras_hook(model: type = keras.Model) -> None:
    """Checks that Keras still has the private hook that `Model` overrides.

    Raises:
        RuntimeError: If Keras has changed it.
    """
    hook = getattr(model, "_maybe_symbolic_build", None)
    build = getattr(model, "_symbolic_build", None)
    expected = ["self", "iterator", "data_batch"]
    for function in (hook, build):
        if function is None or list(inspect.signature(function).parameters) != expected:
            raise RuntimeError(
                f"tf_embed.distributed.Model does not fit Keras {keras.__version__}, whose "
                "`_maybe_symbolic_build(iterator, data_batch)` has changed: use another Keras 3, "
                "such as 3.15, or a training loop of your own."
            )


@tf.custom_gradient
def _with_gradient_times(value: tf.Tensor, factor: tf.Tensor) -> Any:
    """Returns `value`, and multiplies its gradient by `factor`."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return upstream * tf.cast(factor, upstream.dtype), None

    return tf.identity(value), gradient


class _Follower(keras.callbacks.Callback):
    """BackupAndRestore on a worker other than the chief. It restores from the chief's files."""

    def __init__(self, backup: keras.callbacks.BackupAndRestore, folder: str):
        super().__init__()
        self._chiefs = backup
        # Saves as often as the chief, to a temporary folder: a layer may need all workers to save.
        self._own = keras.callbacks.BackupAndRestore(
            os.path.join(folder, "backup"), save_freq=backup.save_freq
        )

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._own.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._chiefs.set_model(model)
        self._own.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._chiefs.on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._own.on_train_batch_end(batch, logs)
        self._copy_counts(self._own, self._chiefs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._chiefs.on_epoch_begin(epoch, logs)
        self._copy_counts(self._chiefs, self._own)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._own.on_epoch_end(epoch, logs)
        self._copy_counts(self._own, self._chiefs)

    def on_train_end(self, logs: Any = None) -> None:
        self._own.on_train_end(logs)

    @staticmethod
    def _copy_counts(
        source: keras.callbacks.BackupAndRestore, target: keras.callbacks.BackupAndRestore
    ) -> None:
        # PRIVATE: the chief's callback keeps these counts from one `fit` to the next.
        target._batches_seen_since_last_saving = source._batches_seen_since_last_saving
        target._last_batch_seen = source._last_batch_seen


class _SameStart(keras.callbacks.Callback):
    """Checks that all workers begin at the same step. It runs after BackupAndRestore."""

    def on_train_begin(self, logs: Any = None) -> None:
        iterations = self.model.optimizer.iterations.value
        step = int(tf.convert_to_tensor(iterations).numpy())
        received = strategies.numbers_of_workers(self.model.distribute_strategy, [step])
        steps = [one for (one,) in received]
        if len(set(steps)) > 1:
            raise ValueError(
                f"All workers must begin at the same step. Received: steps={steps}. A folder of "
                "backups must be one that all workers can read."
            )


class MultiWorker(ModelWithTables):
    """A mixin for `keras.Model`: `class MyModel(MultiWorker, keras.Model)`. See `Model`.

    Example:
        >>> import keras, tf_embed
        >>> class Ratings(tf_embed.distributed.MultiWorker, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.items = tf_embed.layers.DynamicEmbedding(4, optimizer="adagrad")
        ...     def call(self, ids):
        ...         return self.items(ids)
        >>> Ratings().timeout_seconds > 0
        True
    """

    timeout_seconds = timeouts.DEFAULT_SECONDS

    # Attributes of `keras.Model`.
    train_function: Any
    test_function: Any

    # --- Methods that the user calls --------------------------------------------------------------

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Works as `keras.Model.fit`. `Model` lists the differences with several workers."""
        return self._call("fit", super().fit, args, kwargs)  # type: ignore[misc]

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`. The results are over the rows of all workers."""
        return self._call("evaluate", super().evaluate, args, kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`. Every worker gets the predictions of all rows."""
        return self._call("predict", super().predict, args, kwargs)  # type: ignore[misc]

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.save`. All workers must call it. Only the chief keeps a file."""
        with self._own_path(filepath) as path:
            super().save(path, *args, **kwargs)  # type: ignore[misc]

    def save_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.save_weights`. All workers must call it. Only the chief keeps a file."""
        with self._own_path(filepath) as path:
            super().save_weights(path, *args, **kwargs)  # type: ignore[misc]

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """As `keras.Model.export`. All workers must call it. Only the chief keeps files."""
        with self._own_path(filepath) as path:
            super().export(path, *args, **kwargs)  # type: ignore[misc]

    # --- Methods that Keras calls -----------------------------------------------------------------

    def make_train_function(self, force: bool = False) -> None:
        """Makes the function that runs `steps_per_execution` steps of training."""
        if not self._several_workers():
            super().make_train_function(force)  # type: ignore[misc]
        elif self.train_function is None or force:
            self.train_function = self._function_of(self.train_step)

    def make_test_function(self, force: bool = False) -> None:
        """Makes the function that runs `steps_per_execution` steps of evaluation."""
        if not self._several_workers():
            super().make_test_function(force)  # type: ignore[misc]
        elif self.test_function is None or force:
            self.test_function = self._function_of(self.test_step)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """As `keras.Model.compute_loss`, with a gradient that counts each row of all workers once.

        Keras averages over the rows of each worker, and divides by the number of workers. This is
        the mean over all rows only if all workers have equally many. So this method multiplies the
        gradient by the rows of this worker over the mean rows per worker. The reported loss needs
        no such correction, because Keras weights it by rows.
        """
        # The symbolic build calls this outside of replicas, where there is no all-reduce.
        if training and self._several_workers() and not tf.distribute.in_cross_replica_context():
            factor = self._gradient_factor(y_pred, sample_weight)
            if factor is not None:
                y_pred = keras.tree.map_structure(
                    lambda one: _with_gradient_times(one, factor), y_pred
                )
        return super().compute_loss(x, y, y_pred, sample_weight, training)  # type: ignore[misc]

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # PRIVATE: a hook of Keras, which `check_keras_hook` and a test watch. Keras's version
        # concatenates the workers' batches. The shapes of one replica's batch are enough.
        if not self._several_workers():
            super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]
            return
        check_keras_hook()
        strategy = self.distribute_strategy  # type: ignore[attr-defined]
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = keras.tree.map_structure(
                    lambda value: strategy.experimental_local_results(value)[0], next(batches)
                )
                break
        # Variables that a build makes belong to the strategy.
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)  # type: ignore[attr-defined]

    # --- Helpers ----------------------------------------------------------------------------------

    def _several_workers(self) -> bool:
        return strategies.worker_count(self.distribute_strategy) > 1  # type: ignore[attr-defined]

    def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls Keras's method with this worker's callbacks, data and time-out."""
        if keras.distribution.distribution() is not None:
            raise ValueError(
                f"`{name}` must not run under `keras.distribution`, which does nothing on "
                "TensorFlow: call keras.distribution.set_distribution(None), and use "
                "tf.distribute.MultiWorkerMirroredStrategy."
            )
        if not self._several_workers():
            return method(*args, **kwargs)
        if self.run_eagerly:  # type: ignore[attr-defined]
            raise ValueError(
                "`run_eagerly` must be False with several workers, whose steps are graphs."
            )
        bound = inspect.signature(method).bind(*args, **kwargs)
        arguments = bound.arguments
        # Keras calls `evaluate` within `fit`, with the CallbackList that `fit` has made.
        within_fit = isinstance(arguments.get("callbacks"), keras.callbacks.CallbackList)
        strategy = self.distribute_strategy  # type: ignore[attr-defined]
        with contextlib.ExitStack() as stack:
            stack.enter_context(_explained_losses())
            if not within_fit and name != "predict":  # `predict` has no hook to renew a time-out
                stack.callback(_timeout.end)
                _timeout.renew(max(self.timeout_seconds, timeouts.DEFAULT_SECONDS))
            if not within_fit:
                _check_data(strategy, name, arguments)
                if not strategies.is_chief(strategy):
                    arguments["verbose"] = 0
            if name == "fit":
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                arguments["callbacks"] = self._callbacks(arguments.get("callbacks"), folder)
            stack.enter_context(warnings.catch_warnings())
            # A false alarm: `_check_data` hides the number of batches from Keras.
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
            result = method(*bound.args, **bound.kwargs)
            if not within_fit:
                # A barrier: the chief must not leave while other workers still need it.
                strategies.numbers_of_workers(strategy)
            return result

    def _callbacks(self, callbacks: Any, folder: str) -> Any:
        """Returns the callbacks for this worker."""
        if isinstance(callbacks, keras.callbacks.CallbackList):
            raise ValueError(
                "`callbacks` must be a list of callbacks with several workers, not a CallbackList."
            )
        if not isinstance(callbacks, (list, tuple)):
            callbacks = [] if callbacks is None else [callbacks]
        if not strategies.is_chief(self.distribute_strategy):  # type: ignore[attr-defined]
            callbacks = [
                _Follower(one, folder) if isinstance(one, keras.callbacks.BackupAndRestore) else one
                for one in callbacks
            ]
        return [*callbacks, _SameStart()]

    @contextlib.contextmanager
    def _own_path(self, path: Any) -> Iterator[Any]:
        """Yields `path` on the chief, and on other workers a temporary path."""
        if strategies.is_chief(self.distribute_strategy):  # type: ignore[attr-defined]
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            yield os.path.join(folder, os.path.basename(os.path.normpath(os.fspath(path))))

    def _gradient_factor(self, y_pred: Any, sample_weight: Any) -> tf.Tensor | None:
        """Returns the rows of this replica over the mean rows, or None if the loss is a sum."""
        losses = keras.tree.flatten(self.loss)  # type: ignore[attr-defined]
        kinds = {
            one.reduction if isinstance(one, keras.losses.Loss) else "sum_over_batch_size"
            for one in losses
            if one is not None
        }
        if kinds and kinds <= _SUMS:
            return None
        if kinds & _SUMS or ("mean_with_sample_weight" in kinds and sample_weight is not None):
            raise ValueError(
                "`loss` must have the reduction 'sum_over_batch_size' in all losses, or 'sum' in "
                f"all, with several workers. Received: reductions={sorted(map(str, kinds))}"
            )
        rows = tf.cast(tf.shape(keras.tree.flatten(y_pred)[0])[0], tf.float32)
        context = tf.distribute.get_replica_context()
        all_rows = context.all_reduce(tf.distribute.ReduceOp.SUM, rows)
        # At the end of the data, all workers may have an empty batch.
        return rows * context.num_replicas_in_sync / tf.maximum(all_rows, 1.0)

    def _function_of(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the function that Keras calls with an iterator.

        The function runs `steps_per_execution` steps and returns the logs of the last step.
        """
        strategy = self.distribute_strategy  # type: ignore[attr-defined]

        def replica_step(data: Any) -> Any:
            # A dataset may have an Optional for an absent element. Keras expects None.
            data = keras.tree.map_structure(
                lambda one: None if isinstance(one, tf.experimental.Optional) else one, data
            )
            # Also if a subclass has a step of its own.
            with step_of(self), deferred_updates():
                logs = step(data)
            return self._logs_of_all(logs)

        def one_step(data: Any) -> Any:
            logs = strategy.run(replica_step, args=(data,))
            return tf.nest.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], logs
            )

        # The graph itself takes the batch, so that the number of rows is not in its static shape.
        # Otherwise workers would retrace at different steps, and disagree on the names of their
        # collectives. The step is in a branch, so that no part of it runs after the end of the
        # data: an error of `get_next` would not stop the optimizer from counting an iteration.
        # XLA is not used: it has no collectives between processes.
        @tf.function(reduce_retracing=True)
        @tf.autograph.experimental.do_not_convert
        def next_step(iterator: Any) -> Any:
            element = iterator.get_next_as_optional()
            traced = []

            def some() -> Any:
                logs = one_step(element.get_value())
                # The other branch must return tensors of the same kinds.
                traced.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, logs))
                return logs

            def none() -> Any:  # traced after the other branch
                return tf.nest.map_structure(
                    lambda one: tf.zeros([size or 0 for size in one.shape], one.dtype), traced[0]
                )

            has_value = element.has_value()
            return has_value, tf.cond(has_value, some, none)

        is_traced: list[bool] = []

        def function(iterator: Any) -> Any:
            if not isinstance(iterator, tf.distribute.DistributedIterator):
                raise ValueError(
                    "`train_on_batch` and `test_on_batch` must not be called with several workers: "
                    "use `fit` and `evaluate`, or tf.distribute.Strategy.run."
                )
            # The first step may take longest, because TensorFlow traces and optimizes it.
            least = 0.0 if is_traced else timeouts.DEFAULT_SECONDS
            is_traced.append(True)
            logs = None
            for _ in range(self.steps_per_execution):  # type: ignore[attr-defined]
                # The time-out continues after the step: Keras also waits for workers between steps.
                _timeout.renew(max(self.timeout_seconds, least))
                has_value, step_logs = next_step(iterator)
                if not has_value:
                    break
                logs = step_logs
            if logs is None:
                # Keras's epoch iterator treats this as the end of the data.
                raise StopIteration
            return logs

        return function

    def _logs_of_all(self, logs: Any) -> Any:
        """Reduces logs over all replicas: metrics by rows, other values by the mean."""
        context = tf.distribute.get_replica_context()
        groups: dict[Any, list[Any]] = collections.defaultdict(list)
        for variable in self.metrics_variables:  # type: ignore[attr-defined]
            groups[variable.aggregation, variable.dtype].append(variable)
        values = []
        for (aggregation, _), variables in groups.items():
            if aggregation not in ("sum", "mean"):
                continue
            local = [tf.convert_to_tensor(one.value) for one in variables]
            # A single all-reduce for all variables of a kind.
            flat = tf.concat([tf.reshape(one, [-1]) for one in local], 0)
            flat = context.all_reduce(tf.distribute.ReduceOp[aggregation.upper()], flat)
            parts = tf.split(flat, [one.shape.num_elements() for one in local])
            values += [
                (variable, tf.reshape(part, one.shape))
                for variable, part, one in zip(variables, parts, local, strict=True)
            ]
        # The sums are for the logs alone: variables keep the counts of this worker.
        with keras.StatelessScope(state_mapping=values):
            metrics = self.get_metrics_result()  # type: ignore[attr-defined]

        def mean(value: Any) -> Any:
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.convert_to_tensor(value))

        if not isinstance(logs, dict):
            return tf.nest.map_structure(mean, logs)
        return {
            name: metrics[name] if name in metrics else tf.nest.map_structure(mean, value)
            for name, value in logs.items()
        }


@contextlib.contextmanager
def _explained_losses() -> Iterator[None]:
    """Converts the various errors that TensorFlow raises for a lost worker to WorkerLostError."""
    try:
        yield
    except _LOST as error:
        # Without first letters, which TensorFlow writes in upper or lower case.
        words = ("ollective", "oordination", "RecvBuf")
        lines = str(error.message).splitlines()
        said = [line for line in lines if any(word in line for word in words)]
        if not said:
            raise
        causes = [line for line in said if "aborted by" in line]
        raise WorkerLostError(
            "A worker has died, or did not answer within `timeout_seconds`: restart all workers "
            f"from the last checkpoint. TensorFlow says: {(causes or said)[0]}"
        ) from error


def _check_data(strategy: tf.distribute.Strategy, name: str, arguments: dict[str, Any]) -> None:
    """Prevents a deadlock of workers whose data differ.

    If workers may have unequal numbers of batches, this hides the numbers from Keras, which would
    stop each worker after its own batches. TensorFlow then gives empty batches to workers without
    data.
    Only the auto-shard policy DATA gives each worker as many batches as the dataset reports.

    Raises:
        ValueError: If data are not a dataset, or the workers disagree on the number of steps.
    """
    validation = arguments.get("validation_data")
    for argument, data in (("x", arguments.get("x")), ("validation_data", validation)):
        if argument == "validation_data" and data is None:
            continue
        if not isinstance(data, tf.data.Dataset):
            raise ValueError(
                f"`{argument}` of `{name}` must be a tf.data.Dataset with several workers, because "
                "arrays do not say which worker takes which rows: use tf.data.Dataset."
                f"from_tensor_slices(...).batch(...). Received: {type(data).__name__}"
            )
    numbers = {
        key: int(arguments.get(key) or 0)
        for key in ("steps_per_epoch", "steps", "validation_steps", "epochs", "initial_epoch")
        if key in inspect.signature(getattr(keras.Model, name)).parameters
    }
    if name == "fit":
        numbers["validation_data"] = int(validation is not None)
    finite = []
    for argument in ("x", "validation_data"):
        if arguments.get(argument) is not None:
            endless = int(arguments[argument].cardinality()) == tf.data.INFINITE_CARDINALITY
            numbers[f"{argument}.repeat()"] = int(endless)
            finite += [] if endless else [argument]
    # Compare before the first step, in which differing workers would wait for each other.
    received = strategies.numbers_of_workers(strategy, list(numbers.values()))
    for key, of_workers in zip(numbers, zip(*received, strict=True), strict=True):
        if len(set(of_workers)) > 1:
            raise ValueError(
                f"All workers must call `{name}` with the same `{key}`. "
                f"Received: {list(of_workers)}"
            )
    for argument in finite:
        data = arguments[argument]
        policy = data.options().experimental_distribute.auto_shard_policy
        if policy != tf.data.experimental.AutoShardPolicy.DATA:
            # The number of batches of a filtered dataset is unknown.
            arguments[argument] = data.filter(lambda *_: True)


@keras.saving.register_keras_serializable(package="tf_embed.distributed")
class FunctionalModel(MultiWorker, keras.Model):
    """The class of `Model(inputs, outputs)`. Keras adds its functional model to the bases."""


class Model(MultiWorker, model.Model):
    """A `keras.Model` whose `fit`, `evaluate` and `predict` work with several workers.

    Use it as `keras.Model`: `Model(inputs, outputs)`, or as a base class. Make and compile it in
    the scope of a `tf.distribute.MultiWorkerMirroredStrategy`. With one worker it behaves as
    `tf_embed.Model`. With several workers:

    *   Weights, losses and metrics are equal to training in a single process with the global
        batch, even if workers get batches of unequal size. The exception is the reported value of
        a sum loss, which is right only if all workers have equally many rows.
    *   Data must be a `tf.data.Dataset`, and all workers must call the same methods.
    *   Only the chief prints, and only its models and weights are kept on disk. `ModelCheckpoint`
        and `BackupAndRestore` may get the same path on all workers. All workers must be able to
        read the path of `BackupAndRestore`.
    *   `steps_per_execution` sets how often callbacks run. XLA is not used in training.
    *   If a worker dies, or `fit` or `evaluate` starts no step for `model.timeout_seconds`, the
        other workers raise `WorkerLostError`. The default is 300. The first step always has at
        least that default.
    *   Tables look up together and are updated together, as in a `tf_embed.Model`, so that they
        share the exchanges between workers.

    Raises:
        TypeError: If a subclass passes `inputs` and `outputs` to this class.

    Example:
        >>> import keras, tensorflow as tf, tf_embed
        >>> inputs = keras.Input([4])
        >>> model = tf_embed.distributed.Model(inputs, keras.layers.Dense(1)(inputs))
        >>> model.compile("sgd", "mse")
        >>> zeros = (tf.zeros([8, 4]), tf.zeros([8, 1]))
        >>> data = tf.data.Dataset.from_tensor_slices(zeros).batch(4)
        >>> model.fit(data, verbose=0).history
        {'loss': [0.0]}
    """

    _functional = FunctionalModel
    _mixin = "tf_embed.distributed.MultiWorker"
