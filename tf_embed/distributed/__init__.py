# SPDX-License-Identifier: Apache-2.0
"""Training with several workers: `tf.distribute.MultiWorkerMirroredStrategy`.

run             launches workers: `python -m tf_embed.distributed.run --workers 2 train.py`
Model           a `keras.Model` for several workers; MultiWorker, the mixin that makes it one
is_chief        whether this process prints and writes models
WorkerLostError what survivors raise when a worker has died
"""

from tf_embed.distributed.keras_model import Model, MultiWorker, WorkerLostError
from tf_embed.distributed.strategies import is_chief

__all__ = ["Model", "MultiWorker", "WorkerLostError", "is_chief"]
