"""tf_embed: embeddings without a vocabulary for TensorFlow and Keras 3.

A table maps any integer to a row of weights and grows as a model is trained. Importing tf_embed
loads its ops and changes nothing in TensorFlow or Keras.

    Variable                    a table, as a TensorFlow object
    embedding_lookup            a lookup in a Variable that takes part in gradients
    unique_rows                 the same for distinct ids, each row once
    layers.DynamicEmbedding     a table, as a Keras layer
    DynamicEmbeddingOptimizer   lets a Keras optimizer train tables
    optimizers.RowWiseAdagrad   an optimizer that Keras lacks
    default_partition_fn        how keys are spread over shards
    TablePolicy                 which rows come, stay and leave; CounterAdmission, BloomAdmission
    RestrictPolicy              cuts a Variable down on demand; TimestampRestrictPolicy,
                                FrequencyRestrictPolicy
"""

from tf_embed import _library

_library.check_environment()

from tf_embed import layers, optimizers  # noqa: E402
from tf_embed._version import __version__  # noqa: E402
from tf_embed.distributed.sharding import default_partition_fn  # noqa: E402
from tf_embed.lookup import embedding_lookup, unique_rows  # noqa: E402
from tf_embed.optimizers import DynamicEmbeddingOptimizer  # noqa: E402
from tf_embed.policies import BloomAdmission, CounterAdmission, TablePolicy  # noqa: E402
from tf_embed.restrict_policies import (  # noqa: E402
    FrequencyRestrictPolicy,
    RestrictPolicy,
    TimestampRestrictPolicy,
)
from tf_embed.variable import Variable  # noqa: E402

__all__ = [
    "BloomAdmission",
    "CounterAdmission",
    "DynamicEmbeddingOptimizer",
    "FrequencyRestrictPolicy",
    "RestrictPolicy",
    "TablePolicy",
    "TimestampRestrictPolicy",
    "Variable",
    "__version__",
    "default_partition_fn",
    "embedding_lookup",
    "layers",
    "optimizers",
    "unique_rows",
]
