# SPDX-License-Identifier: Apache-2.0
"""New tables: their permitted contexts, initial sizes and kinds."""

from __future__ import annotations

import os

import tensorflow as tf

from tf_embed import validation
from tf_embed.sharded.device_table import DeviceTable
from tf_embed.sharded.server_table import ServerTable
from tf_embed.sharded.servers import is_of_servers, servers_of_scope
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.sharded.worker_table import WorkerTable
from tf_embed.sharded.workers import workers_of_scope
from tf_embed.table.policies import TablePolicy
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions

_DEFAULT_INIT_SIZE = 8192
_INIT_SIZE_VARIABLE = "TF_HASHTABLE_INIT_SIZE"


def check_eager() -> None:
    """Refuses a tf.Graph outside of a tf.function, as in sessions of TensorFlow 1.

    Raises:
        RuntimeError: If the outermost context is not eager.
    """
    # In a tf.function, init_scope lifts to eager execution; in a plain tf.Graph it stays in the
    # graph.
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise RuntimeError(
                "A tf_embed.Variable must be made in eager execution or in a tf.function. "
                "Received: a call in a tf.Graph, as for a session of TensorFlow 1"
            )


def check_strategy(key_dtype: tf.DType) -> None:
    """Refuses a tf.distribute strategy whose replicas could not share a table.

    Raises:
        ValueError: If the strategy is not supported, or has several replicas and keys are strings.
    """
    strategy = tf.distribute.get_strategy()
    known = (
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.OneDeviceStrategy,
        tf.distribute.ParameterServerStrategy,
    )
    if tf.distribute.has_strategy() and not isinstance(strategy, known):
        raise ValueError(
            "Dynamic tables may be made under tf.distribute.MirroredStrategy, "
            "MultiWorkerMirroredStrategy, OneDeviceStrategy and ParameterServerStrategy. Received: "
            f"{type(strategy).__name__}"
        )
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if key_dtype == tf.string and mirrored and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "Tables with string keys are for one replica so far: TensorFlow can't join the "
            "gradients of several. Received: key_dtype=string, "
            f"{strategy.num_replicas_in_sync} replicas"
        )


def check_one_process(what: str) -> None:
    """Refuses the scope of a strategy with parameter servers.

    Args:
        what: The refused class or function, for the message.

    Raises:
        ValueError: If the current scope is such a scope.
    """
    if tf.distribute.has_strategy() and is_of_servers(tf.distribute.get_strategy()):
        raise ValueError(
            f"{what} can't have tables on parameter servers: use tf_embed.layers.DynamicEmbedding "
            "or tf_embed.Variable. Received: a call in the scope of a ParameterServerStrategy"
        )


def default_init_size() -> int:
    """The default `init_size`, from the environment variable if that is set."""
    text = os.environ.get(_INIT_SIZE_VARIABLE, "")
    if not text:
        return _DEFAULT_INIT_SIZE
    try:
        return validation.int_in(int(text), _INIT_SIZE_VARIABLE, least=0)
    except ValueError as error:
        raise ValueError(
            f"The environment variable {_INIT_SIZE_VARIABLE} must be a number of rows. Received: "
            f"{_INIT_SIZE_VARIABLE}={validation.shown(text)}"
        ) from error


def new_table(options: TableOptions, sharding: WorkerSharding | None) -> Table:
    """Creates a table, sharded over the workers or the parameter servers of the strategy's scope.

    Otherwise it is in this process, on one device or on several GPUs.

    Args:
        sharding: The sharding. None: each worker has its own table.

    Raises:
        ValueError: If a sharded table does not support an option.
    """
    # All workers share such a table, whatever the strategy is.
    if options.redis is not None:
        _check_redis(options, sharding)
        return Table(options)
    servers = servers_of_scope()
    if servers is not None:
        if sharding is None:
            raise ValueError(
                f"The table of {options.name!r} is made in the scope of a ParameterServerStrategy, "
                "so its rows are on the servers: leave `distribution` out. Received: "
                'distribution="local"'
            )
        _check_supported(options, sharding, "on parameter servers", "")
        return ServerTable(options, servers, sharding)
    workers = None if sharding is None else workers_of_scope(sharding)
    if workers is None or sharding is None:
        return DeviceTable(options) if options.shard_devices else Table(options)
    local = 'distribution="local" gives each worker a table of its own. '
    _check_supported(options, sharding, "sharded over workers", local)
    return WorkerTable(options, workers, sharding)


def _check_redis(options: TableOptions, sharding: WorkerSharding | None) -> None:
    """Refuses options that a table in Redis does not support.

    Raises:
        ValueError: If there is such an option. The message names it.
    """
    policy = options.policy or TablePolicy(eviction=None)
    workers = None if sharding is None else workers_of_scope(sharding)
    refused = {
        "key_dtype=string": options.key_dtype == tf.string,
        "value_dtype=string": options.value_dtype == tf.string,
        f"{options.num_shards} devices": options.num_shards > 1,
        f"max_rows={policy.max_rows}": policy.max_rows is not None,
        f"admission={policy.admission}": policy.admission is not None,
        "log_evicted=True": bool(policy.log_evicted),
        "track_changes=True": bool(policy.track_changes),
        "score_fn": policy.score_fn is not None,
        "a ParameterServerStrategy": servers_of_scope() is not None,
        'several workers and distribution other than "local"': workers is not None,
    }
    for what, has_it in refused.items():
        if has_it:
            raise ValueError(
                f"The table of {options.name!r} is in Redis, and can't have this: it takes integer "
                "keys, one device (a CPU), and of a policy `ttl_seconds` alone; all workers share "
                f"it. Received: {what}"
            )


def _check_supported(
    options: TableOptions, sharding: WorkerSharding, where: str, advice: str
) -> None:
    """Refuses options that a sharded table does not support.

    Raises:
        ValueError: If there is such an option. The message names it.
    """
    name = options.name
    if options.value_dtype == tf.string:
        refused = "value_dtype=string"
    elif options.key_dtype == tf.string and sharding.owner == "remainder":
        refused = 'WorkerSharding(owner="remainder") with key_dtype=string'
    elif options.shard_devices:
        refused = f"shards on several GPUs, devices={list(options.shard_devices)}"
    else:
        return
    raise ValueError(
        f"The table of {name!r}, which is {where}, can't have this. {advice}Received: {refused}"
    )
