# SPDX-License-Identifier: Apache-2.0
"""The seed from which a table draws random initial rows at present."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tf_embed.ops import whole_table_ops
from tf_embed.table.initializers import RowInitializer
from tf_embed.table.table import Table


def current_initializer(table: Table) -> RowInitializer:
    """The initializer of a table, with the seed that it has now.

    A load gives a table the seed of the one that was saved, and so its initial rows. The options
    keep the seed that the table was made with.

    Args:
        table: A table with a resource in this process or on servers.
    """
    with tf.init_scope():
        seed, table_id = whole_table_ops.origin(table.parts[0].resource_handle).numpy()
    return dataclasses.replace(table.options.initializer, seed=int(seed), table_id=int(table_id))
