# SPDX-License-Identifier: Apache-2.0
"""Typed wrappers of the ops of a table, one function for each op.

The ops check their inputs themselves, and `validation.py` checks the arguments of users. The
wrappers check nothing. They share these inputs:

    handle: The table's resource, a scalar.
    keys: Any shape, of the table's key dtype. A row's shape is [dim], so the rows of `keys` have
        the shape keys.shape + [dim].
    owners: The shard of each key, flattened, int32. An int32 [0] means the table's own rule,
        floor_mod(key, num_shards).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import stock_ops, substitutes

_raw = _library.load()

# The partition of keys into bags. (): the keys along the last axis. (row splits [bags + 1],): runs
# of the flattened keys. (indices [keys, rank], dense shape [rank]): the lines along the last axis
# of a sparse tensor, whose values are the keys in any order.
Bags: TypeAlias = tuple[tf.Tensor, ...]

# A key that is ignored.
Padding: TypeAlias = int | str | bytes


class Exported(NamedTuple):
    """A consistent snapshot of a whole table, for `import_`.

    Attributes:
        keys: [n].
        values: [n, dim].
        slots: [n, slots of a row].
        meta: int64 vector: seed, table id, rule and slot groups, see cc/core/files/table_meta.h.
        statistics: int64 [n, statistics of a row]: the usage statistics of each row.
        policy: int64 vector: the table's clock, its set of statistics, and the admission counts.
    """

    keys: tf.Tensor
    values: tf.Tensor
    slots: tf.Tensor
    meta: tf.Tensor
    statistics: tf.Tensor
    policy: tf.Tensor


def create_table(
    *,
    shared_name: str | None,
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    dim: int,
    num_shards: int,
    init_size: int,
    label: str,
    initializer: str,
    initializer_values: Sequence[float],
    seed: int,
    table_id: int,
    policy: Mapping[str, Any] | None = None,
    storage: Mapping[str, Any] | None = None,
) -> tf.Tensor:
    """Creates a table, or in a graph finds the table of that `shared_name`; returns its handle.

    Args:
        shared_name: The name by which a graph finds its table again each time that it runs. None in
            eager execution, in which each call creates a table. TensorFlow caches a kernel for each
            set of attributes, so there names and numbers are inputs instead.
        init_size: Rows that each shard reserves.
        label: The name that error messages use.
        initializer: Kind of the initial row of a key, see `initializers.RowInitializer`.
        policy: Further settings, for admission and eviction; None for no policy.
        storage: Further settings: the tiers that hold the rows, and their bounds.
    """
    attributes = {
        "key_dtype": key_dtype,
        "value_dtype": value_dtype,
        "dim": dim,
        "num_shards": num_shards,
        "initializer": initializer,
    }
    settings = {
        "label": label,
        "init_size": init_size,
        "seed": seed,
        "table_id": table_id,
        **_NO_POLICY,
        **(policy or {}),
        **_NO_STORAGE,
        **(storage or {}),
    }
    if shared_name is None:
        return _raw.tf_embed_new_table(
            initializer_values=np.asarray(initializer_values, np.float64),
            **{name: _input_of(setting) for name, setting in settings.items()},
            **attributes,
        )
    # A SavedModel keeps the rows in memory and needs no server.
    settings.pop("redis")
    return _raw.tf_embed_table(
        shared_name=shared_name,
        initializer_values=decimal_numbers(initializer_values),
        **settings,
        **attributes,
    )


# The settings of a table without a policy, and of a table without a bound on memory.
_NO_POLICY = {
    "max_rows": 0,
    "eviction": "lru",
    "steps_per_epoch": 0,
    "ttl_milliseconds": 0,
    "admission": "none",
    "admission_threshold": 1,
    "admission_error_rate": 0.01,
    "admission_max_keys": 0,
    "statistics": 0,
    "log_evicted": False,
}
_NO_STORAGE = {
    "gpu_total_bytes": -1,
    "gpu_bytes": -1,
    "host_bytes": 0,
    "gpu_cache": False,
    "evict_by_bytes": False,
    "path": "",
    "disk_bytes": -1,
    "keep_leftovers": False,
    "redis": "",
}


def _input_of(setting: Any) -> Any:
    """A number as an array, because TensorFlow caches a tensor for each Python number."""
    if isinstance(setting, str):
        return setting
    return np.asarray(setting, np.float32 if isinstance(setting, float) else None)


def checked_sparse(ids: tf.SparseTensor, label: str) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The parts of sparse ids, after a check that the indices lie within the dense_shape.

    TensorFlow accepts any numbers for both, and aborts the process if a size becomes negative.

    Args:
        label: The name of the ids in messages.
    """
    if substitutes.are_used():
        return stock_ops.checked_sparse(ids.indices, ids.values, ids.dense_shape, label)
    return _raw.tf_embed_check_sparse(ids.indices, ids.values, ids.dense_shape, label)


def find(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    defaults: tf.Tensor,
    token: tf.Tensor | None,
    *,
    dim: int,
    training: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Looks up rows, without changing any.

    Args:
        defaults: Rows of absent keys: [0] for the table's initializer, [dim] for one row for
            all, or keys.shape + [dim].
        token: The target of the gradient of the rows: the anchor's value, or in a graph a `token`
            of it. None means no gradient.
        training: Whether this counts as a use of the rows, if the table keeps statistics.

    Returns:
        The rows, keys.shape + [dim], and whether the table holds each key, keys.shape.
    """
    return _raw.tf_embed_find(
        table=handle,
        keys=keys,
        owners=owners,
        defaults=defaults,
        tokens=[] if token is None else [token],
        dim=dim,
        training=training,
    )


def find_pooled(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    defaults: tf.Tensor,
    token: tf.Tensor | None,
    bags: Bags,
    weights: tf.Tensor | None,
    *,
    value_dtype: tf.DType,
    dim: int,
    combiner: str,
    padding: Padding | None,
    training: bool = False,
) -> tf.Tensor:
    """Looks up rows and pools the rows of each bag, without changing any row.

    Args:
        defaults: As in `find`.
        token: As in `find`.
        bags: The partition of the keys into bags.
        weights: None, or the weight of each key, of `compute_dtype(value_dtype)`.
        value_dtype: The table's value dtype, which must be floating.
        combiner: "sum", "mean" or "sqrtn".
        padding: None, or a key that is ignored: its number in int64, or a string.
        training: As in `find`.

    Returns:
        A row for each bag, the shape of the bags + [dim], of `compute_dtype(value_dtype)`.
    """
    return _raw.tf_embed_find_pooled(
        table=handle,
        keys=keys,
        owners=owners,
        defaults=defaults,
        tokens=[] if token is None else [token],
        bags=list(bags),
        weights=[] if weights is None else [weights],
        pooled_dtype=compute_dtype(value_dtype),
        dim=dim,
        combiner=combiner,
        **padding_arguments(padding),
        training=training,
    )


def sum_by_key(
    keys: tf.Tensor,
    gradients: tf.Tensor,
    bags: Bags = (),
    weights: tf.Tensor | None = None,
    *,
    sum_dtype: tf.DType,
    combiner: str = "none",
    padding: Padding | None = None,
    handle: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums the gradients of equal keys, in position order.

    Args:
        keys: Any shape.
        gradients: keys.shape + [dim]. With a combiner, the gradients of the rows that
            `find_pooled` returned for the same further arguments.
        sum_dtype: Dtype of the sums. Its `compute_dtype`, in which the sums are computed, must be
            the same as that of the gradients' dtype.
        handle: The table whose device runs the op. None runs it on the host, which also works in
            a build without GPUs.

    Returns:
        The distinct keys [u] in order of first occurrence, the index of each key among them,
        keys.shape, int32, -1 for padding, and the sums [u, dim].
    """
    with _where(handle) as tables:
        return _raw.tf_embed_sum_by_key(
            keys=keys,
            gradients=gradients,
            bags=list(bags),
            weights=[] if weights is None else [weights],
            tables=tables,
            sum_dtype=sum_dtype,
            combiner=combiner,
            **padding_arguments(padding),
        )


def unique_keys(keys: tf.Tensor, handle: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the distinct keys.

    Args:
        handle: As in `sum_by_key`.

    Returns:
        The distinct keys [u] in order of first occurrence, and the index of each key among them,
        keys.shape, int32.
    """
    if substitutes.are_used():
        return stock_ops.unique_keys(keys)
    with _where(handle) as tables:
        return _raw.tf_embed_unique_keys(keys=keys, tables=tables)


@contextlib.contextmanager
def _where(handle: tf.Tensor | None) -> Iterator[list[tf.Tensor]]:
    """The `tables` input of an op that needs no table: it only places the op on a device."""
    if handle is not None:
        yield [handle]
    else:
        with tf.device("/CPU:0"):
            yield []


def padding_arguments(padding: Padding | None) -> dict[str, Any]:
    """The padding arguments of the ops."""
    if isinstance(padding, (str, bytes)):
        return {"padding": [], "padding_text": [padding]}
    return {"padding": [] if padding is None else [stock_ops.as_int64(padding)], "padding_text": []}


def compute_dtype(value_dtype: tf.DType) -> tf.DType:
    """The dtype in which rows of a dtype are summed: float64 for float64, otherwise float32."""
    return tf.float64 if value_dtype == tf.float64 else tf.float32


def find_or_insert(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    defaults: tf.Tensor,
    *,
    dim: int,
    training: bool = False,
    scores: Sequence[tf.Tensor] = (),
) -> tuple[tf.Tensor, tf.Tensor]:
    """The same as `find`, but inserts absent keys; in training, those that `apply` would insert."""
    return _raw.tf_embed_find_or_insert(
        table=handle,
        keys=keys,
        owners=owners,
        defaults=defaults,
        scores=list(scores),
        dim=dim,
        training=training,
    )


def insert_or_assign(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    values: tf.Tensor,
    *,
    dim: int,
    scores: Sequence[tf.Tensor] = (),
    distinct: bool = False,
) -> tf.Operation | None:
    """Writes rows. The last of equal keys wins; with `distinct`, any one of them."""
    return _raw.tf_embed_insert_or_assign(
        table=handle,
        keys=keys,
        owners=owners,
        values=values,
        scores=list(scores),
        dim=dim,
        distinct=distinct,
    )


def accum(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    old_values: tf.Tensor,
    new_values: tf.Tensor,
    exists: tf.Tensor,
    *,
    dim: int,
    scores: Sequence[tf.Tensor] = (),
) -> tf.Operation | None:
    """Adds differences to present rows and inserts absent ones; see `Variable.accum`."""
    return _raw.tf_embed_accum(
        table=handle,
        keys=keys,
        owners=owners,
        old_values=old_values,
        new_values=new_values,
        exists=exists,
        scores=list(scores),
        dim=dim,
    )


def apply(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    gradients: tf.Tensor,
    hyper: tf.Tensor,
    step: tf.Tensor,
    *,
    dim: int,
    rule: str,
    scores: Sequence[tf.Tensor] = (),
    distinct: bool = False,
    stochastic_rounding: bool = False,
    token: Sequence[tf.Tensor] = (),
    trained: Sequence[tf.Tensor] = (),
) -> tf.Operation | None:
    """One step of an optimizer on the rows of `keys`.

    Args:
        gradients: keys.shape + [dim], of the table's value dtype, or float32 for float16 and
            bfloat16 tables. The gradients of equal keys are summed before the rule runs.
        hyper: float64 vector, the rule's hyper-parameters, see `optimizers/rules.py`.
        step: int64 scalar, the number of this step; the first is 1.
        rule: Name of the rule. A rule that is not the present one replaces the table's slots.
        distinct: A hint that all keys are distinct, which skips the search for duplicates.
        stochastic_rounding: Rounds float16 and bfloat16 weights up or down without bias. The noise
            is a function of the table's seed and id, the step, the key and the column. Other
            dtypes are not affected.
        token: Empty, or one int64 [2]: a number of this step, which the table applies only once
            even if it is sent again, and a number below which all steps are complete.
        trained: Empty, or one bool scalar: whether to apply the step.
    """
    return _raw.tf_embed_apply(
        table=handle,
        keys=keys,
        owners=owners,
        gradients=gradients,
        hyper=hyper,
        step=step,
        scores=list(scores),
        token=list(token),
        trained=list(trained),
        dim=dim,
        rule=rule,
        distinct=distinct,
        stochastic_rounding=stochastic_rounding,
    )


def prefetch(handle: tf.Tensor, keys: tf.Tensor, owners: tf.Tensor) -> tf.Operation | None:
    """Promotes rows from lower tiers to the first tier. Absent keys are skipped."""
    return _raw.tf_embed_prefetch(table=handle, keys=keys, owners=owners)


def erase(handle: tf.Tensor, keys: tf.Tensor, owners: tf.Tensor) -> tf.Operation | None:
    """Removes keys. Absent keys are ignored."""
    return _raw.tf_embed_erase(table=handle, keys=keys, owners=owners)


def clear(handle: tf.Tensor) -> tf.Operation | None:
    """Removes every key and frees the memory."""
    return _raw.tf_embed_clear(table=handle)


def destroy(
    handle: tf.Tensor, eagerly: Callable[[], contextlib.AbstractContextManager[Any]]
) -> None:
    """Frees a table. The last reference to it may be dropped in a graph or in another thread.

    Args:
        eagerly: Returns a context of eager execution.
    """
    with eagerly():
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def shrink(handle: tf.Tensor) -> tf.Operation | None:
    """Compacts the table and frees memory."""
    return _raw.tf_embed_shrink(table=handle)


def size(handle: tf.Tensor, shard: int | tf.Tensor) -> tf.Tensor:
    """Number of keys in a shard, or in all shards if `shard` is -1; int64 scalar."""
    return _raw.tf_embed_size(table=handle, shard=tf.cast(shard, tf.int64))


def export(
    handle: tf.Tensor,
    *,
    key_dtype: tf.DType,
    value_dtype: tf.DType,
    slot_dtype: tf.DType,
    dim: int,
    with_slots: bool,
    with_policy: bool = True,
) -> Exported:
    """Copies the whole table.

    Args:
        with_slots: Whether to copy slots; otherwise their width is 0.
        with_policy: Whether to copy statistics, clock and admission counts; otherwise the width of
            the statistics is 0.
    """
    exported = _raw.tf_embed_export(
        table=handle,
        key_dtype=key_dtype,
        value_dtype=value_dtype,
        slot_dtype=slot_dtype,
        dim=dim,
        with_slots=with_slots,
        with_policy=with_policy,
    )
    return Exported(*exported)


def import_(
    handle: tf.Tensor,
    keys: tf.Tensor,
    owners: tf.Tensor,
    values: tf.Tensor,
    slots: tf.Tensor,
    meta: tf.Tensor,
    statistics: tf.Tensor,
    policy: tf.Tensor,
) -> tf.Operation | None:
    """Replaces the whole content of a table with an export."""
    return _raw.tf_embed_import(
        table=handle,
        keys=keys,
        owners=owners,
        values=values,
        slots=slots,
        meta=meta,
        statistics=statistics,
        policy=policy,
    )


def token(anchor: tf.Tensor, *, key_dtype: tf.DType, rows: int = -1) -> tf.Tensor:
    """A variant scalar that links a lookup to the anchor, so that the gradient reaches it.

    If it is created outside the loops and conditions of a lookup, it carries gradients out of them;
    see cc/ops/gradient_ops.cc.

    Args:
        anchor: The value [0, dim] of the variable that represents the table on a gradient tape.
        key_dtype: Dtype of the table's keys.
        rows: Number of rows, for the shape of the gradient; -1 if the table has none.
    """
    return _raw.tf_embed_token(anchor=anchor, key_dtype=key_dtype, dim=anchor.shape[1], rows=rows)


@functools.cache
def has_gpu_tables() -> bool:
    """Whether tables can be on GPUs: the build supports them, and CUDA finds one."""
    with tf.init_scope(), tf.device("/CPU:0"):
        return bool(_raw.tf_embed_has_gpu_tables())


def row_gradients(keys: tf.Tensor, values: tf.Tensor, packed: bool = False) -> tf.Tensor:
    """Packs gradients of rows into one variant scalar, which TensorFlow can add and zero.

    Args:
        keys: [n].
        values: [n, dim].
        packed: Whether `keys` are a packed batch, and `values` the gradients [m, 1] of its pooled
            values.
    """
    return _raw.tf_embed_row_gradients(keys=keys, values=values, packed=packed)


def unpack_row_gradients(
    gradients: tf.Tensor, *, key_dtype: tf.DType, value_dtype: tf.DType, dim: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The keys [n] and the gradients [n, dim] in such a variant."""
    return _raw.tf_embed_unpack_row_gradients(
        gradients=gradients, key_dtype=key_dtype, value_dtype=value_dtype, dim=dim
    )


def keys_of(gradient: tf.IndexedSlices, key_dtype: tf.DType, owner: str) -> tf.Tensor:
    """The keys of an anchor's gradient.

    Args:
        owner: Name of the table, for messages.

    Raises:
        TypeError: If the indices and the table's keys are not both strings or both integers.
        tf.errors.InvalidArgumentError: If an index does not fit the key dtype. Raised by the op.
    """
    keys = gradient.indices
    if not tf.is_tensor(keys):  # tf.IndexedSlices that the user made
        keys = tf.convert_to_tensor(keys, key_dtype)
    if key_dtype == tf.uint64 and keys.dtype == tf.int64:
        return tf.bitcast(keys, tf.uint64)
    if (key_dtype == tf.string) != (keys.dtype == tf.string):
        raise TypeError(
            f"The gradient of {owner!r} must have its {key_dtype.name} keys as its indices. "
            f"Received: indices of dtype {keys.dtype.name}"
        )
    cast = tf.cast(keys, key_dtype)
    if keys.dtype.size <= key_dtype.size:
        return cast
    message = f"The gradient of {owner!r} must have {key_dtype.name} keys as its indices."
    check = tf.debugging.assert_equal(tf.cast(cast, keys.dtype), keys, message)
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(cast)


def decimal_numbers(numbers: Sequence[float]) -> str:
    """Numbers as exact text, because eager TensorFlow accepts no tensor attribute."""
    return " ".join(repr(float(number)) for number in numbers)
