# SPDX-License-Identifier: Apache-2.0
"""Distributed training: synchronous workers, or asynchronous workers with parameter servers.

Under a `tf.distribute.MultiWorkerMirroredStrategy`:

run               launches workers: `python -m tf_embed.distributed.run --workers 2 train.py`
Model             a `keras.Model` for several workers, and its mixin MultiWorker
WorkerSharding    the options for sharding a table over the workers
look_up_together  calls several layers that share exchanges between workers, in a custom loop
timeout           ends a block in which a worker waits too long for another
is_chief          whether this process prints and writes models
WorkerLostError   the error that the survivors raise when a worker has died

Under a `tf.distribute.ParameterServerStrategy`:

run_with_servers        the main function of each process of the cluster
ParameterServerTrainer  `fit` and `evaluate` of a Keras model
ServerLostError         the error that the chief raises when a server has died
"""

from tf_embed.distributed.keras_model import Model, MultiWorker, WorkerLostError
from tf_embed.distributed.server_trainer import ParameterServerTrainer
from tf_embed.distributed.servers import ServerLostError, run_with_servers
from tf_embed.models.look_up_together import look_up_together
from tf_embed.sharded.strategies import is_chief
from tf_embed.sharded.timeouts import timeout
from tf_embed.sharded.worker_sharding import WorkerSharding

__all__ = [
    "Model",
    "MultiWorker",
    "ParameterServerTrainer",
    "ServerLostError",
    "WorkerLostError",
    "WorkerSharding",
    "is_chief",
    "look_up_together",
    "run_with_servers",
    "timeout",
]
