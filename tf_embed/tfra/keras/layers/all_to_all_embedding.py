# SPDX-License-Identifier: Apache-2.0
"""`AllToAllEmbedding`: TFRA's layer whose rows are spread over the workers of a cluster."""

from __future__ import annotations

from typing import Any

import keras

from tf_embed.tfra.keras.layers.embedding import Embedding


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
class AllToAllEmbedding(Embedding):
    """`Embedding` with the arguments of TFRA's HvdAllToAllEmbedding.

    In the scope of a tf.distribute.MultiWorkerMirroredStrategy its table is sharded over the
    workers, as in `Embedding`. It needs no Horovod. In one process it is an `Embedding`.

    Args:
        with_unique: Ignored, like the next three; accepted for TFRA compatibility. Distinct ids are
            sent once.
        with_secondary_unique: Ignored. The owner of a row sums equal ids of several workers.
        mpi_size: Ignored. The strategy knows the number of workers.
        batch_size: Ignored. Batches may have any sizes.
        *args: As in `Embedding`.
        **kwargs: As in `Embedding`.

    Example:
        >>> import tensorflow as tf, tf_embed
        >>> layer = tf_embed.tfra.keras.layers.AllToAllEmbedding(
        ...     embedding_size=2, initializer="ones"
        ... )
        >>> layer(tf.constant([15])).numpy().tolist()
        [[1.0, 1.0]]
    """

    def __init__(
        self,
        with_unique: bool = True,
        with_secondary_unique: bool = True,
        mpi_size: int | None = None,
        batch_size: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        del with_secondary_unique, mpi_size, batch_size
        super().__init__(*args, **{**kwargs, "with_unique": with_unique})


HvdAllToAllEmbedding = AllToAllEmbedding
