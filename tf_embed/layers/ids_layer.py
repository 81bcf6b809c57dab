# SPDX-License-Identifier: Apache-2.0
"""`IdsLayer`: a layer that takes ids and may be the first layer of a model."""

from __future__ import annotations

import keras

from tf_embed import callers
from tf_embed.layers import step_outputs


class IdsLayer(keras.layers.Layer):
    """Base of all layers whose first argument is ids.

    A subclass whose ids are not int64 sets `_ids_dtype` to the result of `ids_dtype_of`. A subclass
    that can't look up together with other layers sets `_records_lookups` to False.
    """

    _records_lookups = True

    @property
    def supports_jit(self) -> bool:
        """False, because XLA has no tables; True if the layer is called outside of XLA."""
        return step_outputs.are_for_xla()

    @supports_jit.setter
    def supports_jit(self, supports_jit: bool) -> None:
        pass  # Keras sets it in each layer

    _ids_dtype = "int64"

    @property
    def compute_dtype(self) -> str:
        """The dtype of the output, or of the ids until the layer is built and in a new Sequential.

        A keras.Sequential without an Input makes an Input of its first layer's compute dtype. With
        float32 this would round ids, and with int32 it would wrap ids that do not fit.
        """
        # A Sequential of built layers also asks for the dtype of the ids.
        if self.built and not callers.sequential_builds():
            return self._output_dtype
        return self._ids_dtype

    @property
    def _output_dtype(self) -> str:
        """The compute dtype of the layer's policy."""
        return super().compute_dtype  # a DTypePolicyMap looks it up by the layer's path


def ids_dtype_of(key_dtype: str) -> str:
    """Returns the dtype of a keras.Input for keys, wide enough to show ids that do not fit."""
    if key_dtype == "string":
        return "string"
    return "uint64" if key_dtype == "uint64" else "int64"
