# SPDX-License-Identifier: Apache-2.0
"""`RedisServer` and TFRA's config of it: bounds, defaults and fields. No server is needed."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

import tf_embed
from tf_embed import tfra
from tf_embed.tfra import redis_config

SECRET = {"TF_EMBED_TEST_SECRET": "sesame"}


def settings(**arguments: object) -> dict[str, object]:
    """The settings of the table `items` for the op that creates it, without `redis_`."""
    given = tf_embed.RedisServer(**arguments).settings("items")
    return {name.removeprefix("redis_"): value for name, value in given.items()}


class RedisServerTest(parameterized.TestCase):
    def test_the_settings_of_a_server_by_default(self):
        wanted = {
            "host": "127.0.0.1",
            "port": 6379,
            "username": None,
            "password": None,
            "database": 0,
            "cluster": False,
            "connect_timeout_ms": 1000,
            "timeout_ms": 1000,
            "max_connections": 20,
            "prefix": "default:items",
            "slices": 1,
            "keys_per_command": 1024,
        }
        self.assertEqual(settings(), wanted)
        named = settings(table="clicks", model="shop", cluster=True, timeout_seconds=0.0015)
        changed = {"prefix": "shop:clicks", "cluster": True, "timeout_ms": 2}
        self.assertEqual(named, wanted | changed)

    @parameterized.parameters(
        ("port", 1, 65535),
        ("database", 0, 2**31 - 1),
        ("max_connections", 1, 4096),
        ("slices", 1, 4096),
        ("keys_per_command", 1, 65536),
    )
    def test_a_number_may_be_its_bounds_and_nothing_beyond(self, name, least, most):
        for value in (least, most):
            self.assertEqual(settings(**{name: value})[name], value)
        with self.assertRaisesRegex(ValueError, f"`{name}` must be at least {least}"):
            tf_embed.RedisServer(**{name: least - 1})
        with self.assertRaisesRegex(ValueError, f"`{name}` must be at most {most}"):
            tf_embed.RedisServer(**{name: most + 1})

    @parameterized.parameters("timeout_seconds", "connect_timeout_seconds")
    def test_a_time_is_a_millisecond_at_least(self, name):
        option = name.replace("_seconds", "_ms")
        self.assertEqual(settings(**{name: 0.001})[option], 1)
        self.assertEqual(settings(**{name: 2e6})[option], 2_000_000_000)
        with self.assertRaisesRegex(ValueError, f"`{name}` must be at least 0.001"):
            tf_embed.RedisServer(**{name: 0.0009})
        with self.assertRaisesRegex(ValueError, f"`{name}` must be above 0 and at most 2e"):
            tf_embed.RedisServer(**{name: 2e6 + 1})

    def test_names_have_255_characters_at_most(self):
        for name in ("host", "model", "table", "username"):
            self.assertLen(getattr(tf_embed.RedisServer(**{name: "a" * 255}), name), 255)
            for bad in ("a" * 256, "a b", "a{", "a\x00", ""):
                with self.assertRaisesRegex(ValueError, f"`{name}` must be a name without"):
                    tf_embed.RedisServer(**{name: bad})

    def test_a_password_is_given_or_in_the_environment(self):
        with mock.patch.dict(os.environ, SECRET):
            from_there = settings(password_env="TF_EMBED_TEST_SECRET")
        self.assertEqual(from_there["password"], "sesame")
        self.assertEqual(settings(password="open {it}")["password"], "open {it}")
        for bad in ("", "a\nb"):
            with (
                mock.patch.dict(os.environ, {"TF_EMBED_TEST_SECRET": bad}),
                self.assertRaisesRegex(ValueError, "that has the password of the Redis server"),
            ):
                settings(password_env="TF_EMBED_TEST_SECRET")
        server = tf_embed.RedisServer(password="sesame", username="ann")
        self.assertNotIn("sesame", f"{server!r} {server.get_config()}")
        self.assertEqual(tf_embed.RedisServer.from_config(server.get_config()).username, "ann")


class FieldsTest(parameterized.TestCase):
    def test_no_file_and_no_fields_are_the_server_of_this_machine(self):
        self.assertEqual(tfra.RedisTableConfig().server(), tf_embed.RedisServer())
        self.assertEqual(tfra.RedisTableConfig("").server(), tf_embed.RedisServer())
        self.assertEqual(redis_config.server_of({}), tf_embed.RedisServer())

    def test_each_field_is_an_argument(self):
        fields = {
            "redis_connection_mode": 2,
            "redis_host_ip": ["10.0.0.7"],
            "redis_host_port": [7000],
            "redis_user": "ann",
            "redis_password": "sesame",
            "redis_db": 3,
            "redis_connect_timeout": 1500,
            "redis_socket_timeout": 250,
            "redis_conn_pool_size": 5,
            "storage_slice": 4,
            "storage_slice_import": 4,
            "keys_sending_size": 77,
            "model_tag_runtime": "shop",
            "model_tag_import": "shop",
            "redis_read_access_slave": False,
            "using_md5_prefix_name": False,
            "redis_hash_tags_hypodispersion": False,
            "redis_hash_tags_import": [],
            "redis_hash_tags_runtime": [],
        } | dict.fromkeys(redis_config._WITHOUT_EFFECT, 9)
        wanted = tf_embed.RedisServer(
            host="10.0.0.7",
            port=7000,
            username="ann",
            password="sesame",
            database=3,
            connect_timeout_seconds=1.5,
            timeout_seconds=0.25,
            max_connections=5,
            slices=4,
            keys_per_command=77,
            model="shop",
        )
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "redis.json")
        with open(path, "w") as file:
            json.dump(fields, file)
        self.assertEqual(tfra.RedisTableConfig(path).server(), wanted)
        by_environment = tfra.RedisTableConfig("/none", "TF_EMBED_TEST_CONFIG")
        with mock.patch.dict(os.environ, {"TF_EMBED_TEST_CONFIG": path}):
            self.assertEqual(by_environment.server(), wanted)

    def test_modes(self):
        cluster = redis_config.server_of({"redis_connection_mode": 0})
        self.assertEqual(cluster, tf_embed.RedisServer(cluster=True))
        for mode in (1, 3, -1, True, "2"):
            with self.assertRaisesRegex(ValueError, "2 for one server, or 0 for a cluster"):
                redis_config.server_of({"redis_connection_mode": mode})

    @parameterized.parameters({"redis_user": "default"}, {"redis_user": ""}, {"redis_password": ""})
    def test_a_value_that_is_the_default_of_tfra(self, **fields):
        self.assertEqual(redis_config.server_of(fields), tf_embed.RedisServer())

    @parameterized.parameters([[]], [["10.0.0.7", "10.0.0.8"]])
    def test_one_server_must_be_named(self, hosts):
        with self.assertRaisesRegex(ValueError, "`redis_host_ip` .* must be one value"):
            redis_config.server_of({"redis_host_ip": hosts})

    def test_a_time_in_milliseconds_must_be_above_0(self):
        with self.assertRaisesRegex(ValueError, "`redis_socket_timeout` must be at least 1"):
            redis_config.server_of({"redis_socket_timeout": 0})
        with self.assertRaisesRegex(ValueError, "must be at most 2147483647"):
            redis_config.server_of({"redis_socket_timeout": 2**31})

    def test_rows_of_another_model_or_of_other_slices_are_not_copied(self):
        for fields in ({"model_tag_import": "a"}, {"storage_slice_import": 3}):
            redis_config.server_of(fields)  # the other field is absent
        with self.assertRaisesRegex(ValueError, "rows of another model come from a checkpoint"):
            redis_config.server_of({"model_tag_import": "a", "model_tag_runtime": "b"})
        with self.assertRaisesRegex(ValueError, "rows in other slices come from a checkpoint"):
            redis_config.server_of({"storage_slice_import": 3, "storage_slice": 4})

    def test_a_config_does_not_change(self):
        for config in (tfra.RedisTableConfig(), tf_embed.RedisServer()):
            with self.assertRaises(dataclasses.FrozenInstanceError):
                setattr(config, dataclasses.fields(config)[0].name, "x")


if __name__ == "__main__":
    absltest.main()
