"""tf_embed: embeddings without a vocabulary for TensorFlow and Keras 3.

A table maps any integer to a row of weights and grows as a model is trained. Importing tf_embed
loads its ops and changes nothing in TensorFlow or Keras.

    Variable                    a table, as a TensorFlow object; get_variable, by name
    embedding_lookup            a lookup in a Variable that takes part in gradients;
                                embedding_lookup_unique
    embedding_lookup_sparse     of sparse or ragged ids, pooled; safe_embedding_lookup_sparse
    unique_rows                 of distinct ids, each row once
    layers.DynamicEmbedding     a table, as a Keras layer
    DynamicEmbeddingOptimizer   lets a Keras optimizer train tables
    optimizers.RowWiseAdagrad   an optimizer that Keras lacks; FBGEMM's stand beside it, and what
                                they are set by here: OptimType, WeightDecayMode and others;
                                what its tables are described by: PoolingMode, SparseType and others
    default_partition_fn        how keys are spread over shards
    TablePolicy                 which rows come, stay and leave; CounterAdmission, BloomAdmission
    HkvHashTableCreator         the same in TFRA's words, with HkvHashTableConfig, HkvEvictStrategy;
                                CuckooHashTableCreator, FileSystemSaver
    RestrictPolicy              cuts a Variable down on demand; TimestampRestrictPolicy,
                                FrequencyRestrictPolicy
    keras, shadow_ops, ragged_embedding_ops, math, data_flow, ModelMode
                                names that code written for TFRA uses
"""

from tf_embed import _library

_library.check_environment()

from tf_embed import (  # noqa: E402
    data_flow,
    keras,
    layers,
    math,
    optimizers,
    quantized_rows,
    ragged_embedding_ops,
    shadow_ops,
)
from tf_embed._version import __version__  # noqa: E402
from tf_embed.creators import (  # noqa: E402
    CuckooHashTableConfig,
    CuckooHashTableCreator,
    FileSystemSaver,
    HkvEvictStrategy,
    HkvHashTableConfig,
    HkvHashTableCreator,
    KVCreator,
    RedisTableConfig,
    RedisTableCreator,
)
from tf_embed.distributed.sharding import default_partition_fn  # noqa: E402
from tf_embed.lookup import (  # noqa: E402
    embedding_lookup,
    embedding_lookup_unique,
    unique_rows,
)
from tf_embed.model_mode import (  # noqa: E402
    ModelMode,
    enable_inference_mode,
    enable_train_mode,
    get_model_mode,
)
from tf_embed.optimizers import DynamicEmbeddingOptimizer  # noqa: E402
from tf_embed.optimizers.tbe_settings import (  # noqa: E402
    CounterBasedRegularizationDefinition,
    CounterWeightDecayMode,
    CowClipDefinition,
    EmainplaceModeDefinition,
    EmbOptimType,
    EnsembleModeDefinition,
    GlobalWeightDecayDefinition,
    GradSumDecay,
    LearningRateMode,
    OptimType,
    StepMode,
    TailIdThreshold,
    WeightDecayMode,
)
from tf_embed.policies import BloomAdmission, CounterAdmission, TablePolicy  # noqa: E402
from tf_embed.restrict_policies import (  # noqa: E402
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tf_embed.sparse_lookup import (  # noqa: E402
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from tf_embed.storage import GpuStorage  # noqa: E402
from tf_embed.tbe_types import (  # noqa: E402
    BoundsCheckMode,
    CacheAlgorithm,
    ComputeDevice,
    EmbeddingLocation,
    MultiPassPrefetchConfig,
    PoolingMode,
    RecordCacheMetrics,
    SparseType,
    TBEStatsReporterConfig,
    UserEnabledConfigDefinition,
)
from tf_embed.variable import Variable  # noqa: E402
from tf_embed.variable_store import forget_variable, get_variable  # noqa: E402

__all__ = [
    "BloomAdmission",
    "BoundsCheckMode",
    "CacheAlgorithm",
    "ComputeDevice",
    "CounterAdmission",
    "CounterBasedRegularizationDefinition",
    "CounterWeightDecayMode",
    "CowClipDefinition",
    "CuckooHashTableConfig",
    "CuckooHashTableCreator",
    "DynamicEmbeddingOptimizer",
    "EmainplaceModeDefinition",
    "EmbOptimType",
    "EmbeddingLocation",
    "EnsembleModeDefinition",
    "FileSystemSaver",
    "FrequencyRestrictPolicy",
    "GlobalWeightDecayDefinition",
    "GpuStorage",
    "GradSumDecay",
    "HkvEvictStrategy",
    "HkvHashTableConfig",
    "HkvHashTableCreator",
    "KVCreator",
    "LearningRateMode",
    "ModelMode",
    "MultiPassPrefetchConfig",
    "OptimType",
    "PoolingMode",
    "RecordCacheMetrics",
    "RedisTableConfig",
    "RedisTableCreator",
    "RestrictPolicy",
    "SparseType",
    "StepMode",
    "TBEStatsReporterConfig",
    "TablePolicy",
    "TailIdThreshold",
    "TimestampRestrictPolicy",
    "UserEnabledConfigDefinition",
    "Variable",
    "WeightDecayMode",
    "__version__",
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
    "layers",
    "math",
    "optimizers",
    "quantized_rows",
    "ragged_embedding_ops",
    "safe_embedding_lookup_sparse",
    "shadow_ops",
    "unique_rows",
]
