# SPDX-License-Identifier: Apache-2.0
"""`MultiTableEmbedding` and `MultiTableMultiColumnEmbedding`."""

from __future__ import annotations

from typing import Any

import keras
from typing_extensions import override

from tf_embed import validation
from tf_embed.one_embedding.table_group import TableGroup


@keras.saving.register_keras_serializable(package="tf_embed.one_embedding")
class MultiTableEmbedding(TableGroup):
    """Looks up the ids of many tables with one embedding dim.

    The layer is OneFlow's layer of this name for Keras 3 and TensorFlow. It takes the same
    arguments in the same order. Call it as `layer(ids, table_ids)` or
    `layer.forward(ids, table_ids)`. An id gets its row when it receives its first gradient. Until
    then a lookup returns its initial row and stores nothing.

    The initial row is a function of the seed, the layer's name, the table and the id. It does not
    depend on the batch, the order, the number of shards or the process.

    The layer is trained like all layers with tables: by its own optimizer, `optimizer=`, or by the
    model's, wrapped in `tf_embed.DynamicEmbeddingOptimizer`. Keras files, checkpoints, exported
    models, `get_weights` and mixed precision work as in `tf_embed.layers.DynamicEmbedding`.

    In the scope of a tf.distribute.MultiWorkerMirroredStrategy, rows are sharded over the workers.
    `capacity` is the total of all workers, and the budgets of a store are per worker.

    Differences from OneFlow:
        - Equal ids in two tables have two rows, unless `shared_ids` is set.
        - Rows beyond `capacity` are stored, unless it is the bound of `policy`.
        - Evaluation stores nothing.
        - The layer runs without a GPU. `devices` says where it is; there is no `to("cuda")`.
        - `fit` or tf.function compiles the step; there is no graph to define.
        - Two layers may have the same name. Even with the same `persistent_path`, neither layer
          replaces a snapshot of the other.

    Limits:
        - With 64-bit ids, each table has its own table of rows, with an equal share of `capacity`,
          of `max_rows` and of the store's budgets. The first tables take the remainder. `max_keys`
          of an admission holds for each of `row_tables`.
        - If tables or columns have different initializers, rows are drawn outside of the table.
          Pooled lookups and steps then look up their keys twice.
        - With `shared_ids` and different initializers, a training loop must call the layer with
          `training=True`, as `fit` does. Otherwise a step starts a new row from the initializer of
          the first table, not from the row that was looked up.

    Args:
        name: Name of the layer, a str that can name a folder. Initial rows depend on it.
        embedding_dim: Number of weights in a row, an int from 1.
        dtype: Dtype of rows and of the output: float32, float16 or bfloat16; or a Keras dtype
            policy such as "mixed_float16", whose variable dtype the rows have. With a
            DTypePolicyMap, its default policy applies. None: Keras's global policy.
        key_type: Dtype of ids: int32, uint32, int64 or uint64. Ids of another integer dtype are
            cast; an id that does not fit is an error.
        tables: A list with the dict of `make_table_options` for each table. None: one table, with
            `default_initializer`.
        store_options: The dict of `make_device_mem_store_options`,
            `make_cached_host_mem_store_options` or `make_cached_ssd_store_options`.
        default_initializer: The dict of an initializer, such as `make_normal_initializer` returns,
            for `tables=None`. Default: a normal distribution of standard deviation 0.05.
        padding_idx: The padding id of each table. Its output is zeros, and it has no gradient and
            no row. Default: None, no padding id.
        seed: Seed of initial rows, an int64. Default: 0.
        optimizer: The layer's own optimizer, a Keras optimizer or its name; see
            `tf_embed.layers.DynamicEmbedding`. Default: None, the model's optimizer trains the
            rows.
        shared_ids: Whether all tables share one id space, as in OneFlow. Equal ids then share a
            row. Its initial row is drawn for the table of the id's first call with
            `training=True`. Default: False.
        policy: A `tf_embed.TablePolicy` for admission and eviction. Its `max_rows` is the bound of
            all tables and folders together. If it has an order of eviction and no `max_rows`,
            `capacity` is the bound. New rows then evict others. Rows without room are refused and
            counted in `stats()` of `row_tables`. A bound must be at least a row for each shard of
            `row_tables`. Default: None, the table grows.
        devices: The device of each shard, CPUs or one GPU; see `tf_embed.Variable`. Default: None,
            one shard for each folder of `persistent_path`, on the first GPU, or on the CPU if there
            is none, or if rows on disk have no budget for a cache there.
        **kwargs: `trainable` of keras.layers.Layer.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or `size_factor` or `storage_dim` of
            `store_options` does not match the optimizer.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed import one_embedding
        >>> tables = [
        ...     one_embedding.make_table(one_embedding.make_constant_initializer(value))
        ...     for value in (1.0, 2.0)]
        >>> store = one_embedding.make_device_mem_store_options("/tmp/rows", capacity=100)
        >>> layer = one_embedding.MultiTableEmbedding(
        ...     "example", 2, "float32", "int64", tables, store, padding_idx=0)
        >>> layer(tf.constant([[7, 7], [0, 8]])).numpy().tolist()
        [[[1.0, 1.0], [2.0, 2.0]], [[0.0, 0.0], [2.0, 2.0]]]
        >>> layer(tf.constant([7, 9]), table_ids=tf.constant([1, 0])).numpy().tolist()
        [[2.0, 2.0], [1.0, 1.0]]

    Reference:
        OneFlow, "oneflow.one_embedding".
    """


@keras.saving.register_keras_serializable(package="tf_embed.one_embedding")
class MultiTableMultiColumnEmbedding(TableGroup):
    """Looks up the ids of many tables, with rows of several columns.

    It works like `MultiTableEmbedding`. A row is the concatenation of its columns. The column dims
    are the same in all tables. Each column of each table has its own initializer.

    Args:
        name: As in `MultiTableEmbedding`, and so are all others that are not below.
        embedding_dim: Number of weights of each column, a list of ints from 1; or an int, for one
            column.
        tables: As in `MultiTableEmbedding`. A table made from a list must have options for each
            column. The initializer of a table made from a dict is used for each column.
        default_initializer: As in `MultiTableEmbedding`, for each column.
        **kwargs: `trainable` of keras.layers.Layer.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: As in `MultiTableEmbedding`, or if a table has a wrong number of columns.

    Example:
        >>> import tensorflow as tf
        >>> from tf_embed import one_embedding
        >>> columns = [
        ...     one_embedding.make_column_options(one_embedding.make_constant_initializer(value))
        ...     for value in (1.0, 2.0)]
        >>> store = one_embedding.make_device_mem_store_options("/tmp/rows", capacity=100)
        >>> layer = one_embedding.MultiTableMultiColumnEmbedding(
        ...     "columns", [2, 1], "float32", "int64", [one_embedding.make_table(columns)], store)
        >>> layer(tf.constant([5, 6])).numpy().tolist()
        [[1.0, 1.0, 2.0], [1.0, 1.0, 2.0]]
    """

    @staticmethod
    @override
    def _dims_of(embedding_dim: Any) -> list[int]:
        columns = embedding_dim if isinstance(embedding_dim, (list, tuple)) else [embedding_dim]
        if not columns:
            raise ValueError("`embedding_dim` must have at least one column. Received: []")
        dims = [validation.int_in(one, "embedding_dim", most=validation.MAX_DIM) for one in columns]
        # The whole row must fit too, not only each column.
        validation.int_in(sum(dims), "embedding_dim", most=validation.MAX_DIM)
        return dims
