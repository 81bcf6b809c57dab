# SPDX-License-Identifier: Apache-2.0
"""`SokLayer`: the base of both layers, a table with SOK's arguments."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.table_layer import TableLayer, deserialized, serialized
from tf_embed.sharded import strategies
from tf_embed.sharded.worker_sharding import WorkerSharding
from tf_embed.table.initializers import for_rows
from tf_embed.table.policies import MAX_ROWS, TablePolicy
from tf_embed.variable.variable import Variable

KEY_DTYPES = (tf.int64, tf.uint64, tf.uint32)


class SokLayer(TableLayer):
    """A table with SOK's arguments.

    Args:
        max_vocabulary_size_per_gpu: As in `All2AllDenseEmbedding`, and so are all others below.
    """

    def __init__(
        self,
        max_vocabulary_size_per_gpu: int,
        embedding_vec_size: int,
        slot_num: int,
        use_hashtable: bool,
        key_dtype: Any,
        embedding_initializer: Any,
        optimizer: Any,
        name: str | None,
        **kwargs: Any,
    ) -> None:
        # Before the base class, so that messages name SOK's arguments.
        self._check_sizes(max_vocabulary_size_per_gpu, embedding_vec_size, slot_num)
        key_dtype = tf.int64 if key_dtype is None else key_dtype
        if embedding_initializer is None:
            embedding_initializer = "random_uniform"  # from -0.05 to 0.05
        embedding_initializer = for_rows(
            deserialized(embedding_initializer, "embedding_initializer"),
            # In SOK, each GPU draws its own part, so rows do not depend on the number of workers.
            max_vocabulary_size_per_gpu,
            embedding_vec_size,
        )
        super().__init__(
            embedding_vec_size,
            validation.dtype_of(key_dtype, KEY_DTYPES, "key_dtype"),
            "float32",
            embedding_initializer,
            optimizer=optimizer,
            padding_id=None,
            devices=None,
            partitioner=None,
            init_size=0,
            unknown_value=None,
            policy=None,
            storage=None,
            # SOK has the row of a key on worker `key % workers`.
            distribution=WorkerSharding(owner="remainder"),
            name=name,
            **kwargs,
        )
        self.max_vocabulary_size_per_gpu = int(max_vocabulary_size_per_gpu)
        self.embedding_vec_size = int(embedding_vec_size)
        self.slot_num = int(slot_num)
        self.use_hashtable = validation.flag(use_hashtable, "use_hashtable")
        self._num_workers = 1

    @staticmethod
    def _check_sizes(
        max_vocabulary_size_per_gpu: Any, embedding_vec_size: Any, slot_num: Any
    ) -> None:
        name = "max_vocabulary_size_per_gpu"
        validation.int_in(max_vocabulary_size_per_gpu, name, most=MAX_ROWS)
        validation.int_in(embedding_vec_size, "embedding_vec_size", most=validation.MAX_DIM)
        validation.int_in(slot_num, "slot_num")

    def _make_table(self) -> None:
        # Now, because the bound depends on the workers of the table's strategy.
        self._num_workers = strategies.worker_count(tf.distribute.get_strategy())
        if self.use_hashtable:
            max_rows = self.max_vocabulary_size_per_gpu * self._num_workers
            self.policy = TablePolicy(max_rows, eviction=None)  # refuses further keys
        super()._make_table()

    @property
    def embedding_variable(self) -> Variable:
        """The table.

        Raises:
            AttributeError: If the layer is not built.
        """
        return self.variable

    def get_config(self) -> dict[str, Any]:
        """The arguments. A random initializer has its seed, so a copy has the same rows."""
        config = super().get_config()
        return {
            # SOK's layers have no other arguments of the base class.
            **{key: config[key] for key in ("name", "trainable", "dtype", "key_dtype")},
            "max_vocabulary_size_per_gpu": self.max_vocabulary_size_per_gpu,
            "embedding_vec_size": self.embedding_vec_size,
            "slot_num": self.slot_num,
            "use_hashtable": self.use_hashtable,
            "embedding_initializer": config["initializer"],
            "optimizer": serialized(self.optimizer),
        }

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> SokLayer:
        name = "embedding_initializer"
        # Only older layers saved an initializer that scales. It scaled by the shape of a row.
        if isinstance(config.get(name), dict):
            initializer = deserialized(config[name], name)
            config = {**config, name: for_rows(initializer, 1, config["embedding_vec_size"])}
        return super().from_config(config)

    def _known_keys(self, keys: tf.Tensor, places: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the keys. Without a hash table, checks that they are row numbers.

        Args:
            places: The positions of the keys in the inputs, if the inputs are sparse.
        """
        if self.use_hashtable:
            return keys
        limit = self.max_vocabulary_size_per_gpu * self._num_workers
        message = (
            f"`inputs` of {self.name!r} must be numbers of rows from 0 to "
            f"max_vocabulary_size_per_gpu * number of workers - 1 = {limit - 1}, because "
            "use_hashtable=False."
        )
        return validation.in_range(keys, 0, limit - 1, message, places)
