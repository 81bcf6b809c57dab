# SPDX-License-Identifier: Apache-2.0
"""tf_embed: open-vocabulary embeddings for TensorFlow and Keras 3.

A table maps any integer or string to a row of weights, and grows as a model is trained. Importing
tf_embed loads its ops. It changes nothing in TensorFlow or Keras.

    Variable                    a table, as a TensorFlow object
    embedding_lookup            a differentiable lookup in a Variable; embedding_lookup_unique
    embedding_lookup_sparse     pooled rows of sparse or ragged ids; safe_embedding_lookup_sparse
    unique_rows                 the rows of distinct ids
    layers.DynamicEmbedding     a table, as a Keras layer
    Model                       a Keras model whose tables step together, and whose other layers XLA
                                compiles; ModelWithTables, its mixin
    print_tables                the rows, weights and bytes of the tables of a model
    callbacks.TableMetrics      statistics of tables in TensorBoard and the progress bar;
                                callbacks.TableProjector, which shows their rows there;
                                callbacks.Snapshot, which saves tables every few batches;
                                callbacks.Publish, which publishes a model every few seconds;
                                callbacks.BackupAndRestore, whose backups survive a kill
    DynamicEmbeddingOptimizer   lets a Keras optimizer train tables
    optimizers.RowwiseAdagrad   an optimizer that Keras lacks
    TablePolicy                 admission, eviction and expiry; CounterAdmission, BloomAdmission
    Snapshots                   named saves, full or incremental, while training continues
    load_without_slots          loads the rows of a training without its optimizer slots
    export_static               a SavedModel that is served without tf_embed
    serving.Follower            a served model that follows a model in training; serving.Publisher
    Storage                     the tiers of a table: GPU, host memory, disk; and their bounds
    RedisServer                 for a Storage: a server whose rows several processes share
    default_partition_fn        how keys are spread over shards
    distributed.Model           a Keras model for several workers; distributed.run launches them

The interfaces of other systems are separate packages:

    tfra    TensorFlow Recommenders Addons' dynamic_embedding: `from tf_embed import tfra as de`
    tbe     FBGEMM's table-batched embeddings and their optimizers
    one_embedding   OneFlow's one_embedding: many tables in one layer
    sok     NVIDIA's SparseOperationKit: layers whose keys go to worker key % workers
"""

from tf_embed import _library

_library.check_environment()

from tf_embed import callbacks as callbacks  # noqa: E402
from tf_embed import distributed as distributed  # noqa: E402
from tf_embed import layers as layers  # noqa: E402
from tf_embed import one_embedding as one_embedding  # noqa: E402
from tf_embed import optimizers as optimizers  # noqa: E402
from tf_embed import serving as serving  # noqa: E402
from tf_embed import sok as sok  # noqa: E402
from tf_embed import tbe as tbe  # noqa: E402
from tf_embed import tfra as tfra  # noqa: E402
from tf_embed._version import __version__  # noqa: E402
from tf_embed.models.model import Model, ModelWithTables  # noqa: E402
from tf_embed.models.table_lines import print_tables  # noqa: E402
from tf_embed.optimizers import DynamicEmbeddingOptimizer  # noqa: E402
from tf_embed.snapshots import Snapshots  # noqa: E402
from tf_embed.static_export import export_static  # noqa: E402
from tf_embed.table.loaded_slots import load_without_slots  # noqa: E402
from tf_embed.table.policies import BloomAdmission, CounterAdmission, TablePolicy  # noqa: E402
from tf_embed.table.redis_server import RedisServer  # noqa: E402
from tf_embed.table.sharding import default_partition_fn  # noqa: E402
from tf_embed.table.storage import Storage  # noqa: E402
from tf_embed.variable.lookup import (  # noqa: E402
    embedding_lookup,
    embedding_lookup_unique,
    unique_rows,
)
from tf_embed.variable.sparse_lookup import (  # noqa: E402
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from tf_embed.variable.variable import Variable  # noqa: E402

# Without the packages: `from tf_embed import *` must not rebind a user's `layers` or `optimizers`.
__all__ = [
    "BloomAdmission",
    "CounterAdmission",
    "DynamicEmbeddingOptimizer",
    "Model",
    "ModelWithTables",
    "RedisServer",
    "Snapshots",
    "Storage",
    "TablePolicy",
    "Variable",
    "__version__",
    "default_partition_fn",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_unique",
    "export_static",
    "load_without_slots",
    "print_tables",
    "safe_embedding_lookup_sparse",
    "unique_rows",
]
