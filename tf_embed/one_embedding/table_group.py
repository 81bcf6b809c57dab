# SPDX-License-Identifier: Apache-2.0
"""`TableGroup`: the base class of the layers of many tables."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import validation
from tf_embed.layers.ids import check_kind
from tf_embed.layers.ids_layer import IdsLayer, ids_dtype_of
from tf_embed.layers.prefetching import with_prefetch
from tf_embed.layers.step_outputs import given_in_step
from tf_embed.layers.table_layer import deserialized, serialized
from tf_embed.one_embedding.arguments import (
    devices_of,
    dtype_policy_of,
    native,
    padding_of,
    shares_of,
)
from tf_embed.one_embedding.batch import KeySpace, check_columns, check_same_shape
from tf_embed.one_embedding.initializers import WeightInitializer
from tf_embed.one_embedding.row_drawer import RowDrawer
from tf_embed.one_embedding.row_size import RowSize
from tf_embed.one_embedding.row_tables import RowLookup, RowTable
from tf_embed.one_embedding.snapshots import LayerSnapshots
from tf_embed.one_embedding.store_options import StoreOptions
from tf_embed.one_embedding.tables import initializers_of
from tf_embed.optimizers.own_optimizer import own_optimizer
from tf_embed.optimizers.rules import fused_rule
from tf_embed.saving import keras_files
from tf_embed.saving.progress import Progress
from tf_embed.sharded.new_table import check_one_process
from tf_embed.snapshots import PendingSnapshot, Snapshots
from tf_embed.snapshots.files import folder_name
from tf_embed.table.placement import check_one_gpu, place
from tf_embed.table.policies import TablePolicy, check_policy
from tf_embed.table.table import Table
from tf_embed.variable.memory_report import MemoryReport
from tf_embed.variable.table_text import options_text, rows_here, size_texts
from tf_embed.variable.variable import Variable

KEY_TYPES = (tf.int32, tf.uint32, tf.int64, tf.uint64)
ROW_TYPES = (tf.float32, tf.float16, tf.bfloat16)


@dataclasses.dataclass(frozen=True)
class _Arguments:
    """The user's arguments, as in the config. A dataclass, so that Keras does not wrap them."""

    embedding_dim: int | list[int]
    tables: list[Any] | None
    store_options: dict[str, Any]
    default_initializer: dict[str, Any] | None
    devices: list[str] | str | None
    policy: TablePolicy | None


class TableGroup(IdsLayer):
    """A layer of many tables: their rows, their optimizer, saving."""

    def __init__(
        self,
        name: str,
        embedding_dim: int | Sequence[int],
        dtype: Any,
        key_type: Any,
        tables: Sequence[dict[str, Any]] | None,
        store_options: dict[str, Any],
        default_initializer: dict[str, Any] | None = None,
        padding_idx: int | None = None,
        seed: int = 0,
        *,
        optimizer: Any = None,
        shared_ids: bool = False,
        policy: TablePolicy | dict[str, Any] | None = None,
        devices: Sequence[str] | str | None = None,
        **kwargs: Any,
    ) -> None:
        dims = self._dims_of(embedding_dim)
        folder_name(name, "name")  # snapshots are in a folder of that name
        super().__init__(name=name, dtype=dtype_policy_of(dtype), autocast=False, **kwargs)
        row_type = validation.dtype_of(self.variable_dtype, ROW_TYPES, "dtype")
        self.key_type = validation.dtype_of(key_type, KEY_TYPES, "key_type").name
        self._ids_dtype = ids_dtype_of(self.key_type)
        initializers = initializers_of(tables, default_initializer, len(dims))
        self.num_tables = len(initializers)
        self.shared_ids = validation.flag(shared_ids, "shared_ids")
        self.padding_idx = padding_of(padding_idx, tf.as_dtype(self.key_type))
        self.seed = validation.int_in(seed, "seed", least=-(2**63))
        store = StoreOptions.of(store_options)
        whole_policy: TablePolicy | None = deserialized(policy, "policy")
        check_policy(whole_policy, num_shards=1)  # `shares_of` has the bound of all shards
        if devices is not None:
            placement = place(devices, tf.int64, row_type)
            check_one_gpu(placement, type(self).__name__)
            store.check_device(placement.devices[0])
        self._arguments = _Arguments(
            embedding_dim=dims if isinstance(embedding_dim, (list, tuple)) else dims[0],
            # Copies, because the user may change the originals.
            tables=None if tables is None else copy.deepcopy(list(tables)),
            store_options=copy.deepcopy(store_options),
            default_initializer=copy.deepcopy(default_initializer),
            devices=devices if isinstance(devices, (str, type(None))) else list(devices),
            policy=whole_policy,
        )
        self._dims = tuple(dims)
        self._keys = KeySpace(
            self.name, self.key_type, self.num_tables, self.shared_ids, self.padding_idx
        )
        self._row_size = RowSize(self.name, sum(dims), store)
        own = None if optimizer is None else own_optimizer(optimizer)
        if own is not None and (rule := fused_rule(own)) is not None:
            self._row_size.check(rule)
        self._paths = store.paths
        self._drawers: tuple[RowDrawer, ...] = ()
        self._num_members = 0
        self._make_row_tables(initializers, row_type, store, optimizer)
        self._lookup: RowLookup | None = None
        self._saves: LayerSnapshots | None = None
        self._loads = keras_files.LoadAttempts()

    @staticmethod
    def _dims_of(embedding_dim: Any) -> list[int]:
        """Checks and returns the number of weights of each column; here there is one."""
        return [validation.int_in(embedding_dim, "embedding_dim", most=validation.MAX_DIM)]

    def _make_row_tables(
        self,
        initializers: list[list[WeightInitializer]],
        row_type: tf.DType,
        store: StoreOptions,
        optimizer: Any,
    ) -> None:
        """Makes the tables of rows: one for all tables or one for each, per folder."""
        keys, dim = self._keys, sum(self._dims)
        groups = [[one] for one in initializers] if keys.is_apart else [initializers]
        self._num_members = len(groups) * len(store.paths)
        devices = devices_of(self._arguments.devices, store.paths)
        storages = [store.storage(path, self._num_members) for path in store.paths]
        first = place(devices[0], tf.int64, row_type, storages[0])
        policies = shares_of(
            self._arguments.policy, store.capacity, self._num_members, len(first.devices)
        )
        table_of = keys.tables_of if keys.is_packed else tf.zeros_like
        number = 0
        for group, of_group in enumerate(groups):
            name = f"{self.name}/table_{group}" if keys.is_apart else self.name
            initial: Any = native(of_group, self.seed)
            if initial is None:
                initial = RowDrawer(name, of_group, self._dims, row_type, self.seed, table_of)
                self._drawers += (initial,)
            for of_shard, storage in zip(devices, storages, strict=True):
                part = RowTable(
                    dim,
                    row_type,
                    initial,
                    name,
                    optimizer=optimizer,
                    devices=of_shard,
                    init_size=store.init_size(self._num_members),
                    policy=policies[number],
                    storage=storage,
                    # Keras passes on only what is set later.
                    trainable=self.trainable,
                    name=f"{self.name}_rows_{number}",
                    dtype=self.dtype_policy,
                )
                # As attributes, because checkpoints skip layers in lists.
                setattr(self, f"_part_{number}", part)
                number += 1

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables of rows. They do not depend on the shape of the ids."""
        if self._lookup is None:
            self._make_tables()
        self.built = True

    def _make_tables(self) -> None:
        check_one_process(f"The layer of many tables {self.name!r}")
        with tf.init_scope():
            for number, drawer in enumerate(self._drawers):
                # As attributes, so that checkpoints find them.
                setattr(self, f"_generators_{number}", drawer.make())
        for part in self._parts:
            part.build()
            table = part.variable.table
            # A part with its own optimizer bound its rule in `build`, before the check was set.
            if table.rule is not None:
                self._row_size.check(table.rule)
            table.check_rule = self._row_size.check
        self._lookup = RowLookup(
            self._keys,
            [part.variable for part in self._parts],
            len(self._paths),
            sum(self._dims),
            self._drawers,
        )

    def _made(self) -> RowLookup:
        """The lookup; makes the tables if needed. The layer is built by its first call."""
        if self._lookup is None:
            # Keras builds a layer within this scope, which gives its variables their paths.
            with keras.name_scope(self.name):
                self._make_tables()
        assert self._lookup is not None
        return self._lookup

    @property
    def _parts(self) -> list[RowTable]:
        return [getattr(self, f"_part_{number}") for number in range(self._num_members)]

    @property
    def _generators(self) -> list[Table]:
        groups = [getattr(self, f"_generators_{i}") for i in range(len(self._drawers))]
        return [one.table for group in groups for one in group.members]

    # Tables, optimizers and size.

    @property
    def row_tables(self) -> list[Variable]:
        """The `tf_embed.Variable` of each table of rows, for `stats`, `export` and the like.

        32-bit ids and shared ids have one for all tables, other ids have one for each table. Each
        folder of `persistent_path` has its own variables. Keys are int64. A key is the id; if
        32-bit ids of several tables share a table of rows, it is the id plus 2^32 times its table
        number.
        """
        self._made()
        return [part.variable for part in self._parts]

    @property
    def optimizers(self) -> list[keras.optimizers.Optimizer]:
        """The layer's own optimizer, a copy for each of `row_tables`; empty without it."""
        return [part.optimizer for part in self._parts if part.optimizer is not None]

    def size(self) -> tf.Tensor:
        """The number of rows of all tables, an int64 scalar."""
        return tf.add_n([variable.size() for variable in self.row_tables])

    def memory_report(self) -> list[MemoryReport]:
        """Reports the memory of the rows in each tier; see `tf_embed.Variable.memory_report`.

        Returns:
            A printable report for each of `row_tables`; with several workers, of this worker's
            rows.
        """
        return [variable.memory_report() for variable in self.row_tables]

    def count_params(self) -> int:
        """The number of weights in the present rows; see `layers.DynamicEmbedding.count_params`."""
        others = super().count_params()  # raises if the layer is not built
        return others + sum(rows_here(one.table) * one.dim for one in self.row_tables)

    def __repr__(self) -> str:
        if "_loads" not in vars(self):  # a `repr` must not fail in an `__init__` that does
            return f"<{type(self).__name__}, not made>"
        texts = [
            f"name={validation.shown(self.name)}",
            f"tables={self.num_tables}",
            f"embedding_dim={self._arguments.embedding_dim}",
            f"key_type={self.key_type}",
            f"dtype={self._parts[0].value_dtype}",
        ]
        if self._lookup is None:
            own = self._parts[0].optimizer
            texts += [] if own is None else [f"optimizer={type(own).__name__}"]
        else:
            tables = [part.variable.table for part in self._parts]
            texts += [f"device={tables[0].options.device}", *size_texts(tables)]
            texts += options_text(tables[0])
        if not self.built:
            texts.append("not built")
        return f"<{type(self).__name__} {', '.join(texts)}>"

    # Lookups.

    @given_in_step
    def call(self, ids: Any, table_ids: Any = None, training: bool | None = None) -> tf.Tensor:
        """Looks up ids.

        Args:
            ids: A tensor of integers that `key_type` holds: (batch, number of tables), or of any
                shape with `table_ids` or if there is one table.
            table_ids: The number of each id's table, integers of the shape of `ids`. Default: the
                position on the last axis.
            training: Whether this is a use of the rows, on which a `policy` depends.

        Returns:
            Rows, ids.shape + [sum of the dims], in the layer's compute dtype. An id that has no row
            gets its initial row; nothing is stored.

        Raises:
            TypeError: If the ids are not dense integers, or `training` is a tensor.
            ValueError: If shapes do not fit.
            tf.errors.InvalidArgumentError: If an id does not fit `key_type`, or a table id is out
                of range.
        """
        is_training = validation.is_training(training)
        batch = self._keys.batch(ids, table_ids)
        rows = self._made().find(batch, is_training)
        rows = tf.reshape(rows, tf.concat([batch.sizes, [sum(self._dims)]], 0))
        rows = tf.ensure_shape(rows, batch.shape.concatenate([sum(self._dims)]))
        return tf.cast(rows, self._output_dtype)

    def forward(self, ids: Any, table_ids: Any = None, training: bool | None = None) -> tf.Tensor:
        """Looks up ids: upstream's name for calling the layer.

        Args:
            ids: As in `call`, and so are all others.

        Returns:
            As `call`.

        Raises:
            TypeError, ValueError: As `call`.
        """
        # By keyword, Keras takes Python lists too.
        return self(ids=ids, table_ids=table_ids, training=training)

    def prefetch(
        self,
        dataset: tf.data.Dataset,
        ids: Callable[[Any], Any] | None = None,
        buffer_size: int = 2,
    ) -> tf.data.Dataset:
        """Promotes the rows of the next batches from disk; see `DynamicEmbedding.prefetch`.

        Args:
            dataset: A dataset of batches, as `fit` takes it.
            ids: A function from an element to the ids, or to a tuple of ids and table ids. Default:
                the element, or its first item if it is (x, y) or (x, y, sample_weight).
            buffer_size: Number of batches to prefetch, an int from 0. Default: 2.

        Returns:
            A tf.data.Dataset of the same elements.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If `buffer_size` is out of range, `ids` is missing and an element has
                several inputs, or the tables are sharded over workers.
        """
        lookup = self._made()

        def bring_up(chosen: Any) -> list[tf.Operation]:
            some, tables = chosen if isinstance(chosen, tuple) else (chosen, None)
            return lookup.prefetch(self._keys.batch(some, tables))

        tables = [variable.table for variable in self.row_tables]
        return with_prefetch(dataset, bring_up, ids, buffer_size, self.name, tables)

    # Shapes.

    @override
    def compute_output_shape(
        self, ids_shape: Any, table_ids_shape: Any = None
    ) -> tuple[int | None, ...]:
        del table_ids_shape
        return (*tuple(ids_shape), sum(self._dims))

    @override
    def compute_output_spec(
        self, ids: Any, table_ids: Any = None, training: Any = None
    ) -> keras.KerasTensor:
        del training
        check_kind(tf.as_dtype(ids.dtype), tf.as_dtype(self.key_type), self.name)
        if table_ids is None:
            check_columns(ids.shape, self.num_tables, self.name)
        else:
            check_same_shape(ids.shape, table_ids.shape, self.name)
        shape = self.compute_output_shape(ids.shape)
        return keras.KerasTensor(shape, dtype=self._output_dtype)

    # Saving.

    def save_snapshot(
        self,
        snapshot_name: str,
        since: str | None = None,
        wait: bool = True,
        *,
        progress: Progress = None,
    ) -> PendingSnapshot:
        """Saves a consistent snapshot of all rows and their optimizer slots under a name.

        The rows of all `row_tables` are in one folder, "snapshots/<name of the layer>/<name of the
        snapshot>" in the first `persistent_path`. A complete snapshot replaces an earlier snapshot
        of the same name, but not a snapshot of another layer of this name in this process, unless
        it was loaded. The step of an optimizer is not saved; `model.save` and tf.train.Checkpoint
        save it.

        Args:
            snapshot_name: A name for a folder.
            since: The name of an earlier snapshot of the layer, to save only the rows changed since
                then. The policy must have `track_changes=True`. Default: None, all rows.
            wait: Whether to return only after the write. False: a thread writes the snapshot while
                training continues; the policy must have `track_changes=True`. Default: True.
            progress: Reports the number of written rows; see `tf_embed.Snapshots.save`. Default:
                None.

        Returns:
            The pending snapshot; its `wait()` returns a `SnapshotInfo`, or raises.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If the name is a path, there is no snapshot `since`, other snapshots build
                on the snapshot to be replaced, another layer saved it, or the layer must track
                changes but does not.
            RuntimeError: If this is called in a graph.
            tf.errors.FailedPreconditionError: If the layer has not tracked its changes since that
                snapshot; see `tf_embed.Snapshots.save`. Save all rows.
            tf.errors.OpError: If it can't be written.

        Example:
            >>> import tempfile, tf_embed
            >>> from tf_embed import one_embedding
            >>> store = one_embedding.make_device_mem_store_options(tempfile.mkdtemp(), 100)
            >>> layer = one_embedding.MultiTableEmbedding(
            ...     "example", 2, "float32", "int64", None, store, devices="/CPU:0",
            ...     policy=tf_embed.TablePolicy(eviction=None, track_changes=True))
            >>> layer.row_tables[0].upsert([1, 2, 3], [[1.0, 1.0]] * 3)
            >>> layer.save_snapshot("monday").wait().rows
            3
            >>> layer.row_tables[0].upsert([3], [[2.0, 2.0]])
            >>> layer.save_snapshot("tuesday", since="monday").wait().rows
            1
            >>> [info.name for info in layer.snapshots.list_snapshots()]
            ['monday', 'tuesday']
        """
        return self._snapshots().save(snapshot_name, since, wait, progress)

    def load_snapshot(self, snapshot_name: str, *, progress: Progress = None) -> None:
        """Loads the rows of a snapshot into a layer without rows.

        The numbers of shards and folders may differ. An incremental snapshot is loaded together
        with the snapshots that it builds on. A snapshot that the layer saved, or that
        `make_persistent_table_writer` wrote for it, takes precedence over a snapshot for any layer.

        Later snapshots can be saved `since` a loaded snapshot if the number of folders is the same,
        and the layer saved it or it was written for the layer. After a snapshot for any layer, the
        next snapshot has all rows.

        Args:
            snapshot_name: The name of the snapshot.
            progress: Reports the number of loaded rows; see `tf_embed.Snapshots.load`. Default:
                None.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If there is no such snapshot, it has another number of tables, or the layer
                is on a GPU.
            RuntimeError: If the layer has rows, or this is called in a graph.
            tf.errors.OpError: If files are damaged, or of another kind of table. Then nothing is
                loaded.
        """
        self._snapshots().load(snapshot_name, progress)

    @property
    def snapshots(self) -> Snapshots:
        """The `tf_embed.Snapshots` of `row_tables`, for `fold`, `keep`, `list_snapshots`, `wait`.

        It has the snapshots of `save_snapshot`, but not a writer's snapshots for any layer.
        """
        return self._snapshots().snapshots

    def _snapshots(self) -> LayerSnapshots:
        if self._saves is None:  # a single object, because it tracks the pending snapshot
            self._saves = LayerSnapshots(
                self.name,
                self._paths[0],
                self.row_tables,
                len(self._paths),
                self._keys.keys_in_words,
            )
        return self._saves

    def save_own_variables(self, store: Any) -> None:
        """Writes the seeds of initial rows; the tables of rows write their own. Keras calls it."""
        if self._lookup is None or not self._drawers:
            return
        arrays: dict[str, Any] = {}
        for number, table in enumerate(self._generators):
            arrays.update(keras_files.arrays_of(table, f"generator_{number}_"))
        keras_files.write(store, arrays)

    def load_own_variables(self, store: Any) -> None:
        """Loads the data of `save_own_variables`.

        Raises:
            ValueError: If the data is damaged, or belongs to another layer.
        """
        if not store.keys():
            return
        self.build()
        with self._loads.attempt(store):
            arrays = keras_files.read(store, self.name)
            names = [f"generator_{number}_" for number in range(len(self._generators))]
            keras_files.import_all(self._generators, arrays, names)

    @override
    def get_config(self) -> dict[str, Any]:
        keras_files.refuse_old_format(self.name)
        arguments, optimizers = self._arguments, self.optimizers
        return {
            **super().get_config(),
            "embedding_dim": arguments.embedding_dim,
            "key_type": self.key_type,
            # Copies, because the caller may change the config.
            "tables": copy.deepcopy(arguments.tables),
            "store_options": copy.deepcopy(arguments.store_options),
            "default_initializer": copy.deepcopy(arguments.default_initializer),
            "padding_idx": self.padding_idx,
            "seed": self.seed,
            "optimizer": serialized(optimizers[0]) if optimizers else None,
            "shared_ids": self.shared_ids,
            "policy": serialized(arguments.policy),
            "devices": arguments.devices,
        }
