# SPDX-License-Identifier: Apache-2.0
"""Lookups and steps of many tables, each with its own keys, by one op; typed.

Results and tables are those of an op for each table, bit for bit. All tables of a call are on one
device; on a GPU, all keys have 64 bits, or all have 32. The ops of many have no gradient.
`link_rows` and `link_pooled` tie the rows of one table to its token, so that a tape sees each
lookup separately: one without a gradient trains no row. See cc/ops/each_table_ops.cc.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import pooling_ops

_raw = _library.load()

tf.no_gradient("TfEmbedFindEach")
tf.no_gradient("TfEmbedFindPooledEach")


@dataclasses.dataclass(frozen=True)
class RowLookup:
    """A lookup of rows in one table.

    Attributes:
        handle: The table's resource.
        keys: Any shape, of the table's key dtype.
        owners: The shard of each key, flattened, int32; or [0] for the table's own rule.
        defaults: Rows of absent keys, of the table's value dtype: [0] for its initializer, [dim] or
            keys.shape + [dim].
        dim: The table's dim.
        training: Whether this counts as a use of the rows, if the table keeps statistics.
    """

    handle: tf.Tensor
    keys: tf.Tensor
    owners: tf.Tensor
    defaults: tf.Tensor
    dim: int
    training: bool = False


@dataclasses.dataclass(frozen=True)
class PooledLookup:
    """A pooled lookup in one table.

    Attributes:
        handle: As in `RowLookup`.
        keys: As in `RowLookup`.
        owners: As in `RowLookup`.
        defaults: As in `RowLookup`.
        bags: The partition of the keys into bags, see `pooling_ops.Bags`.
        weights: None, or the weight of each key, of `pooling_ops.compute_dtype(value_dtype)`.
        value_dtype: The table's value dtype, which must be floating.
        dim: The table's dim.
        combiner: "sum", "mean" or "sqrtn".
        padding: None, or a key that is ignored.
        training: As in `RowLookup`.
    """

    handle: tf.Tensor
    keys: tf.Tensor
    owners: tf.Tensor
    defaults: tf.Tensor
    bags: pooling_ops.Bags
    weights: tf.Tensor | None
    value_dtype: tf.DType
    dim: int
    combiner: str
    padding: pooling_ops.Padding | None
    training: bool = False


@dataclasses.dataclass(frozen=True)
class RowStep:
    """One step of an optimizer in one table.

    Attributes:
        handle: As in `RowLookup`. Each table has one step in a call.
        keys: As in `RowLookup`. The gradients of equal keys are summed before the rule runs.
        owners: As in `RowLookup`.
        gradients: keys.shape + [dim], of the value dtype; or float32 for float16 and bfloat16.
        hyper: float64 vector, the rule's hyper-parameters.
        step: int64 scalar, the number of this step; the first is 1.
        trained: Whether to make the step, a bool scalar.
        dim: The table's dim.
        rule: Name of the rule.
        distinct: A hint that all keys are distinct.
        stochastic_rounding: As in `Table.apply`.
    """

    handle: tf.Tensor
    keys: tf.Tensor
    owners: tf.Tensor
    gradients: tf.Tensor
    hyper: tf.Tensor
    step: tf.Tensor
    trained: tf.Tensor
    dim: int
    rule: str
    distinct: bool = False
    stochastic_rounding: bool = False


def find_each(lookups: Sequence[RowLookup]) -> list[tf.Tensor]:
    """Looks rows up in many tables, without changing any. A table may be repeated.

    Returns:
        The rows of each lookup, keys.shape + [dim]. They have no gradient, see `link_rows`.
    """
    return _raw.tf_embed_find_each(
        tables=[one.handle for one in lookups],
        keys=[one.keys for one in lookups],
        owners=[one.owners for one in lookups],
        defaults=[one.defaults for one in lookups],
        dims=[one.dim for one in lookups],
        training=[one.training for one in lookups],
    )


def find_pooled_each(lookups: Sequence[PooledLookup]) -> list[tuple[PooledLookup, tf.Tensor]]:
    """Looks rows up in many tables and pools the rows of each bag. A table may be repeated.

    Returns:
        The lookups, for `link_pooled`, and their pooled rows, the shape of the bags + [dim].
    """
    paddings = [pooling_ops.padding_arguments(one.padding) for one in lookups]
    pooled, found = _raw.tf_embed_find_pooled_each(
        tables=[one.handle for one in lookups],
        keys=[one.keys for one in lookups],
        owners=[one.owners for one in lookups],
        defaults=[one.defaults for one in lookups],
        bags=[tf.cast(part, tf.int64) for one in lookups for part in one.bags],
        weights=[one.weights for one in lookups if one.weights is not None],
        pooled_dtypes=[pooling_ops.compute_dtype(one.value_dtype) for one in lookups],
        num_bags=[len(one.bags) for one in lookups],
        has_weights=[one.weights is not None for one in lookups],
        combiners=[one.combiner for one in lookups],
        has_padding=[one.padding is not None for one in lookups],
        paddings=[[*one["padding"], 0][0] for one in paddings],
        padding_texts=[[*one["padding_text"], ""][0] for one in paddings],
        dims=[one.dim for one in lookups],
        training=[one.training for one in lookups],
        found_dtypes=[one.weights.dtype for one in lookups if one.weights is not None],
    )
    # The links use the rows of weighted lookups, so the op always writes them.
    rows = iter(found)
    linked = [
        one
        if one.weights is None
        else dataclasses.replace(one, defaults=tf.cast(next(rows), one.value_dtype))
        for one in lookups
    ]
    return list(zip(linked, pooled, strict=True))


def apply_each(steps: Sequence[RowStep]) -> tf.Operation | None:
    """Makes one step of an optimizer in each of many tables.

    If the step of a table fails, those of other tables may have been made. The error is that of the
    first table that failed, and names it.
    """
    return _raw.tf_embed_apply_each(
        tables=[one.handle for one in steps],
        keys=[one.keys for one in steps],
        owners=[one.owners for one in steps],
        gradients=[one.gradients for one in steps],
        hyper=[one.hyper for one in steps],
        step=[one.step for one in steps],
        trained=[one.trained for one in steps],
        dims=[one.dim for one in steps],
        rules=[one.rule for one in steps],
        distinct=[one.distinct for one in steps],
        stochastic_rounding=[one.stochastic_rounding for one in steps],
    )


def link_rows(lookup: RowLookup, rows: tf.Tensor, token: tf.Tensor) -> tf.Tensor:
    """The rows that `find_each` returned for a lookup, with the gradient of a single lookup.

    Args:
        rows: keys.shape + [dim]; not copied.
        token: The target of the gradient, see `gradient_ops.token`.
    """
    return _raw.tf_embed_link_rows(
        table=lookup.handle, keys=lookup.keys, rows=rows, token=token, dim=lookup.dim
    )


def link_pooled(lookup: PooledLookup, pooled: tf.Tensor, token: tf.Tensor | None) -> tf.Tensor:
    """The rows that `find_pooled_each` returned for a lookup, with the gradients of a single one.

    Args:
        lookup: From `find_pooled_each`. With weights, its `defaults` are the rows of its keys, of
            which the gradient of the weights is made.
        pooled: The shape of the bags + [dim]; not copied.
        token: The target of the gradient of the rows; or None for none.
    """
    return _raw.tf_embed_link_pooled(
        table=lookup.handle,
        keys=lookup.keys,
        pooled=pooled,
        defaults=lookup.defaults,
        tokens=[] if token is None else [token],
        bags=list(lookup.bags),
        weights=[] if lookup.weights is None else [lookup.weights],
        combiner=lookup.combiner,
        **pooling_ops.padding_arguments(lookup.padding),
        dim=lookup.dim,
    )
