# SPDX-License-Identifier: Apache-2.0
"""`IdsLayer`: a layer that may come first in a model and takes ids."""

from __future__ import annotations

import keras

from tf_embed import callers


class IdsLayer(keras.layers.Layer):
    """Base of all layers whose first argument is ids.

    A subclass whose ids are not int64 sets `_ids_dtype`, by `ids_dtype_of`.
    """

    _ids_dtype = "int64"

    @property
    def compute_dtype(self) -> str:
        """Dtype of the output; of the ids until the layer is built, and in a new Sequential.

        A keras.Sequential without an Input makes one of its first layer's compute dtype, and
        would round ids to float32. Not int32 either: it would wrap those that do not fit.
        """
        # A Sequential of layers that are built already asks for that of the ids, too.
        if self.built and not callers.sequential_builds():
            return self._output_dtype
        return self._ids_dtype

    @property
    def _output_dtype(self) -> str:
        """The compute dtype of the layer's policy."""
        return super().compute_dtype  # also of a DTypePolicyMap, which goes by the path


def ids_dtype_of(key_dtype: str) -> str:
    """The dtype of a keras.Input for keys: one that also shows ids that do not fit the keys."""
    if key_dtype == "string":
        return "string"
    return "uint64" if key_dtype == "uint64" else "int64"
