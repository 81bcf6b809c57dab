"""From what a table-batched layer is called with to one batch of bags, and where their rows go.

A batch has its bags feature by feature: those of the first feature, then those of the second. Bag b
holds the indices from offsets[b] up to offsets[b + 1].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_embed import _library, arguments
from tf_embed.layers.ids import cast_ids

_raw = _library.load()


@dataclasses.dataclass(frozen=True)
class Batch:
    """The bags of all features.

    Attributes:
        indices: int64 [n].
        offsets: int64 [bags + 1].
        weights: float32 [n], or None.
        num_bags: int64 [features]; how many bags are of each.
    """

    indices: tf.Tensor
    offsets: tf.Tensor
    weights: tf.Tensor | None
    num_bags: tf.Tensor

    @property
    def num_features(self) -> int:
        """How many features there are."""
        return int(self.num_bags.shape[0])


def of_offsets(
    indices: Any, offsets: Any, weights: Any, *, num_features: int, bag_counts: Any, owner: str
) -> Batch:
    """The batch of indices and offsets that are feature by feature already.

    Args:
        indices: Integers [n].
        offsets: Integers [bags + 1].
        weights: None, or numbers [n].
        num_features: How many features there are.
        bag_counts: None, where each feature has as many bags; else int64 [features].
        owner: Whose they are, for messages.

    Raises:
        TypeError: Of a wrong dtype.
        ValueError: Of a wrong shape.
    """
    indices = _vector(indices, "indices", owner)
    offsets = _vector(offsets, "offsets", owner)
    if weights is not None:
        weights = _weights(weights, indices, owner)
    count = tf.size(offsets, tf.int64) - 1
    if bag_counts is None:
        static = offsets.shape[0]
        if static is not None and (static < 1 or (static - 1) % num_features):
            raise ValueError(
                f"`offsets` of {owner!r} must have one for each bag, equally many of each of "
                f"{num_features} features, and one more. Received: offsets.shape={offsets.shape}"
            )
        # Where that is not known yet, the check of bounds finds it wanting.
        bag_counts = tf.fill([num_features], count // num_features)
    return Batch(indices, offsets, weights, bag_counts)


def of_features(
    features: Sequence[Any], weights: Sequence[Any] | None, *, names: Sequence[str], owner: str
) -> Batch:
    """The batch of one container a feature.

    Args:
        features: Of each feature a tf.RaggedTensor [B, None], a tf.SparseTensor [B, L], or a tensor
            [B, L] or [B].
        weights: None, or the same containers of weights.
        names: Names of the features, for messages.
        owner: Whose they are, for messages.

    Raises:
        TypeError: Of a wrong dtype.
        ValueError: Of a wrong shape, or features and weights do not go together.
    """
    parts = [
        _bags_of(feature, f"{owner}, feature {name!r}")
        for feature, name in zip(features, names, strict=True)
    ]
    num_bags = [tf.size(lengths, tf.int64) for _, lengths in parts]
    checks = [
        tf.debugging.assert_equal(
            count,
            num_bags[0],
            f"The features of {owner!r} must have equally many bags. {name!r} has not.",
        )
        for count, name in zip(num_bags[1:], names[1:], strict=True)
    ]
    flat = tf.concat([values for values, _ in parts], 0)
    lengths = tf.concat([lengths for _, lengths in parts], 0)
    offsets = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], 0)
    all_weights = None
    if weights is not None:
        all_weights = tf.concat(
            [
                _weights_of(one, feature, f"{owner}, feature {name!r}")
                for one, feature, name in zip(weights, features, names, strict=True)
            ],
            0,
        )
    return Batch(arguments.after(flat, *checks), offsets, all_weights, tf.stack(num_bags))


def in_order(inputs: Any, names: Sequence[str] | None, argument: str, owner: str) -> list[Any]:
    """The features of a list, or of a mapping from their names.

    Raises:
        ValueError: There are not as many as features, or not those.
    """
    if not isinstance(inputs, Mapping):
        return list(inputs)
    if names is None:
        raise ValueError(
            f"`feature_names` of {owner!r} must be given where `{argument}` is a dict. Received: "
            f"{argument}={sorted(inputs)}"
        )
    if sorted(inputs) != sorted(names):
        raise ValueError(
            f"`{argument}` of {owner!r} must have just the features {sorted(names)}. Received: "
            f"{argument}={sorted(inputs)}"
        )
    return [inputs[name] for name in names]


def each_alone(batch: Batch) -> Batch:
    """The same indices, each in a bag of its own."""
    ends = tf.gather(batch.offsets, tf.cumsum(batch.num_bags))
    counts = ends - tf.concat([[tf.constant(0, tf.int64)], ends[:-1]], 0)
    alone = tf.range(tf.size(batch.indices, tf.int64) + 1)
    return Batch(batch.indices, alone, batch.weights, counts)


def in_bounds(
    batch: Batch, *, rows: Sequence[int | None], tables: Sequence[str], owner: str, mode: str
) -> tuple[Batch, tf.Tensor]:
    """Takes indices out that are no row numbers; see TfEmbedCheckBounds.

    Args:
        batch: The batch.
        rows: Of each feature the number of its rows; None where each index is good.
        tables: Of each feature the name of its table.
        owner: Whose batch it is, for messages.
        mode: "fatal", "warning", "ignore" or "none".

    Returns:
        The batch without them, and how many faults are counted, int64.
    """
    checked = _raw.tf_embed_check_bounds(
        indices=batch.indices,
        offsets=batch.offsets,
        num_bags=batch.num_bags,
        rows=[-1 if count is None else count for count in rows],
        tables=list(tables),
        owner=owner,
        mode=mode,
    )
    weights = batch.weights
    if weights is not None:
        kept = checked.kept
        weights = tf.cond(checked.changed, lambda: tf.gather(weights, kept), lambda: weights)
    indices, offsets = checked.checked_indices, checked.checked_offsets
    return Batch(indices, offsets, weights, batch.num_bags), checked.num_events


def with_gradients_of(batch: Batch, features: Any, owner: str) -> Batch:
    """The same batch, whose weights have gradients where their feature is not 0 in `features`.

    Raises:
        ValueError: `features` is not one number for each feature.
    """
    mask = tf.convert_to_tensor(features)
    if mask.shape != (batch.num_features,):
        raise ValueError(
            f"`feature_requires_grad` of {owner!r} must be one number for each of "
            f"{batch.num_features} features. Received: feature_requires_grad.shape={mask.shape}"
        )
    lengths = tf.gather(batch.offsets, tf.cumsum(batch.num_bags))
    lengths -= tf.concat([[tf.constant(0, tf.int64)], lengths[:-1]], 0)
    has_gradients = tf.repeat(tf.not_equal(mask, tf.zeros_like(mask)), lengths)
    weights = tf.where(has_gradients, batch.weights, tf.stop_gradient(batch.weights))
    return dataclasses.replace(batch, weights=weights)


def pieces_side_by_side(
    num_bags: tf.Tensor, feature_tables: Sequence[int], dims: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the rows of bags go that make lines, feature beside feature.

    Args:
        num_bags: int64 [features], all equal.
        feature_tables: The number of each feature's table.
        dims: Dim of each feature.

    Returns:
        `pieces` and `size` of `table_batch.find_pooled_tables`.
    """
    width, column, fixed, times = sum(dims), 0, [], []
    for i, (table, dim) in enumerate(zip(feature_tables, dims, strict=True)):
        fixed.append([table, 0, 0, column, width])
        times.append([0, i, 1, 0, 0])
        column += dim
    count = num_bags[0]
    pieces = tf.constant(fixed, tf.int64) + count * tf.constant(times, tf.int64)
    return pieces, count * width


def pieces_below_each_other(
    num_bags: tf.Tensor, feature_tables: Sequence[int], dim: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the rows of bags go that stay in the order of the bags, all of one dim.

    Returns:
        `pieces` and `size` of `table_batch.find_pooled_tables`.
    """
    first = tf.cumsum(num_bags, exclusive=True)
    tables = tf.constant(feature_tables, tf.int64)
    pieces = tf.stack([tables, first, num_bags, first * dim, tf.fill(tf.shape(first), dim_of(dim))])
    return tf.transpose(pieces), tf.reduce_sum(num_bags) * dim


def pieces_by_rank(
    counts: tf.Tensor, feature_tables: Sequence[int], dims: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the rows of bags go whose number differs by feature and rank: rank by rank.

    Args:
        counts: int64 [features, ranks]; how many bags each has. These stand feature by feature, and
            in a feature rank by rank.
        feature_tables: The number of each feature's table.
        dims: Dim of each feature.

    Returns:
        `pieces` and `size` of `table_batch.find_pooled_tables`.
    """
    shape = tf.shape(counts)
    flat = tf.reshape(counts, [-1])
    first = tf.cumsum(flat, exclusive=True)
    widths = tf.constant(dims, tf.int64)[:, tf.newaxis]
    by_rank = tf.reshape(tf.transpose(counts * widths), [-1])
    begin = tf.transpose(tf.reshape(tf.cumsum(by_rank, exclusive=True), shape[::-1]))
    tables = tf.constant(feature_tables, tf.int64)[:, tf.newaxis]
    of_all = [
        tf.reshape(tf.broadcast_to(tables, shape), [-1]),
        first,
        flat,
        tf.reshape(begin, [-1]),
        tf.reshape(tf.broadcast_to(widths, shape), [-1]),
    ]
    return tf.stack(of_all, 1), tf.reduce_sum(by_rank)


def counts_by_rank(counts: Any, num_features: int, owner: str) -> tf.Tensor:
    """`batch_size_per_feature_per_rank` as int64 [features, ranks].

    Raises:
        ValueError: Of another shape.
    """
    try:
        tensor = arguments.tensor_of(
            counts, tf.int64, "batch_size_per_feature_per_rank", repr(owner)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(_wrong_counts(num_features, owner, counts)) from error
    if tensor.shape.rank != 2 or tensor.shape[0] not in (None, num_features):
        raise ValueError(_wrong_counts(num_features, owner, counts))
    return tf.ensure_shape(tensor, [num_features, None])


def dim_of(dim: int) -> tf.Tensor:
    """An int64 scalar."""
    return tf.constant(dim, tf.int64)


def _wrong_counts(num_features: int, owner: str, counts: Any) -> str:
    return (
        f"`batch_size_per_feature_per_rank` of {owner!r} must be integers, for each of its "
        f"{num_features} features one for each rank. Received: "
        f"batch_size_per_feature_per_rank={counts}"
    )


def _vector(value: Any, argument: str, owner: str) -> tf.Tensor:
    tensor = cast_ids(tf.convert_to_tensor(value), tf.int64, f"{argument} of {owner}")
    if tensor.shape.rank not in (None, 1):
        raise ValueError(
            f"`{argument}` of {owner!r} must have one axis. Received: {argument}.shape="
            f"{tensor.shape}"
        )
    return tf.ensure_shape(tensor, [None])


def _weights(weights: Any, indices: tf.Tensor, owner: str) -> tf.Tensor:
    weights = _floats(weights, owner)
    if not indices.shape.is_compatible_with(weights.shape):
        raise ValueError(
            f"`per_sample_weights` of {owner!r} must have one for each of `indices`, "
            f"{indices.shape}. Received: per_sample_weights.shape={weights.shape}"
        )
    same = tf.debugging.assert_equal(
        tf.size(weights),
        tf.size(indices),
        f"`per_sample_weights` of {owner!r} must have one for each of `indices`.",
    )
    return arguments.after(weights, same)


def _floats(weights: Any, owner: str) -> tf.Tensor:
    weights = tf.convert_to_tensor(weights)
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise TypeError(
            f"`per_sample_weights` of {owner!r} must be numbers. Received: dtype="
            f"{weights.dtype.name}"
        )
    return tf.cast(weights, tf.float32)


def _bags_of(feature: Any, owner: str) -> tuple[tf.Tensor, tf.Tensor]:
    """The indices of a feature, and the length of each bag."""
    if isinstance(feature, tf.RaggedTensor):
        if feature.shape.rank != 2 or feature.flat_values.shape.rank != 1:
            raise ValueError(_wrong_feature(owner, feature.shape))
        return _vector(feature.values, "ids", owner), tf.cast(feature.row_lengths(), tf.int64)
    if isinstance(feature, tf.SparseTensor):
        if feature.shape.rank != 2:
            raise ValueError(_wrong_feature(owner, feature.shape))
        feature = tf.sparse.reorder(feature)
        lengths = tf.math.unsorted_segment_sum(
            tf.ones_like(feature.indices[:, 0]), feature.indices[:, 0], feature.dense_shape[0]
        )
        return _vector(feature.values, "ids", owner), lengths
    ids = tf.convert_to_tensor(feature)
    if ids.shape.rank not in (1, 2):
        raise ValueError(_wrong_feature(owner, ids.shape))
    shape = tf.shape(ids, tf.int64)
    length = shape[1] if ids.shape.rank == 2 else tf.constant(1, tf.int64)
    return _vector(tf.reshape(ids, [-1]), "ids", owner), tf.fill(shape[:1], length)


def _weights_of(weights: Any, feature: Any, owner: str) -> tf.Tensor:
    """The weights of a feature's ids, [n]."""
    kinds = [
        one if isinstance(one, (tf.RaggedTensor, tf.SparseTensor)) else None
        for one in (weights, feature)
    ]
    if type(kinds[0]) is not type(kinds[1]):
        raise ValueError(
            f"`per_sample_weights` of {owner!r} must be of the kind of its ids, "
            f"{type(feature).__name__}. Received: {type(weights).__name__}"
        )
    differs = f"`per_sample_weights` of {owner!r} must have the shape of its ids."
    if isinstance(weights, tf.RaggedTensor):
        same = tf.debugging.assert_equal(
            tf.cast(weights.row_splits, tf.int64), tf.cast(feature.row_splits, tf.int64), differs
        )
        return arguments.after(_floats(weights.flat_values, owner), same)
    if isinstance(weights, tf.SparseTensor):
        same = tf.debugging.assert_equal(weights.indices, feature.indices, differs)
        return arguments.after(_floats(tf.sparse.reorder(weights).values, owner), same)
    ids, weights = tf.convert_to_tensor(feature), _floats(weights, owner)
    if not ids.shape.is_compatible_with(weights.shape):
        raise ValueError(f"{differs} Received: {weights.shape} for {ids.shape}")
    same = tf.debugging.assert_equal(tf.shape(weights), tf.shape(ids), differs)
    return tf.reshape(arguments.after(weights, same), [-1])


def _wrong_feature(owner: str, shape: Any) -> str:
    return (
        f"The ids of {owner!r} must be a ragged, sparse or dense [bags, ids], or a dense [bags] "
        f"of one id each. Received: shape={shape}"
    )
