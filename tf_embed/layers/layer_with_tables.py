# SPDX-License-Identifier: Apache-2.0
"""`LayerWithTables`: a layer with tables whose lookups depend on its inputs alone."""

from __future__ import annotations

import keras

from tf_embed.table.table import Table


class LayerWithTables(keras.layers.Layer):
    """A layer that looks up in tables, and whose lookups depend on its inputs alone.

    So a call of the layer on the same inputs tells what a step will look up, before the step.
    """

    @property
    def looked_up_tables(self) -> list[Table]:
        """The tables. REQUIRES: the layer is built.

        Raises:
            NotImplementedError: A subclass has to have it.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have `looked_up_tables`, the tables that a step looks up "
            "in together: give the class that property."
        )
