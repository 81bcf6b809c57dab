# SPDX-License-Identifier: Apache-2.0
"""`WorkerDatasets`: datasets that the workers of a parameter server cluster read themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_embed import validation
from tf_embed.distributed.worker_calls import WorkerCalls
from tf_embed.ops import process_ops
from tf_embed.sharded.servers import Servers

DatasetFunction = Callable[[tf.Tensor, int], tf.data.Dataset]


class WorkerDatasets:
    """A dataset on each worker, repeated endlessly.

    Args:
        dataset_fn: Returns a worker's dataset of batches. It takes the worker's number, an int64
            scalar tensor, and the number of workers. It is traced once.

    Raises:
        TypeError: If the function does not return a dataset.
        ValueError: If it uses an existing dataset.
    """

    def __init__(self, dataset_fn: DatasetFunction, coordinator: Any, servers: Servers) -> None:
        self._coordinator = coordinator
        self._servers = servers

        traced = tf.function(dataset_fn)

        def made() -> tf.data.Dataset:
            dataset = traced(process_ops.number_of_task(), servers.num_workers)
            if not isinstance(dataset, tf.data.Dataset):
                raise TypeError(
                    "`x(worker, workers)` must give a tf.data.Dataset. Received: "
                    f"{validation.shown(dataset)}"
                )
            return dataset.repeat()

        self._made = tf.function(made, autograph=False)
        # A wrong `dataset_fn` raises here, not in a step.
        captured = self._made.get_concrete_function().captured_inputs
        if any(one.dtype == tf.variant for one in captured):
            raise ValueError(
                "`x(worker, workers)` must make its datasets itself, because one that was made "
                f"before is on the chief. Received: {validation.shown(dataset_fn)}"
            )

    def first_batch(self) -> Any:
        """Returns a worker's first batch. The worker's iterators also begin with it.

        Raises:
            ValueError: If the dataset is empty.
        """
        read = tf.function(lambda iterator: next(iterator), autograph=False)
        calls: WorkerCalls[None] = self.calls()
        calls.add(read, [self.iterator()], None)
        return calls.fetch()[1]

    def calls(self) -> WorkerCalls[Any]:
        """Returns a `WorkerCalls` for functions that read batches.

        A call raises ValueError if a worker's dataset is empty.
        """
        return WorkerCalls(self._coordinator, self._servers, self._empty_refused)

    @contextlib.contextmanager
    def _empty_refused(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OutOfRangeError as error:  # a repeated dataset ends only if it is empty
            raise ValueError(
                "`x(worker, workers)` must give each worker a dataset with a batch. Received: one "
                f"without any, of {self._servers.num_workers} workers. Is there a file for each?"
            ) from error

    def iterator(self) -> Any:
        """Returns a new iterator over the dataset of each worker, as an argument of steps."""
        return iter(self._coordinator.create_per_worker_dataset(self._made))
