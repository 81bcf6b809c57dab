# SPDX-License-Identifier: Apache-2.0
"""Every public function, class and method of tf_embed, by name."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import tf_embed

# Keras and TensorFlow call these; a user calls the layer, the model or the checkpoint.
HOOKS = {
    "build",
    "call",
    "compute_mask",
    "compute_output_shape",
    "compute_output_spec",
    "from_config",
    "get_config",
    "load_own_variables",
    "save_own_variables",
    "update_step",
}

PACKAGES = (
    *("callbacks", "distributed", "layers", "one_embedding", "optimizers"),
    *("serving", "sok", "tbe", "tfra"),
)


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments that a user can give."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return ()
    named = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    found = tuple(one.name for one in signature.parameters.values() if one.kind in named)
    return tuple(name for name in found if name != "self")


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] == "tf_embed"


def _members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    listed = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        if listed is not None:
            public = name in listed
        else:
            public = not name.startswith("_") and (
                getattr(value, "__module__", None) == module.__name__
            )
        if public:
            yield name, value


def public_names() -> dict[str, Any]:
    """Functions and classes by dotted name, and the methods of classes that have arguments.

    A function or class with several names has its first name here, in the shortest package.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def look_into(module: types.ModuleType, prefix: str) -> None:
        members = dict(_members(module))
        if module is tf_embed:  # its `__all__` lacks its packages
            members |= {name: getattr(tf_embed, name) for name in PACKAGES}
        # An object's own name precedes an alias.
        own_first = sorted(
            members.items(), key=lambda item: getattr(item[1], "__name__", "") != item[0]
        )
        for name, value in own_first:
            if isinstance(value, types.ModuleType):
                look_into(value, f"{prefix}{name}.")
            elif callable(value) and id(value) not in seen:
                seen.add(id(value))
                found[prefix + name] = value
                if isinstance(value, type):
                    found.update(_methods(value, prefix + name))

    look_into(tf_embed, "")
    return found


def _methods(kind: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        if name.startswith(("_", "on_")) or name in HOOKS:
            continue
        value = inspect.getattr_static(kind, name)
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if inspect.isfunction(value) and _is_ours(value) and parameters(value):
            yield f"{prefix}.{name}", value
