# SPDX-License-Identifier: Apache-2.0
"""The functions of a model in its static export, and the signatures to trace them with."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation

SERVE = "serve"  # the name that Keras's `model.export` uses
# Attributes of the exported module that a tf.Module lacks.
_TAKEN = ("tables", "weights", "resources")


@dataclasses.dataclass(frozen=True)
class ServedFunction:
    """A function to trace.

    Attributes:
        name: Its name in a loaded model.
        function: The function.
        signature: A tf.TypeSpec, or a structure of them, for each positional argument.
        autograph: Whether AutoGraph converts its Python code.
    """

    name: str
    function: Callable[..., Any]
    signature: list[Any]
    autograph: bool


def served_functions(model: Any, input_signature: Any) -> list[ServedFunction]:
    """The functions of a model.

    Args:
        model: A built Keras model or layer, or a tf.Module.
        input_signature: None, or a structure of tf.TypeSpec or keras.InputSpec for each argument of
            a call.

    Raises:
        TypeError: If `model` or `input_signature` has a wrong type, or can't be called.
        ValueError: If the model is not built, or it needs an `input_signature`.
    """
    if isinstance(model, keras.Layer):
        if not model.built:
            raise ValueError(
                f"`model` must be built: call it once. Received: model={validation.shown(model)}"
            )
        of_model = _given(input_signature) or _signature_of_inputs(model)

        def serve(*inputs: Any) -> Any:
            return model(*inputs, training=False)

        # A custom layer may lack the argument `training`.
        call = serve if _takes_training(model) else model.__call__
        return [ServedFunction(SERVE, call, of_model, autograph=False)]
    if not isinstance(model, tf.Module):
        raise TypeError(
            "`model` must be a Keras model or layer, or a tf.Module. Received: "
            f"model={validation.shown(model)}"
        )
    signature = _given(input_signature)
    if signature is not None:
        if not callable(model):
            raise TypeError(
                "`model` must have a `__call__` if there is an `input_signature`. Received: "
                f"model={validation.shown(model)}"
            )
        call = _plain(model.__call__)
        return [ServedFunction(SERVE, call, signature, autograph=True)]
    found = list(_functions_of(model))
    for one in found:
        if hasattr(tf.Module, one.name) or one.name in _TAKEN:
            raise ValueError(
                "`model` must not give a tf.function the name of an attribute of a tf.Module, nor "
                f"'tables', 'weights' or 'resources'. Received: {one.name!r} in "
                f"{validation.shown(model)}"
            )
    if not found:
        raise ValueError(
            "`input_signature` must be given, or `model` must have a tf.function with an "
            f"input_signature. Received: model={validation.shown(model)}"
        )
    return found


def _given(input_signature: Any) -> list[Any] | None:
    """Returns `input_signature` as a list of structures of tf.TypeSpec."""
    if input_signature is None:
        return None
    if not isinstance(input_signature, (list, tuple)) or not input_signature:
        raise TypeError(
            "`input_signature` must be a list or a tuple, of what each argument is. Received: "
            f"input_signature={validation.shown(input_signature)}"
        )
    return [tf.nest.map_structure(_spec_of, argument) for argument in input_signature]


def _spec_of(spec: Any) -> tf.TypeSpec:
    if isinstance(spec, tf.TypeSpec):
        return spec
    if isinstance(spec, keras.InputSpec) and spec.shape is not None and spec.dtype is not None:
        return tf.TensorSpec(spec.shape, spec.dtype, name=spec.name)
    raise TypeError(
        "`input_signature` must be of tf.TensorSpec, or of keras.InputSpec with a shape and a "
        f"dtype. Received: {validation.shown(spec)}"
    )


def _signature_of_inputs(model: keras.Layer) -> list[Any]:
    """The signature of a model that has symbolic inputs.

    Raises:
        ValueError: If the model has none.
    """
    try:
        # A sequential model takes its only input, and other models the structure of all inputs.
        is_sequential = isinstance(model, keras.Sequential)
        inputs = model.inputs if is_sequential else [model.input]
    except (AttributeError, ValueError):
        inputs = None  # unknown: raised below
    if not inputs:
        raise ValueError(
            "`input_signature` must be given, because the inputs of `model` are not known: such as "
            f'[tf.TensorSpec([None, 3], "int64")]. Received: model={validation.shown(model)}'
        )

    def spec_of(one: keras.KerasTensor) -> tf.TensorSpec:
        return tf.TensorSpec([None, *one.shape[1:]], one.dtype, name=one.name)

    return [keras.tree.map_structure(spec_of, one) for one in inputs]


def _takes_training(layer: keras.Layer) -> bool:
    parameters = inspect.signature(layer.call).parameters.values()
    return any(one.name == "training" or one.kind == one.VAR_KEYWORD for one in parameters)


def _functions_of(module: tf.Module) -> Iterator[ServedFunction]:
    """Yields the tf.functions of a module that have an input signature."""
    names = {name for kind in type(module).__mro__ for name in vars(kind)} | vars(module).keys()
    for name in sorted(names):
        # Static, because a property would run the user's code.
        value = inspect.getattr_static(module, name)
        if not isinstance(value, tf.types.experimental.PolymorphicFunction):
            continue
        bound = getattr(module, name)
        signature = getattr(bound, "input_signature", None)
        if signature is not None:
            called = SERVE if name == "__call__" else name
            yield ServedFunction(called, _plain(bound), list(signature), autograph=True)


def _plain(function: Any) -> Callable[..., Any]:
    """Returns the Python function of a tf.function, whose traces may use tables."""
    return getattr(function, "python_function", function)
