# SPDX-License-Identifier: Apache-2.0
"""`LayerWithTables`: what a step of several tables must know of a layer."""

from __future__ import annotations

import keras

from tf_embed.table.table import Table


class LayerWithTables(keras.layers.Layer):
    """A layer that looks up in tables, and whose lookups depend on its inputs alone.

    So a call of the layer on the same inputs tells beforehand what a step will look up.
    """

    @property
    def looked_up_tables(self) -> list[Table]:
        """The tables. REQUIRES: the layer is built."""
        raise NotImplementedError
