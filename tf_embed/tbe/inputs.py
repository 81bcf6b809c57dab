# SPDX-License-Identifier: Apache-2.0
"""Turns the inputs of a table-batched layer into one batch of bags.

A batch has its bags feature by feature. Bag b holds the indices from offsets[b] up to
offsets[b + 1].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_embed import validation
from tf_embed.layers.given_ids import GivenIds
from tf_embed.layers.ids import cast_ids
from tf_embed.ops import pooling_ops


@dataclasses.dataclass(frozen=True)
class Batch:
    """The bags of all features.

    Attributes:
        indices: int64 [n].
        offsets: int64 [bags + 1].
        weights: float32 [n], or None.
        num_bags: int64 [features], the number of bags of each feature.
    """

    indices: tf.Tensor
    offsets: tf.Tensor
    weights: tf.Tensor | None
    num_bags: tf.Tensor

    @property
    def num_features(self) -> int:
        """Number of features."""
        return int(self.num_bags.shape[0])


@dataclasses.dataclass(frozen=True)
class Features:
    """The input format of a layer: features in one vector, or a container for each.

    Attributes:
        owner: The layer, for messages.
        names: Their names, or None.
        has_padding: Whether the layer has a padding id.
    """

    owner: str
    count: int
    names: Sequence[str] | None
    has_padding: bool = True

    @functools.cached_property
    def given(self) -> GivenIds:
        """The kinds of ids that the features were given."""
        return GivenIds(self.owners)

    @property
    def _names(self) -> Sequence[str]:
        return self.names or [str(i) for i in range(self.count)]

    @property
    def owners(self) -> list[str]:
        """The features, for messages."""
        return [f"{self.owner}, feature {name!r}" for name in self._names]

    def batch(self, indices: Any, offsets: Any, weights: Any, counts: tf.Tensor | None) -> Batch:
        """The batch of a call.

        Args:
            indices: Integers [n]. Without offsets: for each feature a tf.RaggedTensor [B, None], a
                tf.SparseTensor [B, L], or a tensor [B, L] or [B], in a list or by name.
            offsets: Integers [bags + 1], or None.
            weights: None; or numbers [n], or the containers of `indices` with weights.
            counts: None, or int64 [features, ranks], the number of bags of each.

        Raises:
            TypeError: If a dtype is wrong.
            ValueError: If a shape is wrong, or the arguments do not fit together.
        """
        if offsets is not None:
            return self._of_offsets(indices, offsets, weights, counts)
        if counts is not None:
            raise ValueError(
                f"`batch_size_per_feature_per_rank` of {self.owner!r} needs `offsets`. Received: "
                "offsets=None"
            )
        weights = None if weights is None else self.in_order(weights, "per_sample_weights")
        return self._of_containers(self.in_order(indices, "indices"), weights)

    def in_order(self, inputs: Any, argument: str) -> list[Any]:
        """The features of a list, or of a mapping from their names.

        Raises:
            ValueError: If the number of inputs or their names are not the features'.
        """
        if isinstance(inputs, Mapping):
            return self._by_name(inputs, argument)
        if not isinstance(inputs, (list, tuple)):
            inputs = self.alone(inputs, argument)
        if len(inputs) != self.count:
            raise ValueError(
                f"`{argument}` of {self.owner!r} must have one for each of {self.count} features. "
                f"Received: {len(inputs)}"
            )
        return list(inputs)

    def alone(self, ids: Any, argument: str) -> list[Any]:
        """The inputs of a layer with a single feature.

        Raises:
            ValueError: If there are more features.
        """
        if self.count != 1:
            shape = ids if _is_shape(ids) else getattr(ids, "shape", None)
            raise ValueError(
                f"`{argument}` of {self.owner!r} must be a list of one for each of {self.count} "
                "features, such as tf.unstack(ids, axis=1) of a column each, or `offsets` must be "
                f"given. Received: one of shape={None if shape is None else tuple(shape)}"
            )
        return [ids]

    def batch_size(self, indices: Any, offsets: Any) -> int | None:
        """The number of bags of each feature, from static shapes; None if it is unknown.

        Args:
            indices: The result of `shapes_of` for the indices of a call.
            offsets: The result of `shapes_of` for the offsets of a call.
        """
        if offsets is None:
            return tf.TensorShape(self._shapes(indices)[0])[0]
        length = tf.TensorShape(offsets)[0]
        return None if length is None else (length - 1) // self.count

    def num_indices(self, indices: Any, offsets: Any) -> int | None:
        """Returns the number of all indices, from static shapes; None if it is unknown."""
        shapes = [indices] if offsets is not None else self._shapes(indices)
        counts = [tf.TensorShape(shape).num_elements() for shape in shapes]
        return None if None in counts else sum(counts)

    def _shapes(self, shapes: Any) -> list[Any]:
        if _is_shape(shapes):
            return self.alone(shapes, "indices")
        return self.in_order(shapes, "indices")

    def counts_by_rank(self, counts: Any) -> tf.Tensor:
        """`batch_size_per_feature_per_rank` as int64 [features, ranks].

        Raises:
            ValueError: If the shape is wrong.
        """
        wrong = (
            f"`batch_size_per_feature_per_rank` of {self.owner!r} must be integers from 0, for "
            f"each of its {self.count} features one for each rank. Received: "
            f"batch_size_per_feature_per_rank={validation.shown(counts)}"
        )
        name = "batch_size_per_feature_per_rank"
        try:
            tensor = validation.tensor_of(counts, tf.int64, name, self.owner)
        except (TypeError, ValueError) as error:
            raise ValueError(wrong) from error
        known = tf.get_static_value(tensor)
        is_negative = known is not None and (known < 0).any()
        if tensor.shape.rank != 2 or tensor.shape[0] not in (None, self.count) or is_negative:
            raise ValueError(wrong)
        # In a graph, counts are known only at run time.
        checked = tf.debugging.assert_non_negative(
            tensor,
            f"`batch_size_per_feature_per_rank` of {self.owner!r} must be integers from 0.",
        )
        return tf.ensure_shape(validation.with_dependencies(tensor, checked), [self.count, None])

    def check_prefetch(self, indices: Any, offsets: Any, forward_stream: Any) -> None:
        """Checks the arguments of `TableBatchedEmbeddingBags.prefetch`."""
        for name, value in (("indices", indices), ("offsets", offsets)):
            value = validation.as_tensor(value, name, self.owner)
            if value.dtype not in (tf.int32, tf.int64):
                raise TypeError(f"`{name}` must be int32 or int64. Received: {value.dtype.name}")
            if value.shape.rank not in (None, 1):
                raise ValueError(f"`{name}` must be a vector. Received: shape={value.shape}")
        if forward_stream is not None:
            raise ValueError(
                "`forward_stream` must be None: TensorFlow orders its streams itself. Received: "
                f"forward_stream={validation.shown(forward_stream)}"
            )

    def _by_name(self, inputs: Mapping[str, Any], argument: str) -> list[Any]:
        if self.names is None:
            raise ValueError(
                f"`feature_names` of {self.owner!r} must be given if `{argument}` is a dict. "
                f"Received: {argument}={sorted(inputs)}"
            )
        if sorted(inputs) != sorted(self.names):
            raise ValueError(
                f"`{argument}` of {self.owner!r} must have just the features "
                f"{sorted(self.names)}. Received: {argument}={sorted(inputs)}"
            )
        return [inputs[name] for name in self.names]

    def _of_offsets(
        self, indices: Any, offsets: Any, weights: Any, counts: tf.Tensor | None
    ) -> Batch:
        indices = _vector(indices, "indices", self.owner)
        offsets = _vector(offsets, "offsets", self.owner)
        if weights is not None:
            weights = _weights(weights, indices, self.owner)
        if counts is not None:
            return Batch(indices, offsets, weights, tf.reduce_sum(counts, 1))
        static, size = offsets.shape[0], tf.size(offsets, tf.int64)
        wanted = (
            f"`offsets` of {self.owner!r} must have one for each bag, equally many of each of "
            f"{self.count} features, and one more. Received: offsets.shape="
        )
        if static is not None and (static < 1 or (static - 1) % self.count):
            raise ValueError(f"{wanted}{offsets.shape}")
        with tf.device("/CPU:0"):  # as the ops take the bags
            if static is None:
                fits = tf.logical_and(size > 0, tf.equal((size - 1) % self.count, 0))
                assertion = tf.debugging.Assert(fits, [wanted, [size]])
                size = validation.with_dependencies(size, assertion)
            each = (size - 1) // self.count
            return Batch(indices, offsets, weights, tf.fill([self.count], each))

    def _of_containers(self, features: list[Any], weights: list[Any] | None) -> Batch:
        names, owners = self._names, self.owners
        if not self.has_padding:
            features = [self.given.marked(ids, i) for i, ids in enumerate(features)]
        parts = [_bags_of(*one) for one in zip(features, owners, strict=True)]
        # The ops take the bags on the host. A GPU would compute on copies, and the host wait.
        with tf.device("/CPU:0"):
            num_bags = [tf.size(lengths, tf.int64) for _, lengths in parts]
            checks = [
                tf.debugging.assert_equal(
                    count,
                    num_bags[0],
                    f"The features of {self.owner!r} must have equally many bags. {name!r} has "
                    "not.",
                )
                for count, name in zip(num_bags[1:], names[1:], strict=True)
            ]
            lengths = tf.concat([lengths for _, lengths in parts], 0)
            offsets = tf.concat([tf.zeros([1], tf.int64), tf.cumsum(lengths)], 0)
            of_features = tf.stack(num_bags)
        indices = tf.concat([values for values, _ in parts], 0)
        of_all = None
        if weights is not None:
            each = [_weights_of(*one) for one in zip(weights, features, owners, strict=True)]
            of_all = tf.concat(each, 0)
        indices = validation.with_dependencies(indices, *checks)
        return Batch(indices, offsets, of_all, of_features)


def shapes_of(inputs: Any) -> Any:
    """Returns the shapes of a layer's inputs, or of its features."""
    if isinstance(inputs, Mapping):
        return {name: shapes_of(one) for name, one in inputs.items()}
    if isinstance(inputs, (list, tuple)) and any(hasattr(one, "shape") for one in inputs):
        return [shapes_of(one) for one in inputs]
    if inputs is None:
        return None
    shape = tf.TensorShape(inputs.shape if hasattr(inputs, "shape") else np.shape(inputs))
    if shape.rank is None:
        return shape
    # Symbolic inputs have flags, values have classes.
    is_dense = not isinstance(inputs, (tf.RaggedTensor, tf.SparseTensor)) and not (
        getattr(inputs, "sparse", False) or getattr(inputs, "ragged", False)
    )
    return tuple(shape if is_dense else shape[:-1].concatenate([None]))


def _is_shape(value: Any) -> bool:
    return isinstance(value, tf.TensorShape) or (
        isinstance(value, (list, tuple))
        and all(one is None or isinstance(one, int) for one in value)
    )


def each_alone(batch: Batch) -> Batch:
    """The same indices, each in a separate bag."""
    # The last bag of a feature ends at this offset.
    ends = tf.gather(batch.offsets, tf.cumsum(batch.num_bags))
    counts = ends - tf.concat([[tf.constant(0, tf.int64)], ends[:-1]], 0)
    alone = tf.range(tf.size(batch.indices, tf.int64) + 1)
    return Batch(batch.indices, alone, batch.weights, counts)


def with_gradients_of(batch: Batch, features: Any, owner: str) -> Batch:
    """Returns the batch with weight gradients only for features that are not 0 in `features`.

    Raises:
        TypeError: If `features` has neither numbers nor bools.
        ValueError: If `features` is not one number for each feature.
    """
    mask = validation.as_tensor(features, "feature_requires_grad", owner)
    if not (mask.dtype.is_bool or mask.dtype.is_integer or mask.dtype.is_floating):
        raise TypeError(
            f"`feature_requires_grad` of {owner!r} must be numbers or bools. Received: dtype="
            f"{mask.dtype.name}"
        )
    if not mask.shape.is_compatible_with([batch.num_features]):
        raise ValueError(
            f"`feature_requires_grad` of {owner!r} must be one number for each of "
            f"{batch.num_features} features. Received: feature_requires_grad.shape={mask.shape}"
        )
    lengths = tf.gather(batch.offsets, tf.cumsum(batch.num_bags))
    lengths -= tf.concat([[tf.constant(0, tf.int64)], lengths[:-1]], 0)
    has_gradients = tf.repeat(tf.not_equal(mask, tf.zeros_like(mask)), lengths)
    # The values do not change; the gradients of some features stop.
    weights = tf.where(has_gradients, batch.weights, tf.stop_gradient(batch.weights))
    return dataclasses.replace(batch, weights=weights)


def times_factors(
    batch: Batch,
    feature_tables: Sequence[int],
    factors_of: Callable[[int, tf.Tensor], tf.Tensor],
) -> Batch:
    """The same batch, with weights multiplied by factors.

    Args:
        factors_of: A function of a table number and indices that returns a factor for each index.
    """
    ends = tf.gather(batch.offsets, tf.cumsum(batch.num_bags))
    factors, begin = [], tf.constant(0, tf.int64)
    for i, table in enumerate(feature_tables):
        factors.append(factors_of(table, batch.indices[begin : ends[i]]))
        begin = ends[i]
    all_factors = tf.concat(factors, 0)
    weights = all_factors if batch.weights is None else all_factors * batch.weights
    return dataclasses.replace(batch, weights=weights)


def _vector(value: Any, argument: str, owner: str) -> tf.Tensor:
    tensor = validation.as_tensor(value, argument, owner)
    tensor = cast_ids(tensor, tf.int64, owner, argument, setting=None)
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
    return validation.with_dependencies(weights, same)


def _floats(weights: Any, owner: str) -> tf.Tensor:
    weights = validation.as_tensor(weights, "per_sample_weights", owner)
    if not (weights.dtype.is_floating or weights.dtype.is_integer):
        raise TypeError(
            f"`per_sample_weights` of {owner!r} must be numbers. Received: dtype="
            f"{weights.dtype.name}"
        )
    return tf.cast(weights, tf.float32)


def _bags_of(feature: Any, owner: str) -> tuple[tf.Tensor, tf.Tensor]:
    """The indices of a feature, and the length of each bag, on the host."""
    if isinstance(feature, tf.RaggedTensor):
        if feature.shape.rank != 2 or feature.flat_values.shape.rank != 1:
            raise ValueError(_wrong_feature(owner, feature.shape))
        with tf.device("/CPU:0"):
            lengths = tf.cast(feature.row_lengths(), tf.int64)
        return _vector(feature.values, "ids", owner), lengths
    if isinstance(feature, tf.SparseTensor):
        if feature.shape.rank != 2:
            raise ValueError(_wrong_feature(owner, feature.shape))
        parts = pooling_ops.checked_sparse(feature, f"`ids` of {owner!r}")
        # Offsets need the order of the bags.
        feature = tf.sparse.reorder(tf.SparseTensor(*parts))
        with tf.device("/CPU:0"):
            lengths = tf.math.unsorted_segment_sum(
                tf.ones_like(feature.indices[:, 0]), feature.indices[:, 0], feature.dense_shape[0]
            )
        return _vector(feature.values, "ids", owner), lengths
    ids = validation.as_tensor(feature, "ids", owner)
    if ids.shape.rank not in (1, 2):
        raise ValueError(_wrong_feature(owner, ids.shape))
    shape = tf.shape(ids, tf.int64)  # where the ids are: on the CPU, this would copy them
    with tf.device("/CPU:0"):
        length = shape[1] if ids.shape.rank == 2 else tf.constant(1, tf.int64)
        lengths = tf.fill(shape[:1], length)
    return _vector(tf.reshape(ids, [-1]), "ids", owner), lengths


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
        if weights.ragged_rank != feature.ragged_rank or weights.flat_values.shape.rank != 1:
            raise ValueError(f"{differs} Received: {weights.shape} for {feature.shape}")
        ours, theirs = (tf.cast(one.row_splits, tf.int64) for one in (weights, feature))
        same = validation.assert_same(ours, theirs, differs)
        return validation.with_dependencies(_floats(weights.flat_values, owner), *same)
    if isinstance(weights, tf.SparseTensor):
        message = (
            f"`per_sample_weights` of {owner!r} must have the indices of its ids, in their order."
        )
        same = validation.assert_same(weights.indices, feature.indices, message)
        values = _floats(tf.sparse.reorder(weights).values, owner)
        return validation.with_dependencies(values, *same)
    ids, weights = tf.convert_to_tensor(feature), _floats(weights, owner)
    if not ids.shape.is_compatible_with(weights.shape):
        raise ValueError(f"{differs} Received: {weights.shape} for {ids.shape}")
    same = validation.assert_same(tf.shape(weights), tf.shape(ids), differs)
    return tf.reshape(validation.with_dependencies(weights, *same), [-1])


def _wrong_feature(owner: str, shape: Any) -> str:
    return (
        f"The ids of {owner!r} must be a ragged, sparse or dense [bags, ids], or a dense [bags] "
        f"of one id each. Received: shape={shape}"
    )
