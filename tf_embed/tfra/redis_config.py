# SPDX-License-Identifier: Apache-2.0
"""`RedisTableConfig`: TFRA's JSON file for tables in Redis, field by field."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import keras

from tf_embed import validation
from tf_embed.configs import KerasConfig
from tf_embed.table.redis_server import RedisServer

_STANDALONE, _CLUSTER = 2, 0


@keras.saving.register_keras_serializable(package="tf_embed.tfra")
@dataclasses.dataclass(frozen=True)
class RedisTableConfig(KerasConfig):
    """The location of a table in Redis, in TFRA's form: the path of a JSON file.

    The file is read when a table is made. `docs/migrating/from_tfra.md` lists the effect of each
    field here. The rows are not compatible with TFRA's: their keys in Redis differ.

    Args:
        redis_config_abs_dir: Path of the file. Default: none, a server on this machine at port
            6379.
        redis_config_abs_dir_env: Name of an environment variable that has the path, which takes
            precedence.

    Raises:
        TypeError: If an argument is not a str.

    Example:
        >>> import json, tempfile
        >>> import tf_embed
        >>> path = tempfile.mktemp(suffix=".json")
        >>> with open(path, "w") as file:
        ...     json.dump({"redis_host_ip": ["10.0.0.7"], "model_tag_runtime": "shop"}, file)
        >>> tf_embed.tfra.RedisTableConfig(path).server().host
        '10.0.0.7'
    """

    redis_config_abs_dir: str | None = None
    redis_config_abs_dir_env: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, (str, type(None))):
                raise TypeError(
                    f"`{field.name}` must be a str. Received: "
                    f"{field.name}={validation.shown(value)}"
                )

    def server(self) -> RedisServer:
        """The config as a `RedisServer`.

        Raises:
            ValueError: If the file can't be read, a field is unknown, or its value is not
                supported. The message names it.
        """
        path = self._path()
        if path is None:
            return RedisServer()
        try:
            with open(path, encoding="utf-8") as file:
                fields = json.load(file)
            if not isinstance(fields, dict):
                raise ValueError("it has no object")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"`redis_config_abs_dir` must be the path of a JSON file: {error}. Received: "
                f"redis_config_abs_dir={validation.shown(path)}"
            ) from error
        return server_of(fields)

    def _path(self) -> str | None:
        if not self.redis_config_abs_dir_env:
            return self.redis_config_abs_dir or None
        name = self.redis_config_abs_dir_env
        path = os.environ.get(name) if name.isprintable() else None
        if not path:
            raise ValueError(
                "`redis_config_abs_dir_env` must name an environment variable that has the path "
                "of a JSON file. Received: redis_config_abs_dir_env="
                f"{validation.shown(self.redis_config_abs_dir_env)}"
            )
        return path


def server_of(fields: dict[str, Any]) -> RedisServer:
    """The server that the fields of a TFRA file name.

    Args:
        fields: Values by the names of TFRA.

    Raises:
        TypeError: If a value is of a wrong type.
        ValueError: If a field is unknown or its value is not supported. The message names it.
    """
    for name in fields:
        if name not in _TAKEN and name not in _WITHOUT_EFFECT and name not in _REFUSED:
            known = ", ".join(sorted((*_TAKEN, *_WITHOUT_EFFECT, *_REFUSED)))
            raise ValueError(
                f"The config of a table in Redis must have these fields: {known}. Received: {name}"
            )
    for name, (wanted, good) in _REFUSED.items():
        if name in fields and not good(fields[name], fields):
            raise ValueError(
                f"`{name}` in the config of a table in Redis must be {wanted}. Received: "
                f"{name}={validation.shown(fields[name])}"
            )
    arguments: dict[str, Any] = {"cluster": fields.get("redis_connection_mode") == _CLUSTER}
    for name, (argument, convert) in _TAKEN.items():
        if name in fields:
            value = convert(fields[name], name)
            if value is not None:
                arguments[argument] = value
    return RedisServer(**arguments)


def _same(value: Any, name: str) -> Any:
    del name
    return value


def _text(value: Any, name: str) -> Any:
    """Returns a str unchanged, and None for an empty str, which is TFRA's default."""
    del name
    return None if value == "" else value


def _only(value: Any, name: str) -> Any:
    """Returns a value, or the only value of a list."""
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise ValueError(
            f"`{name}` in the config of a table in Redis must be one value: of a cluster, one "
            f"server knows the others. Received: {name}={validation.shown(value)}"
        )
    return value[0]


def _seconds(value: Any, name: str) -> float:
    milliseconds = validation.int_in(value, name, most=2**31 - 1)
    return milliseconds / 1000


def _one_of(*values: Any) -> Callable[[Any, dict[str, Any]], bool]:
    # The type counts too, because in Python true equals 1.
    return lambda value, fields: any(type(value) is type(one) and value == one for one in values)


# By TFRA's field, the argument of RedisServer, and the function that makes its value.
_TAKEN: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "redis_host_ip": ("host", _only),
    "redis_host_port": ("port", _only),
    "redis_user": ("username", lambda value, name: None if value == "default" else value or None),
    "redis_password": ("password", _text),
    "redis_db": ("database", _same),
    "redis_connect_timeout": ("connect_timeout_seconds", _seconds),
    "redis_socket_timeout": ("timeout_seconds", _seconds),
    "redis_conn_pool_size": ("max_connections", _same),
    "storage_slice": ("slices", _same),
    "keys_sending_size": ("keys_per_command", _same),
    "model_tag_runtime": ("model", _same),
}

# Fields that have no effect on a table here.
_WITHOUT_EFFECT = (
    "redis_master_name",  # these five are only read in sentinel mode
    "redis_sentinel_user",
    "redis_sentinel_password",
    "redis_sentinel_connect_timeout",
    "redis_sentinel_socket_timeout",
    "redis_connect_keep_alive",  # connections are always kept alive
    "redis_wait_timeout",  # callers wait for a connection as long as others need it
    "redis_connection_lifetime",  # connections stay until they are lost
    "using_hash_storage_slice",  # slices always go by a hash
    "expire_model_tag_in_seconds",  # for the tables of an earlier tag, which are not copied
    "table_store_mode",  # checkpoints and saved models always have the rows
    "model_lib_abs_dir",
)

# By field, the supported value for the message, and the check of a value.
_REFUSED: dict[str, tuple[str, Callable[[Any, dict[str, Any]], bool]]] = {
    "redis_connection_mode": (
        "2 for one server, or 0 for a cluster; sentinels (1) are not supported",
        _one_of(_STANDALONE, _CLUSTER),
    ),
    "redis_read_access_slave": ("false: replicas are not read", _one_of(False)),
    "using_md5_prefix_name": ("false: keys have the names that they are given", _one_of(False)),
    "redis_hash_tags_hypodispersion": (
        "false: slices are spread over a cluster by its own rule",
        _one_of(False),
    ),
    "redis_hash_tags_import": ("empty: slices have hash tags of their own", _one_of([])),
    "redis_hash_tags_runtime": ("empty: slices have hash tags of their own", _one_of([])),
    "model_tag_import": (
        "the same as `model_tag_runtime`: rows of another model come from a checkpoint",
        lambda value, fields: value == fields.get("model_tag_runtime", value),
    ),
    "storage_slice_import": (
        "the same as `storage_slice`: rows in other slices come from a checkpoint",
        lambda value, fields: value == fields.get("storage_slice", value),
    ),
}
