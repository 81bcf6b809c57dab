# SPDX-License-Identifier: Apache-2.0
"""`LayerWithTables`: a layer with tables whose lookups depend only on its inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tf_embed.layers.ids_layer import IdsLayer
from tf_embed.table.table import Table


@dataclasses.dataclass(frozen=True)
class _SymbolicCall:
    """The arguments of a layer in a functional model, in a class that Keras does not wrap."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class LayerWithTables(IdsLayer):
    """A layer with tables whose lookups depend only on its inputs.

    A call of the layer before a step therefore finds the keys that the step will look up.
    """

    _symbolic_call: _SymbolicCall | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer, as Keras does."""
        if any(map(_is_symbolic, keras.tree.flatten((args, kwargs)))):
            self._symbolic_call = _SymbolicCall(args, kwargs)
        return super().__call__(*args, **kwargs)

    def call_as_in_model(self, inputs: Sequence[Any], training: bool) -> Any:
        """Calls the layer with the arguments that its functional model passes.

        Args:
            inputs: The values of the tensors in `self.input`.
            training: Whether this is training, if the model does not pass `training` itself.

        Returns:
            The output. Arguments that are not tensors of the model, such as constants, are kept.
        """
        symbolic = self._symbolic_call
        assert symbolic is not None  # because the layer has an `input`
        values = iter(inputs)
        args, kwargs = keras.tree.map_structure(
            lambda one: next(values) if _is_symbolic(one) else one, (symbolic.args, symbolic.kwargs)
        )
        while args and args[-1] is None:  # `training` may be among them
            args = args[:-1]
        if kwargs.get("training") is None:  # Keras takes a bool by keyword only
            kwargs = {**kwargs, "training": training}
        return self(*args, **kwargs)

    @property
    def looked_up_tables(self) -> list[Table]:
        """The tables. REQUIRES: the layer is built.

        Raises:
            NotImplementedError: If the subclass does not override it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have `looked_up_tables`, the tables that a step looks up "
            "in together: give the class that property."
        )


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)
