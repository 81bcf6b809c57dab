# SPDX-License-Identifier: Apache-2.0
"""The casts that numbers of a graph have passed through, and the numbers that they change.

Keras casts a model's data to the dtype of its inputs, and pandas converts columns of any kind to
one matrix of floats. A cast to floats rounds large ids, and a cast to narrower integers wraps them:
two ids become one, without an error. A graph shows such casts, also if ids are sliced, gathered or
stacked after them. In eager execution nothing shows them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

# Below this bound the type holds every whole number, and no other whole number is rounded to it.
EXACT_BELOW = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}

# Ops with a type attribute for numbers that they move, select, or change only in sign. The inputs
# of that type are the numbers. Other inputs are places, sizes and conditions.
_MOVES = frozenset(
    (
        *("Abs", "BroadcastTo", "Ceil", "CheckNumerics", "ClipByValue", "Concat", "ConcatV2"),
        *("DynamicPartition", "DynamicStitch", "EnsureShape", "ExpandDims", "Floor", "Gather"),
        *("GatherNd", "GatherV2", "Identity", "Max", "Maximum", "Min", "Minimum", "MirrorPad"),
        *("Neg", "Pack", "Pad", "PadV2", "ParallelDynamicStitch", "PreventGradient"),
        *("RaggedGather", "RaggedTensorToTensor", "Reshape", "Reverse", "ReverseSequence"),
        *("ReverseV2", "Rint", "Roll", "Round", "ScatterNd", "Select", "SelectV2", "Slice"),
        *("SparseConcat", "SparseReorder", "SparseSlice", "SparseSplit", "SparseToDense", "Split"),
        *("SplitV", "Squeeze", "StopGradient", "StridedSlice", "TensorScatterUpdate"),
        *("TfEmbedCheckSparse", "Tile", "TopKV2", "Transpose", "Unique", "UniqueV2"),
        *("UniqueWithCounts", "UniqueWithCountsV2", "Unpack"),
    )
)
# Ops whose first input is the numbers, or a list of tensors of numbers.
_LISTS = frozenset(("TensorListFromTensor", "TensorListGather", "TensorListGetItem"))
# Functions of integers and strings that are meant to map different numbers to different results.
_NAMES = frozenset(
    (
        *("AddV2", "AsString", "Mul", "StringJoin", "Sub"),
        *("StringToHashBucket", "StringToHashBucketFast", "StringToHashBucketStrong"),
    )
)
_FAR = 200  # ops; longer chains are not followed


@dataclasses.dataclass(frozen=True)
class Narrowing:
    """A condition for numbers that a cast may have changed.

    Attributes:
        numbers: A tensor of the present graph or of a graph around it.
        above: The numbers must be above this bound.
        below: The numbers must be below this bound.
        dtype: The dtype that has changed numbers outside of the bounds.
    """

    numbers: tf.Tensor
    above: int
    below: int
    dtype: tf.DType


def holds(dtype: tf.DType, other: tf.DType) -> bool:
    """Whether a dtype has all numbers of another dtype, so that a cast changes none."""
    if dtype == other:
        return True
    if dtype.is_integer and other.is_integer:
        return bool(dtype.min <= other.min and other.max <= dtype.max)
    return bool(dtype.is_floating and other.is_floating and other.size < dtype.size)


def narrowings(tensor: tf.Tensor) -> list[Narrowing]:
    """The conditions under which the numbers of a tensor equal the inputs of its graph.

    Args:
        tensor: Integers, floats or strings of a graph. Only whole numbers count among floats.

    Returns:
        An empty list if no cast of the tensor changes numbers.
    """
    search = _Search()
    search.limit(tensor, search.float_of(tensor))
    return search.found


class _Search:
    def __init__(self) -> None:
        self.found: list[Narrowing] = []
        self._floats: dict[object, tf.DType | None] = {}

    def limit(self, numbers: tf.Tensor, float_dtype: tf.DType | None) -> None:
        """Adds the condition for numbers that have had a floating dtype."""
        if float_dtype is not None:
            below = EXACT_BELOW[float_dtype]
            self.found.append(Narrowing(numbers, -below, below, float_dtype))

    def float_of(self, tensor: tf.Tensor, depth: int = 0) -> tf.DType | None:
        """The narrowest floating dtype that all numbers of a tensor have had, if any."""
        own = tensor.dtype if tensor.dtype in EXACT_BELOW else None
        if depth == _FAR or not tf.is_symbolic_tensor(tensor):
            return own
        if tensor.ref() not in self._floats:
            self._floats[tensor.ref()] = self._float_before(tensor, own, depth + 1)
        return self._floats[tensor.ref()]

    def _float_before(self, tensor: tf.Tensor, own: tf.DType | None, depth: int) -> tf.DType | None:
        op = tensor.op
        if op.type == "Placeholder":
            outer = _captured(tensor)
            return own if outer is None else self.float_of(outer, depth)
        if op.type == "Cast":
            return self._float_before_cast(tensor, own, depth)
        if op.type == "IdentityN":
            return self.float_of(op.inputs[tensor.value_index], depth)
        if op.type in _LISTS:
            return self.float_of(op.inputs[0], depth)
        if op.type in _NAMES and own is None:
            for source in op.inputs:
                self.limit(source, self.float_of(source, depth))
        if op.type in _MOVES:
            sources = [one for one in _of_same_type(tensor) if not _is_constant(one)]
            floats = [self.float_of(one, depth) for one in sources]
            if len(set(floats)) == 1:
                return floats[0]
            for source, dtype in zip(sources, floats, strict=True):
                if dtype != own:
                    self.limit(source, dtype)
        return own

    def _float_before_cast(
        self, tensor: tf.Tensor, own: tf.DType | None, depth: int
    ) -> tf.DType | None:
        source, dtype = tensor.op.inputs[0], tensor.dtype
        if not (source.dtype.is_integer or source.dtype in EXACT_BELOW):
            return own  # bools, for example, are not the numbers that they become
        before = self.float_of(source, depth)
        if dtype.is_integer and not _is_checked_later(source.dtype, before, dtype):
            self.found.append(Narrowing(source, int(dtype.min) - 1, int(dtype.max) + 1, dtype))
        if own is None or before is None:
            return own if before is None else before
        return min(own, before, key=lambda one: EXACT_BELOW[one])


def _is_checked_later(source: tf.DType, before: tf.DType | None, dtype: tf.DType) -> bool:
    """Whether a cast to integers changes numbers only to values that `EXACT_BELOW` excludes."""
    if source.is_integer:
        return holds(dtype, source)
    # Here a float that does not fit, or is NaN, becomes the lowest number.
    return dtype.size == 8 or (dtype == tf.int32 and EXACT_BELOW[before] < dtype.max)


def _captured(placeholder: tf.Tensor) -> tf.Tensor | None:
    """The tensor of an outer graph that a placeholder of a function, or of a loop, stands for."""
    for outer, inner in getattr(placeholder.graph, "captures", ()):
        if inner is placeholder:
            return outer
    return None


def _is_constant(tensor: tf.Tensor) -> bool:
    return tensor.op.type in ("OnesLike", "ZerosLike") or tf.get_static_value(tensor) is not None


def _of_same_type(tensor: tf.Tensor) -> list[tf.Tensor]:
    """The inputs of an op that have the type attribute of one of its outputs."""
    op = tensor.op
    wanted = _type_attributes(op, op.op_def.output_arg)[tensor.value_index]
    inputs = zip(op.inputs, _type_attributes(op, op.op_def.input_arg), strict=True)
    return [source for source, attribute in inputs if wanted and attribute == wanted]


def _type_attributes(op: tf.Operation, arguments: Iterable[Any]) -> list[str]:
    """The name of the type attribute of each tensor among an op's arguments, or ""."""
    names = []
    for argument in arguments:
        count = 1
        if argument.number_attr:
            count = op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(op.get_attr(argument.type_list_attr))
        names += [argument.type_attr] * count
    return names


@tf.autograph.experimental.do_not_convert  # it has nothing to convert
def unchanged(numbers: tf.Tensor, argument: str, owner: str) -> tf.Tensor:
    """Returns ids, unless a cast in their graph has changed them, such as Keras's cast of an input.

    It costs nothing without such a cast. In eager execution no cast can be seen.

    Args:
        numbers: Integers, floats or strings of any shape.

    Raises:
        tf.errors.InvalidArgumentError: At run time, if an id has been changed, or is so large that
            a floating dtype may have rounded it.
    """
    if not tf.is_symbolic_tensor(numbers):
        return numbers
    checks = []
    for one in narrowings(numbers):
        if one.dtype.is_floating:
            wrong = (
                f"`{argument}` of {owner!r} must not be rounded. They were of {one.dtype.name}, "
                f"which is exact below {one.below} only: give them apart from floats, with "
                'keras.Input(shape, dtype="int64") in each model around the layer. Received:'
            )
        else:
            wrong = (
                f"`{argument}` of {owner!r} must not be changed by a cast to {one.dtype.name}, "
                "such as that of a keras.Input: give it the dtype of the ids. Received:"
            )
        least, largest = tf.reduce_min(one.numbers), tf.reduce_max(one.numbers)
        fit = tf.reduce_all(_within(one.numbers, one.above, one.below))
        checks.append(tf.debugging.Assert(fit, [wrong, least, "to", largest]))
    if not checks:
        return numbers
    with tf.control_dependencies(checks):
        return tf.identity(numbers)


def _within(numbers: tf.Tensor, above: int, below: int) -> tf.Tensor:
    """Whether each number is above and below the bounds, which are not included."""
    dtype = numbers.dtype
    if dtype.is_floating:  # false for NaN
        return tf.logical_and(
            numbers > tf.cast(float(above), dtype), numbers < tf.cast(float(below), dtype)
        )
    least, most = max(above + 1, int(dtype.min)), min(below - 1, int(dtype.max))
    return tf.logical_and(numbers >= tf.constant(least, dtype), numbers <= tf.constant(most, dtype))
