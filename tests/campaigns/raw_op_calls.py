# SPDX-License-Identifier: Apache-2.0
"""Random calls of raw ops: right calls, and the same calls with wrong arguments.

A call depends on a seed and its number alone, so it can be repeated. The calls of a block share
their tables, so a call sees the changes of the calls before it.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from raw_op_exchange import ExchangeCalls
from raw_op_makers import (
    FLOATING,
    KEY_DTYPES,
    ORDERS,
    RAW,
    RULES,
    Arguments,
    draw_one,
    numbers_of,
    tensor_of,
)

CALLS_IN_BLOCK = 50
# Percentages of calls: with right arguments only, and with random arguments only.
RIGHT, RANDOM = 15, 15

MAX_AXES = 253  # the limit of tf.reshape
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (2,),
    (7,),
    (0, 3),
    (3, 0),
    (2, 3),
    (1, 1, 1),
    (0, 2**62),
    (2**62, 0),
    (2**31, 0),
    (2**40, 0, 2**40),
    (1,) * 9,
    (1,) * MAX_AXES,
)
NUMBERS = (
    *(0, 1, -1, 2, -2, 3, 5, 8, 17, 64, 127, 128, 255, 4096),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)),
)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, 1e300, float("inf"), float("-inf"), float("nan"))
STRINGS = ("", "x", "0", "1 2 3", "nan", "1e999", "adam", "lru", "sum", "\0", "é" * 3, "a" * 5000)
DTYPES = (*KEY_DTYPES, *FLOATING, "int8", "bool", "variant", "resource", "complex64")


def op_names() -> list[str]:
    """The ops of the library, by the names of their Python functions."""
    return sorted(
        name
        for name, value in vars(RAW).items()
        if name.startswith("tf_embed_") and not name.endswith("_eager_fallback") and callable(value)
    )


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that is ready to be made.

    Attributes:
        number: Its number.
        op: Name of the op's Python function.
        arguments: Its arguments.
        way: "eager"; or how a tf.function gets the tensors: "arguments", "shapeless" arguments or
            "constants".
    """

    number: int
    op: str
    arguments: Arguments
    way: str

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in self.arguments.items())
        return f"{self.op}({shown}) [{self.way}]"

    def make(self) -> None:
        """Makes the call. Its error passes through."""
        function = getattr(RAW, self.op)
        if self.way == "eager":
            function(**self.arguments)
            return
        tensors = [value for value in tf.nest.flatten(self.arguments) if tf.is_tensor(value)]
        if self.way == "constants":
            tf.function(lambda: _nothing(function(**self.arguments)), autograph=False)()
            return

        def traced(*given: tf.Tensor) -> tf.Tensor:
            left = iter(given)
            arguments = tf.nest.map_structure(
                lambda value: next(left) if tf.is_tensor(value) else value, self.arguments
            )
            return _nothing(function(**arguments))

        specs = None
        if self.way == "shapeless":
            specs = [tf.TensorSpec(None, tensor.dtype) for tensor in tensors]
        tf.function(traced, input_signature=specs, autograph=False)(*tensors)


def _nothing(result: Any) -> tf.Tensor:
    """A constant that depends on every result of an op, so that the op runs in a function."""
    results = [one for one in tf.nest.flatten(result) if tf.is_tensor(one)]
    ran = [one if isinstance(one, tf.Operation) else tf.identity(one) for one in results]
    if isinstance(result, tf.Operation):
        ran.append(result)
    with tf.control_dependencies(ran):
        return tf.constant(0)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(one) for one in value) + "]"
    if isinstance(value, tf.DType):
        return value.name
    if not tf.is_tensor(value):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"
    rank = value.shape.rank
    shape = str(value.shape) if rank < 20 else f"({rank} axes)"
    if value.dtype in (tf.resource, tf.variant):
        return f"{value.dtype.name}{shape}"
    numbers = tf.reshape(value, [-1])[:12].numpy().tolist() if value.shape.num_elements() else []
    return f"{value.dtype.name}{shape}{numbers}"


class Block(ExchangeCalls):
    """Calls, right and wrong, on the tables of a block."""

    def call(self, seed: int, number: int) -> Call:
        """The call with a number."""
        draw = random.Random(f"{seed} call {number}")
        op = draw_one(draw, op_names())
        way = draw_one(draw, ("eager", "eager", "eager", "arguments", "shapeless", "constants"))
        maker: Callable[..., Arguments] | None = getattr(
            self, op.replace("tf_embed_", "right_", 1), None
        )
        if maker is None:
            arguments = self._unknown(draw, op)
        else:
            arguments = maker(draw)
            kind = draw.randrange(100)
            names = sorted(arguments)
            if kind >= RIGHT + RANDOM:
                names = draw.sample(names, min(len(names), draw.randint(1, 3)))
            elif kind >= RANDOM:
                names = []
            for name in names:
                arguments[name] = self._wrong(draw, arguments[name])
        return Call(number, op, arguments, way)

    def _unknown(self, draw: random.Random, op: str) -> Arguments:
        """Random arguments, for an op without a method here."""
        parameters = inspect.signature(getattr(RAW, op)).parameters.values()
        return {
            one.name: self._anything(draw)
            for one in parameters
            if one.name != "name" and (one.default is one.empty or draw.random() < 0.5)
        }

    # Wrong arguments.

    def _wrong(self, draw: random.Random, value: Any) -> Any:
        """A wrong value instead of a right argument."""
        if draw.randrange(12) == 0 and not isinstance(value, list):
            return self._anything(draw)
        if isinstance(value, list):  # not a tensor, which `list` would split into its rows
            changed = list(value)
            kind = draw.randrange(4)
            if kind == 0 or not changed:
                changed.append(changed[-1] if changed else self._anything(draw))
            elif kind == 1:
                del changed[draw.randrange(len(changed))]
            else:
                place = draw.randrange(len(changed))
                changed[place] = self._wrong(draw, changed[place])
            return changed
        if tf.is_tensor(value):
            return self._wrong_tensor(draw, value)
        if isinstance(value, tf.DType):
            return tf.as_dtype(draw_one(draw, DTYPES))
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return draw_one(draw, NUMBERS)
        if isinstance(value, float):
            return draw_one(draw, FLOATS)
        if isinstance(value, str):
            return draw_one(draw, (*STRINGS, *RULES, *ORDERS))
        return self._anything(draw)

    def _wrong_tensor(self, draw: random.Random, value: tf.Tensor) -> tf.Tensor:
        if value.dtype == tf.resource:
            return self._wrong_handle(draw)
        if value.dtype == tf.variant:
            return self._wrong_variant(draw, value)
        size = value.shape.num_elements()
        kind = draw.randrange(4)
        if kind == 0 and size:  # the same numbers in another shape
            shapes = [(size,), (size, 1), (1, size), (1,) * (MAX_AXES - 1) + (size,), (1, size, 1)]
            value = tf.reshape(value, draw_one(draw, shapes))
            return value[tf.newaxis] if draw.randrange(2) else value  # up to MAX_AXES + 1 axes
        if kind == 1 and size and value.dtype != tf.string:  # changes some numbers
            numbers = tf.reshape(value, [-1]).numpy().tolist()
            for _ in range(draw.randint(1, 3)):
                numbers[draw.randrange(size)] = draw_one(draw, NUMBERS)
            return tensor_of(value.dtype, tuple(value.shape), numbers)
        dtype = value.dtype
        if draw.randrange(6) == 0:
            dtype = tf.as_dtype(draw_one(draw, (*KEY_DTYPES, *FLOATING, "bool")))
        return self._any_tensor(draw, dtype)

    def _any_tensor(self, draw: random.Random, dtype: tf.DType) -> tf.Tensor:
        shape = draw_one(draw, SHAPES)
        if 0 in shape:
            return tf.zeros(shape, dtype)
        size = int(np.prod(shape))
        pool = FLOATS + NUMBERS if dtype.is_floating else NUMBERS
        return tensor_of(dtype, shape, [draw_one(draw, pool) for _ in range(size)])

    def _wrong_handle(self, draw: random.Random) -> tf.Tensor:
        handles = [table.handle for table in self.tables]
        one = draw_one(draw, handles)
        return draw_one(
            draw,
            (
                *([one] * 4),
                self.others[0].resource_handle,
                self.others[1].handle,
                tf.reshape(one, [1]),
                tf.reshape(one, (1,) * MAX_AXES),
                tf.stack(handles[:2]),
                tf.stack(handles)[:0],
            ),
        )

    def _wrong_variant(self, draw: random.Random, value: tf.Tensor) -> tf.Tensor:
        element = tf.raw_ops.EmptyTensorList(
            element_shape=-1, max_num_elements=-1, element_dtype=tf.float32
        )
        gradients = RAW.tf_embed_row_gradients(
            keys=numbers_of(draw, "int64", (2,)), values=numbers_of(draw, "float32", (2, 3))
        )
        packed = RAW.tf_embed_row_gradients(
            keys=numbers_of(draw, "int64", (5,)),
            values=numbers_of(draw, "float32", (2, 1)),
            packed=True,
        )
        return draw_one(
            draw,
            (
                *([self._rows_of_a_file(draw)] * 2),
                element,
                gradients,
                packed,
                tf.add_n([gradients, packed]),
                tf.zeros_like(gradients),
                tf.reshape(value, [-1]),
                tf.stack([gradients, value]),
                tf.stack([value])[:0],
                tf.raw_ops.Empty(shape=[], dtype=tf.variant, init=True),
            ),
        )

    def _rows_of_a_file(self, draw: random.Random) -> tf.Tensor:
        """Saved rows of a random table."""
        table, place = self._saved(draw)
        key_dtype = tf.as_dtype(table.key_dtype)
        return RAW.tf_embed_open_saved_rows(key_dtype=key_dtype, **place)[0]

    def _anything(self, draw: random.Random) -> Any:
        kind = draw.randrange(8)
        if kind < 4:
            dtype = tf.as_dtype(draw_one(draw, (*KEY_DTYPES, *FLOATING, "bool", "int8")))
            return self._any_tensor(draw, dtype)
        if kind == 4:
            return self._wrong_handle(draw)
        if kind == 5:
            # Small tensors: TensorFlow itself packs them into a tensor, which it does badly.
            return [numbers_of(draw, tf.int64, (2,)) for _ in range(draw.randrange(3))]
        pool = draw_one(draw, (NUMBERS, FLOATS, STRINGS, (None, True, False), DTYPES))
        value = draw_one(draw, pool)
        return tf.as_dtype(value) if pool is DTYPES else value
