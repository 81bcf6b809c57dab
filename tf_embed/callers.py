# SPDX-License-Identifier: Apache-2.0
"""Questions about the caller that the public API of Keras and TensorFlow does not answer.

All inspection of stack frames in tf_embed is here. An answer can only refuse a call that would lose
rows or train them wrong, or omit unwanted tensors or images. The exceptions are `saves_a_model` and
`model_being_loaded`, which select the tensors to save and to load, `lists_functions_to_save`, and
`sequential_builds`. If a name is not found, nothing is refused, except for `functions_to_save`.

    question                 looks for                        because
    optimizers               `self` of a Keras optimizer's    Keras does not tell a variable which
                             methods                          optimizer assigns its gradient
    optimizer_builds         `build` below `_var_key`         an optimizer without slots requests
                                                              nothing else before its first step
    calls_function           `get_state_tree`                 it reads a variable's value, as
                                                              `get_weights` does, but keeps no rows
                             `save_own_variables`             it writes an array without rows
                             `save_model_to_hdf5`             it only asks a layer for its config
                             `_log_weight_as_image`           it draws a variable without rows,
                                                              which ends the process
    caller_object            `self` of SwapEMAWeights         it swaps an inner optimizer's
                                                              variables, and no rows
    sequential_builds        `build` of a Sequential          it makes an Input of its first layer's
                                                              compute dtype
    model_being_loaded       a model in the locals            an optimizer knows no model, and is
                                                              loaded before it is built
    lists_functions_to_save  the function of TensorFlow that  Keras gives a subclassed model a
                             lists them                       signature of floats, and exports no
                                                              table of it if the trace fails
    saves_a_model            the code of tf.saved_model.save  it asks for the tensors of a
                                                              checkpoint, but needs no slots
    is_default_of_model      its function `serving_default`   Keras gives each model this function,
                                                              also in an object that serves another
    functional_inputs        `call` of a functional model     a layer is not told which of the
                             or a Sequential                  model's inputs provides its ids
    functions_to_save        the functions that TensorFlow    a table is copied into a SavedModel,
                             has listed, in its locals        but not told which functions use it
    splits_by_size           options of a checkpoint or a     TensorFlow does not tell an object
                             SavedModel in TensorFlow's       that it drops some of its tensors
                             locals

All were tested with Keras 3.15 and TensorFlow 2.16 and 2.21, except for `is_default_of_model`,
`functional_inputs` and `functions_to_save`, which were only tested with TensorFlow 2.21. The tests:
optimizer_corners_test.py for optimizers, save_path_cases.py for saved tensors, saving_test.py for
.h5, checkpoints_test.py for loaded models and splits by size, serving_test.py for
tf.saved_model.save, ragged_exports_test.py for inputs and functions to save, weights_test.py for
images.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

_SAVE_MODULE = inspect.unwrap(tf.saved_model.save).__module__
# Keras calls a variable from its optimizer's methods, a few frames apart.
_NEAR = 12


def frames() -> Iterator[types.FrameType]:
    """Yields the frames of the question's callers, innermost first, except this module's."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is not globals():
            yield frame
        frame = frame.f_back


def calls_function(name: str) -> bool:
    """Whether a function of this name is among the callers."""
    return any(frame.f_code.co_name == name for frame in frames())


def _caller() -> types.FrameType | None:
    # The first frame is the function that asks.
    return next(itertools.islice(frames(), 1, None), None)


def caller_object() -> Any:
    """Returns `self` of the method that called the asking function, or None."""
    caller = _caller()
    return None if caller is None else _self_of(caller)


def optimizer_builds() -> bool:
    """Whether a Keras optimizer that is being built called the asking function.

    The optimizer then asks for the key of a variable.
    """
    callers = itertools.islice(frames(), 1, 3)
    return [frame.f_code.co_name for frame in callers] == ["_var_key", "build"]


def sequential_builds() -> bool:
    """Whether `build` of a keras.Sequential called the asking function."""
    caller = _caller()
    return (
        caller is not None
        and caller.f_code.co_name == "build"
        and isinstance(_self_of(caller), keras.Sequential)
    )


def lists_functions_to_save() -> bool:
    """Whether TensorFlow traces an object's function, in case a SavedModel needs it."""
    return calls_function("_list_all_concrete_functions_for_serialization")


def is_default_of_model() -> bool:
    """Whether TensorFlow traces the function that Keras gives each model for a SavedModel."""
    return lists_functions_to_save() and any(
        # AutoGraph gives the converted function the prefix.
        frame.f_code.co_name in ("serving_default", "tf__serving_default")
        and isinstance(_self_of(frame), keras.Model)
        for frame in frames()
    )


def functional_inputs() -> list[tuple[keras.KerasTensor, Any]]:
    """Returns the inputs of the functional models that are being called, with their values.

    A keras.Sequential without a keras.Input makes dense inputs, whatever it is given. So only the
    ragged and sparse inputs of a Sequential are included.
    """
    found: list[tuple[keras.KerasTensor, Any]] = []
    for frame in frames():
        model = _self_of(frame) if frame.f_code.co_name == "call" else None
        if isinstance(model, keras.Sequential):
            own = {id(one) for one in getattr(model, "inputs", None) or ()}
            found = [
                (one, given)
                for one, given in found
                if id(one) not in own or one.sparse or getattr(one, "ragged", False)
            ]
        elif isinstance(model, keras.Model):
            inputs = getattr(model, "inputs", None)  # a subclassed model may have none
            given = keras.tree.flatten(frame.f_locals.get("inputs", ()))
            if isinstance(inputs, list) and len(inputs) == len(given):
                pairs = zip(inputs, given, strict=True)
                found += [pair for pair in pairs if isinstance(pair[0], keras.KerasTensor)]
    return found


def functions_to_save() -> list[Any] | None:
    """Returns the concrete functions of the SavedModel that is being written; None if not found."""
    for frame in frames():
        if not _is_of_tensorflow(frame):
            continue
        for value in frame.f_locals.values():
            if type(value).__module__ == _SAVE_MODULE:
                functions = getattr(value, "concrete_functions", None)
                if functions is not None:
                    return list(functions)
    return None


def optimizers() -> list[keras.optimizers.Optimizer]:
    """Returns the Keras optimizers whose methods are among the callers, innermost first."""
    found: list[keras.optimizers.Optimizer] = []
    for frame in itertools.islice(frames(), _NEAR):
        caller = _self_of(frame)
        if isinstance(caller, keras.optimizers.Optimizer) and caller not in found:
            found.append(caller)
    return found


def model_being_loaded(optimizer: keras.optimizers.Optimizer) -> keras.Model | None:
    """Returns the model that was compiled with an optimizer and is being loaded, or None."""
    for frame in frames():
        for value in frame.f_locals.values():
            if isinstance(value, keras.Model) and getattr(value, "optimizer", None) is optimizer:
                return value
    return None


def saves_a_model() -> bool:
    """Whether tf.saved_model.save is among the callers."""
    # TensorFlow's public functions are wrapped, and the frame has the inner code.
    save = inspect.unwrap(tf.saved_model.save).__code__
    return any(frame.f_code is save for frame in frames())


@tf.autograph.experimental.do_not_convert  # AutoGraph would add frames
def splits_by_size() -> bool:
    """Whether tensors are being saved with tf.train.experimental.MaxShardSizePolicy."""
    policy = getattr(tf.train.experimental, "MaxShardSizePolicy", None)
    if policy is None:
        return False
    kinds = (tf.train.CheckpointOptions, tf.saved_model.SaveOptions)
    for frame in frames():
        # A user's frame may have options of another save. Its `f_locals` would also keep its
        # objects alive.
        if not _is_of_tensorflow(frame):
            continue
        for value in frame.f_locals.values():
            if isinstance(value, kinds):
                # The innermost options are those of this save.
                return isinstance(getattr(value, "experimental_sharding_callback", None), policy)
    return False


def saves_all(name: str) -> bool:
    """Whether slots and statistics are saved, as a checkpoint does.

    A SavedModel is for serving, so it has neither. TensorFlow requests the tensors of both in the
    same way.

    Raises:
        ValueError: If TensorFlow would split the save by size. It drops tensors without elements
            then, such as the slots of a table without an optimizer, and can't restore the save.
    """
    if splits_by_size():
        raise ValueError(
            f"The table of {name!r} can't be saved with tf.train.experimental.MaxShardSizePolicy, "
            "which drops tensors without elements: leave `experimental_sharding_callback` out, or "
            "pass tf.train.experimental.ShardByTaskPolicy()."
        )
    return not saves_a_model()


def check_functions_to_save(check: Callable[[Iterable[Any]], None] | None, name: str) -> None:
    """Checks the functions of a SavedModel. TensorFlow copies each table to write a SavedModel.

    Args:
        check: Raises to refuse the concrete functions, or None.

    Raises:
        RuntimeError: If the functions can't be found.
        ValueError: See `Table.check_functions`.
    """
    if check is None or not saves_a_model():
        return
    functions = functions_to_save()
    if functions is None:
        raise RuntimeError(
            f"The functions with lookups in {name!r} are not where this version of TensorFlow is "
            "known to list them: set a `padding_id`."
        )
    check(functions)


def _self_of(frame: types.FrameType) -> Any:
    """Returns `self` of the method that the frame runs, or that encloses its function, or None."""
    code = frame.f_code
    # Do not read `f_locals` of a function without `self`: it would keep the user's objects alive.
    if "self" not in (*code.co_varnames[:1], *code.co_freevars):
        return None
    return frame.f_locals.get("self")


def _is_of_tensorflow(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "tensorflow"
