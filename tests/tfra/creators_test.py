# SPDX-License-Identifier: Apache-2.0
"""TFRA's creators: the tables that they make for a variable and a layer."""

from __future__ import annotations

import itertools
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.policy_tables import (
    SHARDS,
    keys_of,
    popular_keys,
    score_of,
    scores_by_key,
    train,
    upsert,
)
from support.oracles.policy_oracle import PolicyOracle
from support.oracles.reference import SEED
from tf_embed import tfra as de
from tf_embed.tfra import HkvEvictStrategy, HkvHashTableConfig, HkvHashTableCreator

ORDER = {
    HkvEvictStrategy.LRU: "lru",
    HkvEvictStrategy.LFU: "lfu",
    HkvEvictStrategy.EPOCHLRU: "epoch_lru",
    HkvEvictStrategy.EPOCHLFU: "epoch_lfu",
    HkvEvictStrategy.CUSTOMIZED: "score",
}


def variable(policy: Any = None, shards: int = 1, **options: Any) -> de.Variable:
    return de.Variable(**{"dim": 1, "devices": ["/CPU:0"] * shards, "policy": policy, **options})


def hkv(**settings: object) -> HkvHashTableCreator:
    return HkvHashTableCreator(HkvHashTableConfig(**settings))


class StrategyTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(itertools.product(HkvEvictStrategy, SHARDS))
    def test_each_keeps_the_rows_of_the_oracle(self, strategy, shards):
        rng = np.random.default_rng(SEED)
        creator = hkv(
            init_capacity=50,
            max_capacity=61,
            evict_strategy=strategy,
            step_per_epoch=5,
            gen_scores_fn=score_of,
        )
        v = variable(None, shards, kv_creator=creator)
        by_epochs = strategy in (HkvEvictStrategy.EPOCHLRU, HkvEvictStrategy.EPOCHLFU)
        steps = 5 if by_epochs else None
        oracle = PolicyOracle(ORDER[strategy], 61, shards, steps_per_epoch=steps)
        for number in range(60):
            keys = popular_keys(rng, 40, 300)
            scores = dict(zip(keys, score_of(np.array(keys)).tolist(), strict=True))
            (train if number % 2 else upsert)(v, keys)
            is_customized = strategy == HkvEvictStrategy.CUSTOMIZED
            oracle.update(keys, bool(number % 2), scores if is_customized else None)
            self.assertEqual(keys_of(v), oracle.keys())
        self.assertGreater(oracle.counts["evicted"], 0)
        self.assertEqual(scores_by_key(v), oracle.scores())

    def test_an_epoch_of_no_steps_lasts_until_another_is_set(self):
        v = variable(kv_creator=hkv(evict_strategy=3))
        upsert(v, [1])
        upsert(v, [1])
        v.set_clock(epoch=4)
        upsert(v, [2])
        self.assertEqual(scores_by_key(v), {1: 2, 2: (4 << 32) + 1})

    @parameterized.parameters(None, HkvHashTableConfig())
    def test_nothing_leaves_without_a_bound_that_somebody_named(self, config):
        v = variable(kv_creator=HkvHashTableCreator(config))
        count = 2**20 + 500
        v.upsert(np.arange(count), np.zeros([count, 1], np.float32))
        self.assertEqual(int(v.size()), count)
        self.assertEqual(v.stats()["evicted"] + v.stats()["refused"], 0)
        v.restrict(3)
        self.assertEqual(int(v.size()), 3)

    def test_no_key_is_reserved(self):
        v = variable(kv_creator=hkv(max_capacity=10, reserved_key_start_bit=1))
        keys = [-1, -2, -3, -4, 0, 2**63 - 1, -(2**63)]
        upsert(v, keys)
        self.assertEqual(keys_of(v), sorted(keys))

    def test_the_room_is_that_of_the_config_or_else_of_the_variable(self):
        self.assertEqual(variable(kv_creator=hkv(init_capacity=90)).init_size, 90)
        config = hkv(init_capacity=90)
        self.assertEqual(variable(None, 3, kv_creator=config, init_size=7).init_size, 90)
        self.assertEqual(variable(None, 3, kv_creator=config).table.options.init_size, 30)
        self.assertEqual(variable(kv_creator=hkv(), init_size=7).init_size, 7)

    def test_a_creator_has_a_storage(self):
        config = de.HkvHashTableConfig(max_hbm_for_values=10**6)
        creator = de.HkvHashTableCreator(config)
        on_host = tf_embed.Storage(gpu_bytes=0)
        for storage, wanted in ((None, tf_embed.Storage(gpu_bytes=10**6)), (on_host, on_host)):
            v = de.Variable(kv_creator=creator, storage=storage)
            self.assertEqual(v.storage, wanted)
        creator = de.CuckooHashTableCreator()
        self.assertIsNone(de.Variable(kv_creator=creator).storage)

    def test_a_cuckoo_table_is_the_one_without_a_creator(self):
        creator = de.CuckooHashTableCreator(de.CuckooHashTableConfig(), de.FileSystemSaver())
        v = variable(kv_creator=creator)
        self.assertIs(v.kv_creator, creator)
        self.assertIsNone(v.policy)
        policy = tf_embed.TablePolicy(5)
        self.assertEqual(variable(policy, kv_creator=creator).policy, policy)


class LayerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        hkv(max_capacity=3, evict_strategy=HkvEvictStrategy.CUSTOMIZED, gen_scores_fn=score_of),
        hkv(max_capacity=3, evict_strategy=HkvEvictStrategy.EPOCHLFU, step_per_epoch=2),
        de.CuckooHashTableCreator(saver=de.FileSystemSaver(2, 1, "/tmp/rows", 100)),
    )
    def test_a_keras_file_has_the_creator(self, creator):
        layer = de.keras.layers.Embedding(2, optimizer="sgd", kv_creator=creator, name="mine")
        ids = keras.Input([1], dtype="int64")
        model = keras.Model(ids, layer(ids))
        model.compile("sgd", "mse")
        model.fit(np.arange(8)[:, None], np.ones([8, 1, 2]), batch_size=2, verbose=0)
        self.assertEqual(int(layer.variable.size()), 8 if creator.policy is None else 3)
        path = os.path.join(self.get_temp_dir(), "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path).get_layer("mine")
        self.assertEqual(loaded.kv_creator, creator)
        self.assertEqual(loaded.variable.policy, layer.variable.policy)
        self.assertAllEqual(*(sorted(one.variable.export()[0].numpy()) for one in (layer, loaded)))
        if creator.policy is not None:
            self.assertEqual(scores_by_key(loaded.variable), scores_by_key(layer.variable))

    def test_a_layer_refuses_what_a_variable_refuses(self):
        for arguments in (
            {"kv_creator": 3},
            {"kv_creator": hkv(), "policy": tf_embed.TablePolicy()},
        ):
            with self.assertRaises((TypeError, ValueError)):
                de.keras.layers.Embedding(2, **arguments)


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (lambda: variable(kv_creator=3), TypeError, "`kv_creator` must be .*kv_creator=3"),
        (lambda: variable(kv_creator=HkvHashTableCreator), TypeError, "`kv_creator` must be"),
        (lambda: variable(kv_creator=de.KVCreator()), TypeError, "`kv_creator` must be"),
        (lambda: variable(kv_creator=HkvHashTableConfig()), TypeError, "`kv_creator` must be"),
        (
            lambda: variable(kv_creator=de.RedisTableCreator(de.RedisTableConfig("/a.json"))),
            ValueError,
            "`redis_config_abs_dir` must be the path of a JSON file.*/a.json",
        ),
        (
            lambda: variable(tf_embed.TablePolicy(), kv_creator=hkv()),
            ValueError,
            "`kv_creator` and `policy` both",
        ),
        (
            lambda: variable(None, 3, kv_creator=hkv(max_capacity=2)),
            ValueError,
            "^`max_capacity` of the config of `kv_creator` must be at least one for each of 3 "
            "shards. Received: max_capacity=2$",
        ),
        (
            lambda: de.keras.layers.Embedding(
                2, kv_creator=hkv(max_capacity=2), devices=["/CPU:0"] * 3
            ),
            ValueError,
            "^`max_capacity` of the config of `kv_creator` .*3 shards",
        ),
        (lambda: HkvHashTableCreator(3), TypeError, "`config` of .* must be a tf_embed.tfra.*Hkv"),
        (
            lambda: HkvHashTableCreator(de.CuckooHashTableConfig()),
            TypeError,
            "must be a tf_embed.tfra.HkvHashTableConfig",
        ),
        (lambda: HkvHashTableCreator(saver="/tmp"), TypeError, "`saver` must be"),
        (lambda: hkv(init_capacity=0), ValueError, "`init_capacity` must be at least 1"),
        (lambda: hkv(max_capacity=2.0), TypeError, "`max_capacity` must be an int"),
        (
            lambda: hkv(init_capacity=9, max_capacity=8),
            ValueError,
            "`max_capacity` must be at least 9",
        ),
        (lambda: hkv(evict_strategy=5), ValueError, "`evict_strategy` must be at most 4"),
        (lambda: hkv(evict_strategy="LRU"), TypeError, "`evict_strategy` must be"),
        (lambda: hkv(evict_strategy=4), ValueError, "`gen_scores_fn` must give the scores"),
        (lambda: hkv(gen_scores_fn=1), TypeError, "`gen_scores_fn` must be callable"),
        (lambda: hkv(step_per_epoch=-1), ValueError, "`step_per_epoch` must be at least 0"),
        (lambda: hkv(max_hbm_for_values=-1), ValueError, "`max_hbm_for_values`"),
        (lambda: hkv(reserved_key_start_bit=63), ValueError, "`reserved_key_start_bit`"),
        (
            lambda: de.FileSystemSaver(proc_size=2),
            ValueError,
            "`proc_size` and `proc_rank` go together",
        ),
        (lambda: de.FileSystemSaver(2, 2), ValueError, "`proc_rank` must be at most 1"),
        (lambda: de.FileSystemSaver(save_path=3), TypeError, "`save_path` must be a str"),
        (lambda: de.FileSystemSaver(buffer_size=0), ValueError, "`buffer_size`"),
    )
    def test_a_bad_value_gets_one_clear_error(self, make, error, message):
        with self.assertRaisesRegex(error, message):
            make()

    @parameterized.parameters(
        hkv(init_capacity=8, max_capacity=9, max_hbm_for_values=0, reserved_key_start_bit=2),
        HkvHashTableCreator(),
        de.CuckooHashTableCreator(de.CuckooHashTableConfig(), de.FileSystemSaver(4, 3)),
        de.RedisTableCreator(de.RedisTableConfig("/a.json"), de.FileSystemSaver(save_path="/tmp")),
    )
    def test_the_config_makes_the_same_creator(self, creator):
        saved = keras.saving.serialize_keras_object(creator)
        self.assertEqual(keras.saving.deserialize_keras_object(saved), creator)


if __name__ == "__main__":
    tf.test.main()
