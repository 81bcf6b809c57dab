# SPDX-License-Identifier: Apache-2.0
"""OneFlow's `oneflow.one_embedding` for Keras 3: many tables in one layer.

MultiTableEmbedding             one embedding dim for all tables
MultiTableMultiColumnEmbedding  rows of several columns, each with its own initializer
make_table_options, make_table  the initial rows of a table
make_column_options             the initial weights of a column
make_uniform_initializer, make_normal_initializer, make_trunc_normal_initializer,
make_constant_initializer
the distribution of initial weights
make_device_mem_store_options, make_cached_host_mem_store_options, make_cached_ssd_store_options
the memory tiers and capacity of a store
make_persistent_table_reader, make_persistent_table_writer
the rows of a snapshot as NumPy arrays, block by block
Ftrl, SmartDecayAdam            optimizers
"""

from tf_embed.one_embedding.ftrl import Ftrl
from tf_embed.one_embedding.initializers import (
    make_constant_initializer,
    make_normal_initializer,
    make_trunc_normal_initializer,
    make_uniform_initializer,
)
from tf_embed.one_embedding.multi_table import (
    MultiTableEmbedding,
    MultiTableMultiColumnEmbedding,
)
from tf_embed.one_embedding.persistent_table import (
    make_persistent_table_reader,
    make_persistent_table_writer,
)
from tf_embed.one_embedding.store_options import (
    make_cached_host_mem_store_options,
    make_cached_ssd_store_options,
    make_device_mem_store_options,
)
from tf_embed.one_embedding.tables import make_column_options, make_table, make_table_options
from tf_embed.optimizers.smart_decay_adam import SmartDecayAdam

__all__ = [
    "Ftrl",
    "MultiTableEmbedding",
    "MultiTableMultiColumnEmbedding",
    "SmartDecayAdam",
    "make_cached_host_mem_store_options",
    "make_cached_ssd_store_options",
    "make_column_options",
    "make_constant_initializer",
    "make_device_mem_store_options",
    "make_normal_initializer",
    "make_persistent_table_reader",
    "make_persistent_table_writer",
    "make_table",
    "make_table_options",
    "make_trunc_normal_initializer",
    "make_uniform_initializer",
]
