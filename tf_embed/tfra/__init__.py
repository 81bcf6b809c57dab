# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Recommenders Addons' `dynamic_embedding`, for Keras 3.

Code that says `de = tfra.dynamic_embedding` migrates by one import: `from tf_embed import tfra as
de`. docs/migrating/from_tfra.md goes through every name.

    Variable, get_variable      tables; forget_variable
    embedding_lookup            and its variants: _unique, _sparse, safe_..._sparse
    DynamicEmbeddingOptimizer   lets a Keras optimizer train tables
    CuckooHashTableCreator      tables in memory, with CuckooHashTableConfig; FileSystemSaver
    HkvHashTableCreator         tables with eviction, with HkvHashTableConfig, HkvEvictStrategy
    RedisTableCreator           tables on a Redis server, with RedisTableConfig
    RestrictPolicy              and TimestampRestrictPolicy, FrequencyRestrictPolicy
    keras                       layers, models and callbacks
    shadow_ops, ragged_embedding_ops, math, data_flow, ModelMode
                                modules and modes that such code uses
"""

from tf_embed.table.sharding import default_partition_fn
from tf_embed.tfra import data_flow, keras, math, ragged_embedding_ops, shadow_ops
from tf_embed.tfra.creators import (
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    FileSystemSaver,
    HkvEvictStrategy,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTableCreator,
)
from tf_embed.tfra.lookups import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_unique,
    safe_embedding_lookup_sparse,
)
from tf_embed.tfra.model_mode import (
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from tf_embed.tfra.optimizer import DynamicEmbeddingOptimizer
from tf_embed.tfra.redis_config import RedisTableConfig
from tf_embed.tfra.restrict_policies import (
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tf_embed.tfra.variable import Variable
from tf_embed.tfra.variable_store import forget_variable, get_variable

__all__ = [
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DynamicEmbeddingOptimizer",
    "FileSystemSaver",
    "FrequencyRestrictPolicy",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "ModelMode",
    "RedisTableConfig",
    "RedisTableCreator",
    "RestrictPolicy",
    "TimestampRestrictPolicy",
    "Variable",
    "data_flow",
    "default_partition_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "enable_inference_mode",
    "enable_train_mode",
    "forget_variable",
    "get_model_mode",
    "get_variable",
    "keras",
    "math",
    "ragged_embedding_ops",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
]
