# SPDX-License-Identifier: Apache-2.0
"""Tables and models on several workers: `tf.distribute.MultiWorkerMirroredStrategy`.

run             launches workers: `python -m tf_embed.distributed.run --workers 2 train.py`
Model           a `keras.Model` for several workers; MultiWorker, the mixin that makes it one
WorkerSharding  how a table is sharded over the workers
timeout         ends a block in which a worker waits too long for another
is_chief        whether this process prints and writes models
WorkerLostError what survivors raise when a worker has died
"""

from tf_embed.distributed.keras_model import Model, MultiWorker, WorkerLostError
from tf_embed.exchange.strategies import is_chief
from tf_embed.exchange.timeouts import timeout
from tf_embed.exchange.worker_sharding import WorkerSharding

__all__ = ["Model", "MultiWorker", "WorkerLostError", "WorkerSharding", "is_chief", "timeout"]
