# SPDX-License-Identifier: Apache-2.0
"""`Servers`: the parameter servers of a strategy, which have the tables."""

from __future__ import annotations

import uuid
import weakref

import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import process_ops

_LONGEST_RUN_ID = 256
_JOBS = ("ps", "worker")


class Servers:
    """The parameter servers that this process is connected to.

    Args:
        run_id: The prefix of this run's tables on the servers, which may also have tables of other
            runs. Default: a unique name.

    Attributes:
        run_id: The same.
        is_named: Whether `run_id` was given, so that a later chief may use the same name.
        devices: The CPU of each server.
    """

    def __init__(self, run_id: str | None = None) -> None:
        # A strategy does not expose its cluster, but TensorFlow knows the devices.
        found = map(tf.DeviceSpec.from_string, _names_of_cpus())
        self._tasks = sorted({(one.job, one.task) for one in found if one.job in _JOBS})
        if not any(job == "ps" for job, _ in self._tasks):
            raise ValueError(
                "A ParameterServerStrategy with tables needs a task `ps` in its cluster. Received: "
                f"the devices {_names_of_cpus()}"
            )
        self.is_named = run_id is not None
        self.run_id = uuid.uuid4().hex if run_id is None else run_id
        self.devices = tuple(_cpu_of(job, task) for job, task in self._tasks if job == "ps")
        self._next_table = 0
        self._generation = 0  # the last generation that this process began

    @property
    def count(self) -> int:
        """The number of servers."""
        return len(self.devices)

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return sum(job == "worker" for job, _ in self._tasks)

    def name_of_next_table(self, name: str) -> str:
        """Returns the servers' name of the next table. All chiefs of a run make the same names."""
        number, self._next_table = self._next_table, self._next_table + 1
        return f"tf_embed/{self.run_id}/{number}/{name}"

    def begin_generation(self) -> int:
        """Returns a number that no earlier training of the run had. Servers remember it."""
        generation = max(map(self._generation_on, range(self.count))) + 1
        for number, device in enumerate(self.devices):
            with tf.init_scope(), tf.device(device):
                value = tf.constant(generation, tf.int64)
                tf.raw_ops.AssignVariableOp(resource=self._generation_of(number), value=value)
        self._generation = generation
        return generation

    def lost(self) -> list[int]:
        """Returns the numbers of servers that have died, whether or not they were restarted."""
        found = []
        for number in range(self.count):
            try:
                is_alive = self._generation_on(number) >= self._generation
            except tf.errors.OpError:  # the server was lost
                is_alive = False
            if not is_alive:
                found.append(number)
        return found

    def _generation_on(self, number: int) -> int:
        """Returns the newest generation that a server knows; 0: none."""
        with tf.init_scope(), tf.device(self.devices[number]):
            handle = self._generation_of(number)
            if not bool(tf.raw_ops.VarIsInitializedOp(resource=handle)):
                return 0
            return int(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64))

    def _generation_of(self, number: int) -> tf.Tensor:
        """Returns the variable with the generation of a server. It lives as long as the server."""
        with tf.device(self.devices[number]):
            # A later chief finds the variable of an earlier chief by this name.
            return tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[], shared_name=f"tf_embed/{self.run_id}/generation"
            )

    def check_builds(self) -> None:
        """Compares the op library of this process with the library of each server and worker.

        Raises:
            RuntimeError: If a process has no library or another build. The message names it.
        """
        # Eager, because the answers are compared here.
        with tf.init_scope():
            mine = process_ops.build_of_library().numpy().decode()
            for job, task in self._tasks:
                try:
                    with tf.device(_cpu_of(job, task)):
                        theirs = process_ops.build_of_library().numpy().decode()
                except tf.errors.NotFoundError as error:
                    raise RuntimeError(
                        f"The process {job} {task} has not loaded tf_embed: start it by a program "
                        "that imports tf_embed, such as one that calls "
                        "tf_embed.distributed.run_with_servers."
                    ) from error
                if theirs != mine:
                    raise RuntimeError(
                        "All processes must have the same build of tf_embed's op library. "
                        f"Received: {mine} in this one, {theirs} in {job} {task}"
                    )


# Weak, so that an entry is freed with its strategy.
_servers: weakref.WeakKeyDictionary[tf.distribute.Strategy, Servers] = weakref.WeakKeyDictionary()


def servers_of(strategy: tf.distribute.Strategy, run_id: str | None = None) -> Servers:
    """The parameter servers of a strategy.

    Args:
        strategy: A ParameterServerStrategy.
        run_id: See `Servers`. Only the first call for a strategy may give it.

    Raises:
        RuntimeError: If a server or a worker has another build of the library.
        ValueError: If there is no server, or `run_id` is given too late or is not a valid name.
    """
    found = _servers.get(strategy)
    if found is not None and run_id is not None and found.run_id != run_id:
        raise ValueError(
            "`run_id` must be given before the strategy has its first table. Received: run_id="
            f"{run_id!r}"
        )
    if found is None:
        found = Servers(_checked(run_id))
        found.check_builds()
        # Kept only after the check, so that a failed check is made again.
        _servers[strategy] = found
    return found


def servers_of_scope() -> Servers | None:
    """The parameter servers of the current scope's strategy; None if it has none."""
    if not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    return servers_of(strategy) if is_of_servers(strategy) else None


def is_of_servers(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy has parameter servers."""
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def _checked(run_id: str | None) -> str | None:
    """A `run_id` that may be part of a name.

    Raises:
        TypeError: If `run_id` is not a str.
        ValueError: If it is empty, too long, or has a character that is invalid in names.
    """
    if run_id is None:
        return None
    validation.name_of(run_id, "run_id")
    if not run_id or len(run_id) > _LONGEST_RUN_ID or "/" in run_id:
        raise ValueError(
            f"`run_id` must have 1 to {_LONGEST_RUN_ID} characters, without a slash. Received: "
            f"run_id={validation.shown(run_id)}"
        )
    return run_id


def _names_of_cpus() -> list[str]:
    return [one.name for one in tf.config.list_logical_devices("CPU")]


def _cpu_of(job: str, task: int) -> str:
    return f"/job:{job}/replica:0/task:{task}/device:CPU:0"
