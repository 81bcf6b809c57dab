# SPDX-License-Identifier: Apache-2.0
"""The options of initializers, tables and stores."""

from __future__ import annotations

import inspect
import json

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_embed
from support.cases.one_embedding_cases import layer, store
from tf_embed import one_embedding
from tf_embed.one_embedding.store_options import StoreOptions

NAN = float("nan")


class InitializersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (one_embedding.make_uniform_initializer, {"type": "uniform", "low": 0.0, "high": 1.0}),
        (one_embedding.make_normal_initializer, {"type": "normal", "mean": 0.0, "std": 1.0}),
        (
            one_embedding.make_trunc_normal_initializer,
            {"type": "truncated_normal", "mean": 0.0, "std": 1.0, "a": -2.0, "b": 2.0},
        ),
    )
    def test_defaults_are_the_documented_ones(self, make, wanted):
        self.assertEqual(make(), wanted)

    @parameterized.parameters(
        (
            "make_uniform_initializer",
            {"low": 1.0, "high": 0.0},
            ValueError,
            "`high` must be at least `low`. .*high=0.0",
        ),
        ("make_uniform_initializer", {"low": "1"}, TypeError, "`low`.*'1'"),
        ("make_uniform_initializer", {"high": NAN}, ValueError, "`high`.*nan"),
        (
            "make_normal_initializer",
            {"std": -1.0},
            ValueError,
            "`std` must be at least 0. Received: std=-1.0",
        ),
        ("make_normal_initializer", {"mean": None}, TypeError, "`mean`.*None"),
        ("make_constant_initializer", {"value": 1e300}, ValueError, "`value`.*1e"),
        ("make_constant_initializer", {"value": [1.0]}, TypeError, "`value`"),
        (
            "make_trunc_normal_initializer",
            {"std": 0.0},
            ValueError,
            "`std` must be above 0. Received: std=0.0",
        ),
        ("make_trunc_normal_initializer", {"a": 2.0}, ValueError, "`b` must be above `a`"),
        (
            "make_trunc_normal_initializer",
            {"a": 40.0, "b": 41.0},
            ValueError,
            "37 standard deviations of the mean",
        ),
        ("make_trunc_normal_initializer", {"a": -41.0, "b": -40.0}, ValueError, "within 37"),
    )
    def test_bad_numbers_are_named(self, make, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            getattr(one_embedding, make)(**arguments)

    @parameterized.parameters(
        (0.0, 1.0, -2.0, 2.0),
        (1.0, 0.5, 0.9, 1.7),
        (0.0, 1.0, 9.0, 10.0),
        (0.0, 1.0, -9.0, -8.0),
        (0.0, 0.1, -3.0, 0.0),
    )
    def test_a_truncated_normal_is_cut_at_weights_and_not_at_deviations(self, mean, std, a, b):
        initializer = one_embedding.make_trunc_normal_initializer(mean, std, a, b)
        emb = layer([one_embedding.make_table(initializer)], dim=8)
        rows = emb(np.arange(4000)).numpy().astype(np.float64)
        self.assertTrue((rows >= a).all() and (rows <= b).all(), (rows.min(), rows.max()))
        # The quantiles of the same distribution, from a grid of its density.
        grid = np.linspace(max(a, mean - 12 * std), min(b, mean + 12 * std), 200_001)
        density = np.exp(
            -0.5 * ((grid - mean) / std) ** 2 + 0.5 * (np.abs(grid - mean).min() / std) ** 2
        )
        share = np.cumsum(density) / density.sum()
        wanted = np.interp([0.1, 0.5, 0.9], share, grid)
        found = np.quantile(rows, [0.1, 0.5, 0.9])
        spread = np.interp(0.9, share, grid) - np.interp(0.1, share, grid)
        # For 32,000 weights, four standard errors of a quantile are 1% of the spread.
        self.assertAllClose(found, wanted, atol=0.02 * spread, rtol=0)

    def test_a_cut_is_within_the_ends_in_narrow_rows(self):
        for dtype in ("float16", "bfloat16"):
            wide = one_embedding.make_trunc_normal_initializer(0.0, 5.0, 0.1001, 0.3003)
            emb = layer([one_embedding.make_table(wide)], dim=8, dtype=dtype)
            rows = tf.cast(emb(np.arange(500)), tf.float64).numpy()
            self.assertGreaterEqual(rows.min(), 0.1001)
            self.assertLessEqual(rows.max(), 0.3003)


class TablesTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_dict_is_a_row_and_a_list_has_columns(self):
        one = one_embedding.make_constant_initializer(1.0)
        column = one_embedding.make_column_options(one)
        self.assertEqual(one_embedding.make_table_options(one), {"initializer": one})
        self.assertEqual(one_embedding.make_table([column] * 2), {"columns": [column] * 2})
        self.assertIs(one_embedding.make_table, one_embedding.make_table_options)

    @parameterized.parameters(
        (None, "the initializer of the rows, or a list of what make_column_options gives"),
        (5, "`param` must be a dict"),
        ("uniform", "`param` must be a dict"),
        ((), "`param` must be a dict"),
        ([], "`param` must be a dict"),
        ([{"type": "constant"}], r"`param\[0\]` must be what make_column_options gives"),
        ({}, "`param` must be what make_uniform_initializer, make_normal_initializer"),
    )
    def test_anything_else_is_refused(self, param, message):
        with self.assertRaisesRegex(ValueError, message):
            one_embedding.make_table_options(param)

    @parameterized.parameters(
        ("tables", 5, TypeError, "must be a list or a tuple. Received.*=5 of type int"),
        ("tables", [], ValueError, "must have at least one table"),
        ("tables", [5], ValueError, "must be what make_table_options gives"),
        ("tables", [{"initializer": {"type": "xavier"}}], ValueError),
        (
            "tables",
            [{"initializer": {"type": "constant"}}],
            TypeError,
            "have the arguments of a constant initializer",
        ),
        ("tables", [{"columns": []}], ValueError, "must have options for each of 1 columns"),
        (
            "default_initializer",
            {"type": "normal", "std": -1},
            ValueError,
            "must be an initializer in range",
        ),
        ("default_initializer", {"type": "normal", "sigma": 1}, TypeError),
        ("embedding_dim", 0, ValueError),
        ("embedding_dim", "2", TypeError),
        ("dtype", "float64", TypeError),
        ("dtype", "int32", TypeError),
        ("dtype", "flot32", ValueError),
        ("dtype", 5, TypeError),
        ("key_type", "string", TypeError),
        ("key_type", "int8", TypeError),
        ("store_options", None, ValueError, "must be what make_device_mem_store_options, make"),
        (
            "store_options",
            {"type": "device_mem", "capacity": 5},
            TypeError,
            "the arguments of its maker",
        ),
        ("store_options", {"type": []}, ValueError),
        ("padding_idx", 2**63, ValueError),
        ("padding_idx", 0.0, TypeError),
        ("seed", 2**63, ValueError),
        ("seed", None, TypeError),
        ("shared_ids", "False", TypeError),
        ("policy", 5, TypeError),
        ("optimizer", "adammm", ValueError),
        ("devices", [], ValueError),
        ("name", "", TypeError),
        ("name", "a/b", ValueError),
        ("name", ".", ValueError),
        ("name", "..", ValueError),
    )
    def test_a_bad_argument_of_a_layer_is_named(self, argument, value, error, message=""):
        good = {
            "name": "emb",
            "embedding_dim": 2,
            "dtype": "float32",
            "key_type": "int64",
            "tables": None,
            "store_options": store(),
        }
        with self.assertRaisesRegex(error, f"{argument}.*{message}" if message else argument):
            one_embedding.MultiTableEmbedding(**{**good, argument: value})

    @parameterized.parameters(
        ([], "must have at least one column"),
        ([2, 0], "embedding_dim"),
        ([2.0], "embedding_dim"),
        ("22", "embedding_dim"),
    )
    def test_bad_columns_are_refused(self, dims, message):
        with self.assertRaisesRegex((TypeError, ValueError), message):
            one_embedding.MultiTableMultiColumnEmbedding(
                "emb", dims, "float32", "int64", None, store()
            )

    def test_a_table_of_other_columns_is_refused(self):
        column = one_embedding.make_column_options(one_embedding.make_normal_initializer())
        with self.assertRaisesRegex(ValueError, r"tables\[0\].*2 columns"):
            layer([one_embedding.make_table([column])], dim=[2, 3])


class StoresTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ("make_device_mem_store_options", "persistent_path capacity", ""),
        ("make_cached_host_mem_store_options", "cache_budget_mb persistent_path capacity", ""),
        (
            "make_cached_ssd_store_options",
            "cache_budget_mb persistent_path capacity",
            "host_cache_budget_mb",
        ),
    )
    def test_arguments_have_their_documented_order(self, maker, first, last):
        found = list(inspect.signature(getattr(one_embedding, maker)).parameters)
        middle = ["size_factor", "storage_dim", "physical_block_size"]
        self.assertEqual(found, [*first.split(), *middle, *last.split()])

    def test_options_are_plain_values_with_the_documented_defaults(self):
        made = one_embedding.make_cached_ssd_store_options(4, "/tmp/rows")
        self.assertEqual(made["physical_block_size"], 4096)
        self.assertEqual(made["storage_dim"], -1)
        self.assertEqual(made["host_cache_budget_mb"], 0)
        self.assertEqual(json.loads(json.dumps(made)), made)

    @parameterized.parameters(
        ({"capacity": 0}, ValueError),
        ({"capacity": None}, TypeError),
        ({"capacity": 1e6}, TypeError),
        ({"persistent_path": ""}, ValueError),
        ({"persistent_path": 5}, TypeError),
        ({"persistent_path": []}, ValueError),
        (
            {"persistent_path": ["/tmp/a", "/tmp/a/"]},
            ValueError,
            "a list of different paths, one for each shard",
        ),
        ({"size_factor": 0}, ValueError),
        ({"size_factor": 1.5}, TypeError),
        ({"storage_dim": 0}, ValueError, "must be -1 or at least 1"),
        ({"storage_dim": -2}, ValueError),
        ({"physical_block_size": 1024}, ValueError, "must be 512 or 4096"),
        ({"cache_budget_mb": 0}, ValueError),
        ({"cache_budget_mb": -1}, ValueError),
        ({"cache_budget_mb": 2**70}, ValueError),
    )
    def test_a_bad_value_is_named(self, wrong, error, message=""):
        good = {"cache_budget_mb": 4, "persistent_path": "/tmp/rows", "capacity": 100}
        (argument,) = wrong
        with self.assertRaisesRegex(error, f"`{argument}.*{message}"):
            one_embedding.make_cached_host_mem_store_options(**{**good, **wrong})

    def test_a_disk_without_a_cache_is_refused(self):
        with self.assertRaisesRegex(ValueError, "or `host_cache_budget_mb` must be above 0"):
            one_embedding.make_cached_ssd_store_options(0, "/tmp/rows")

    @parameterized.parameters("s3://rows", ["/tmp/rows", "gs://rows"])
    def test_a_disk_is_of_this_machine(self, *paths):
        path = paths[0] if len(paths) == 1 else list(paths)
        with self.assertRaisesRegex(
            ValueError, "rows on disk must be of this machine, not a URL.*://"
        ):
            one_embedding.make_cached_ssd_store_options(1, path)
        one_embedding.make_device_mem_store_options(path, 9)

    def test_budgets_and_folder_become_a_storage(self):
        folder = self.get_temp_dir()
        options = one_embedding.make_cached_ssd_store_options(3, folder, host_cache_budget_mb=5)
        emb = layer(store_options=options, devices="/CPU:0")
        (rows,) = emb.row_tables
        wanted = tf_embed.Storage(gpu_bytes=3 * 2**20, host_bytes=5 * 2**20, path=folder)
        self.assertEqual(rows.storage, wanted)

    @parameterized.parameters(
        ("cached_host_mem", {}, {"gpu_bytes": 2 * 2**20, "gpu_cache": True}),
        ("cached_ssd", {}, {"gpu_bytes": 2 * 2**20, "path": "/tmp/rows"}),
        (
            "cached_ssd",
            {"host_cache_budget_mb": 8},
            {"gpu_bytes": 2 * 2**20, "host_bytes": 4 * 2**20, "path": "/tmp/rows"},
        ),
        ("device_mem", {}, None),
    )
    def test_a_budget_is_a_cache_in_the_memory_of_a_gpu(self, kind, options, wanted):
        if kind != "device_mem":
            options = {"cache_budget_mb": 4, **options}
        make = getattr(one_embedding, f"make_{kind}_store_options")
        parsed = StoreOptions.of(make(persistent_path="/tmp/rows", capacity=9, **options))
        found = parsed.storage("/tmp/rows", num_tables=2)
        self.assertEqual(found, wanted and tf_embed.Storage(**wanted))

    def test_a_disk_without_a_budget_of_the_device_is_below_the_host(self):
        options = one_embedding.make_cached_ssd_store_options(
            0, "/tmp/rows", host_cache_budget_mb=4
        )
        parsed = StoreOptions.of(options)
        storage = parsed.storage("/tmp/rows", num_tables=1)
        self.assertEqual(storage, tf_embed.Storage(host_bytes=4 * 2**20, path="/tmp/rows"))
        parsed.check_device("/CPU:0")
        with self.assertRaisesRegex(ValueError, "`cache_budget_mb` must be at least 1.*=0"):
            parsed.check_device("/GPU:0")

    @parameterized.parameters(
        ("sgd", 1, None),
        ("adagrad", 2, None),
        ("adam", 3, None),
        ("ftrl", 3, None),
        ("adamax", 3, None),
        ("rowwise_adagrad", None, 3),
        (one_embedding.Ftrl(), 3, None),
        (one_embedding.SmartDecayAdam(), 4, None),  # 3 numbers for each weight, and 2 for the row
    )
    def test_a_wrong_row_size_is_refused_with_the_right_one(self, optimizer, factor, dim):
        # A row has two weights.
        for wrong in {1, 2, 3, 4} - {factor}:
            right = f"size_factor={factor}" if dim is None else f"storage_dim={dim}"
            with self.assertRaisesRegex(
                ValueError, f"must be left out, or {right}.*Received: size_factor={wrong}"
            ):
                layer(optimizer=optimizer, store_options=store(size_factor=wrong)).build()
        with self.assertRaisesRegex(ValueError, "storage_dim.*Received: storage_dim=77"):
            layer(optimizer=optimizer, store_options=store(storage_dim=77)).build()
        layer(optimizer=optimizer).build()
        if factor is not None:
            layer(optimizer=optimizer, store_options=store(size_factor=factor)).build()
        numbers = dim or 2 * factor
        layer(optimizer=optimizer, store_options=store(storage_dim=numbers)).build()

    def test_the_row_size_of_smart_decay_adam_is_also_right_as_oneflow_rounds_it(self):
        for dim in range(1, 7):
            # OneFlow's formula, in bytes of float32 weights.
            of_oneflow = ((3 * dim * 4 + 7) // 8 * 8 + 8) // 4
            for right in {3 * dim + 2, of_oneflow}:
                options = store(storage_dim=right)
                layer(
                    dim=dim, optimizer=one_embedding.SmartDecayAdam(), store_options=options
                ).build()
            for wrong in (3 * dim + 1, 3 * dim + 4):
                with self.assertRaisesRegex(
                    ValueError,
                    f"must be {3 * dim + 2}, or -1: its optimizer keeps .*`?Received: storage_dim",
                ):
                    layer(
                        dim=dim,
                        optimizer=one_embedding.SmartDecayAdam(),
                        store_options=store(storage_dim=wrong),
                    ).build()

    def test_the_optimizer_of_the_model_is_held_against_the_row_size_too(self):
        emb = layer(store_options=store(size_factor=1))
        emb.build()
        optimizer = tf_embed.DynamicEmbeddingOptimizer("adam")
        with self.assertRaisesRegex(ValueError, "size_factor=3"):
            optimizer.build(emb.trainable_variables)
        tf_embed.DynamicEmbeddingOptimizer("sgd").build(emb.trainable_variables)


if __name__ == "__main__":
    tf.test.main()
