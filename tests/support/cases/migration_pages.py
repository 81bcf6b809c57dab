# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/migrating: the names of the other library, and the names that code finds."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import operator
import pathlib
import re
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import tf_embed
from tf_embed import one_embedding, sok, tbe, tfra

# Names of the class that the page need not have: private names, properties, counts of the cache.
LEFT_OUT = r"_|.*(cache_miss|uvm_cache)|(tables|embedding_specs|optimizer|bounds_check_warning)$"
FBGEMM = {name for name in vars(tbe.TableBatchedEmbeddingBags) if not re.match(LEFT_OUT, name)}
FBGEMM -= {*dir(keras.layers.Layer)}
# The names that oneflow.one_embedding documents.
ONE_FLOW = """
    make_uniform_initializer make_normal_initializer make_constant_initializer
    make_trunc_normal_initializer make_column_options make_table_options make_table
    make_device_mem_store_options make_cached_ssd_store_options make_cached_host_mem_store_options
    MultiTableEmbedding MultiTableMultiColumnEmbedding forward save_snapshot load_snapshot
    make_persistent_table_reader make_persistent_table_writer Ftrl SmartDecayAdam Optimizer
    size_factor storage_dim physical_block_size persistent_path capacity padding_idx state_dict
"""
# The names that sparse_operation_kit documents, of both versions.
SOK = """
    Init All2AllDenseEmbedding DistributedEmbedding Saver dump_to_file restore_from_file
    load_embedding_values TFDistributedEmbedding split_embedding_variable_from_others
    max_vocabulary_size_per_gpu slot_num nnz_per_slot dynamic_input use_hashtable key_dtype
    embedding_initializer combiner max_nnz max_feature_num embedding_variable
    init Variable DynamicVariable lookup_sparse all2all_dense_embedding sparse_read_and_evict
    OptimizerWrapper SGD export assign dump load incremental_model_dump filter_variables
    size indices sparse_read scatter_add scatter_sub scatter_update to_static to_dynamic
    max_capacity evict_strategy filter_ratio max_hbm_for_vectors use_low_frequency_filter
"""
# The names in `__all__` of TFRA 0.8.1's dynamic_embedding, and its names outside of `__all__`.
TFRA = """
    CuckooHashTable CuckooHashTableConfig CuckooHashTableCreator HkvEvictStrategy HkvHashTable
    HkvHashTableConfig HkvHashTableCreator RedisTable RedisTableConfig RedisTableCreator Variable
    TrainableWrapper DistributedVariableWrapper DynamicEmbeddingOptimizer GraphKeys ModelMode
    RestrictPolicy TimestampRestrictPolicy FrequencyRestrictPolicy get_variable embedding_lookup
    embedding_lookup_sparse embedding_lookup_unique safe_embedding_lookup_sparse
    enable_inference_mode enable_train_mode get_model_mode trainable_wrapper_filter train keras
    math data_flow shadow_ops DEResourceVariable
    KVCreator FileSystemSaver ragged_embedding_ops warm_start WarmStartHook patch_on_tf
    patch_on_tf_save_restore create_slots
"""
# TFRA's methods, and the fields of its file for a RedisTable.
TFRA_WORDS = """
    upsert lookup accum remove clear size export export_keys_and_scores restrict
    save_to_file_system load_from_file_system load_from_file_system_with_restore_function
    get_slot_variables get_slot_names get_slot get_trainable_by_name get_eager_trainable_by_name
    trainable_store tables restrict_policy

    redis_connection_mode redis_master_name redis_host_ip redis_host_port redis_user redis_password
    redis_db redis_read_access_slave redis_connect_keep_alive redis_connect_timeout
    redis_socket_timeout redis_conn_pool_size redis_wait_timeout redis_connection_lifetime
    redis_sentinel_user redis_sentinel_password redis_sentinel_connect_timeout
    redis_sentinel_socket_timeout storage_slice_import storage_slice using_hash_storage_slice
    keys_sending_size using_md5_prefix_name redis_hash_tags_hypodispersion model_tag_import
    redis_hash_tags_import model_tag_runtime redis_hash_tags_runtime expire_model_tag_in_seconds
    table_store_mode model_lib_abs_dir
"""


def names_for_fbgemm(folder: str) -> dict[str, Any]:
    rowwise = tbe.OptimType.EXACT_ROWWISE_ADAGRAD
    bags = tbe.TableBatchedEmbeddingBags([(9, 4), (None, 4)], optimizer=rowwise)
    indices = tf.constant([1, 2, 10**15], tf.int64)
    offsets = tf.constant([0, 2, 3], tf.int64)
    rows = bags.get_weights()
    return {**locals(), "tbe": tbe}


def names_for_one_flow(folder: str) -> dict[str, Any]:
    uniform = one_embedding.make_uniform_initializer()
    table = one_embedding.make_table(uniform)
    store = one_embedding.make_device_mem_store_options(folder, 100)

    def built(**options: Any) -> Any:
        kind = one_embedding.MultiTableEmbedding
        layer = kind("layer", 2, "float32", "int32", [table] * 2, store, **options)
        layer.build()
        return layer

    layer, other = built(), built()
    layer.save_snapshot("saved")
    tracked = built(policy=tf_embed.TablePolicy(eviction=None, track_changes=True))
    ids = tf.constant([[1, 2], [3, 4]])
    table_ids = tf.constant([[0, 1], [1, 0]])
    return {**locals(), "one_embedding": one_embedding}


def names_for_sok(folder: str) -> dict[str, Any]:
    dense = sok.All2AllDenseEmbedding(1024, 4, 2, 1, name="dense")
    pooled = sok.DistributedEmbedding("sum", 1024, 4, 2, 3, name="pooled")
    for layer in (dense, pooled):
        layer.build()
        sok.assign(layer, [1, 3], [[0.5] * 4] * 2)
    inputs = keras.Input([2, 1], dtype="int64")
    model = keras.Model(inputs, dense(inputs))
    optimizer = sok.OptimizerWrapper(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    keys = tf.constant([[[1], [2]], [[3], [4]]])
    sparse = tf.SparseTensor([[0, 0], [0, 1], [3, 2]], tf.constant([1, 2, 3], tf.int64), [4, 3])
    timed = tf_embed.Variable(dim=4, policy=tf_embed.TablePolicy(eviction="ttl"))
    return {**locals(), "sok": sok, "datetime": datetime}


def names_for_tfra(folder: str) -> dict[str, Any]:
    v = tfra.Variable(dim=2, name="v", restrict_policy=tfra.FrequencyRestrictPolicy)
    keys, values = tf.constant([1, 2, 3], tf.int64), tf.ones([3, 2])
    exists = tf.constant([False, False, True])
    sparse = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([1, 2], tf.int64), [2, 3])
    ragged = tf.RaggedTensor.from_sparse(sparse)
    optimizer = tfra.DynamicEmbeddingOptimizer(keras.optimizers.Adam())

    def config(**fields: Any) -> tf_embed.RedisServer:
        """The server that a TFRA file with these fields describes."""
        file = pathlib.Path(folder, "redis.json")
        file.write_text(json.dumps(fields))
        return tfra.RedisTableConfig(str(file)).server()

    def refused(**fields: Any) -> None:
        """Fails unless a file with these fields is refused by an error that names the first."""
        with pytest.raises(ValueError, match=f"`{next(iter(fields))}`"):
            config(**fields)

    return {**locals(), "de": tfra}


@dataclasses.dataclass(frozen=True)
class Migration:
    """The expected names in the tables of a page.

    Attributes:
        names_for: The names that the second column may use, given a folder.
        documented: The other library's names that must have a row.
        replaced: The documented names for which the second column has another name.
        places: The modules and classes of tf_embed that have the same names.
        prefix: The beginning of the names that must be in `places`, or in code that runs. Other
            words are not looked up.
    """

    names_for: Callable[[str], dict[str, Any]]
    documented: set[str]
    replaced: str
    places: tuple[Any, ...]
    prefix: str = ""

    def has(self, name: str) -> bool:
        """Whether tf_embed has a name of the other library."""
        get = operator.attrgetter(name.removeprefix(self.prefix))
        for place in self.places:
            with contextlib.suppress(AttributeError):
                get(place)
                return True
        return False


MIGRATIONS = {
    "migrating/from_fbgemm.md": Migration(
        names_for_fbgemm,
        FBGEMM,
        "forward state_dict load_state_dict",
        (tbe.TableBatchedEmbeddingBags, tbe),
    ),
    "migrating/from_oneembedding.md": Migration(
        names_for_one_flow,
        {*ONE_FLOW.split(), *one_embedding.__all__},
        "Optimizer state_dict capacity size_factor persistent_path",
        (one_embedding,),
    ),
    "migrating/from_sok.md": Migration(
        names_for_sok,
        {*SOK.split(), *sok.__all__},
        """
        init DynamicVariable all2all_dense_embedding sparse_read scatter_update size indices
        max_vocabulary_size_per_gpu split_embedding_variable_from_others max_capacity
        evict_strategy filter_ratio use_low_frequency_filter max_hbm_for_vectors SavedModel
        tf.keras.optimizers.Adam LazyAdamOptimizer
        """,
        (sok,),
    ),
    "migrating/from_tfra.md": Migration(
        names_for_tfra,
        {*(f"de.{name}" for name in TFRA.split()), *TFRA_WORDS.split()},
        "de.TrainableWrapper de.DEResourceVariable de.trainable_wrapper_filter de.train",
        (tfra,),
        prefix="de.",
    ),
}
