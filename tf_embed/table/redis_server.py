# SPDX-License-Identifier: Apache-2.0
"""`RedisServer`: the address and the connection settings of a table in Redis."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import keras

from tf_embed import validation
from tf_embed.configs import Config, as_bool

_MAX_SLICES = 4096
_MAX_CONNECTIONS = 4096
_MAX_KEYS_PER_COMMAND = 2**16
_MAX_SECONDS = 2_000_000.0  # fits int32 in milliseconds

_MAX_NAME = 255  # characters


def _is_name(text: str) -> bool:
    """Whether a text may be a part of a key in Redis. Braces would mark the cluster's hash tag."""
    return 0 < len(text) <= _MAX_NAME and text.isprintable() and not re.search(r"[\s{}]", text)


@keras.saving.register_keras_serializable(package="tf_embed")
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RedisServer(Config):
    """A Redis server or cluster that holds the rows of a table, for `Storage(redis=...)`.

    The table is shared: each process that makes a variable with the same server, `model` and
    `table` reads and writes the same rows. Lookups see the writes of another process as soon as its
    call has returned. Training steps of several processes on the same rows lose no update: a step
    writes a row only if it is unchanged since the step read it, and retries the rows that changed.

    The server must be Redis 6.2 or newer. `docs/guides/redis.md` lists the limits of such tables.

    Args:
        host: Name or address of the server, or of one server of a cluster.
        port: Its port, an int from 1 to 65535.
        username: A user of Redis's access control lists. Default: the default user.
        password: The password. It is not shown, and no file that Keras writes has it. Default:
            the value of the variable `password_env`.
        password_env: Name of an environment variable that has the password when the table is made.
            Default: none is sent.
        database: The number of the database, an int from 0; 0 in a cluster.
        cluster: Whether the server is one of a Redis Cluster.
        connect_timeout_seconds: How long to wait for a connection, above 0.
        timeout_seconds: How long to wait for the server in each read and each write, above 0. Then
            the call raises tf.errors.AbortedError.
        max_connections: The most connections to each server at once, an int from 1 to 4096.
        model: The prefix of the names of the model's tables. No colon, blank or brace.
        table: Name of the table, without blanks and braces. Default: the variable's.
        slices: The number of parts of the table, an int from 1 to 4096. Each part is on one server
            of a cluster. All processes must use the same number.
        keys_per_command: The most keys in a command, an int from 1 to 65536. The server does
            nothing else during a command.
        restore: Whether a checkpoint or a Keras file replaces the rows in Redis when it is loaded.
            "if_empty": if there are rows, they stay, and that is logged. "always": the saved rows
            replace them, for all processes.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, or both `password` and `password_env` are given.

    Example:
        >>> import tf_embed
        >>> server = tf_embed.RedisServer(host="10.0.0.7", password="secret", model="shop")
        >>> server.password_env is None, "secret" in repr(server)
        (True, False)
        >>> tf_embed.Storage(redis=server).redis.port
        6379
    """

    host: str = "127.0.0.1"
    port: int = 6379
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    password_env: str | None = None
    database: int = 0
    cluster: bool = False
    connect_timeout_seconds: float = 1.0
    timeout_seconds: float = 1.0
    max_connections: int = 20
    model: str = "default"
    table: str | None = None
    slices: int = 1
    keys_per_command: int = 1024
    restore: str = "if_empty"

    def __post_init__(self) -> None:
        leasts_and_mosts = {
            "port": (1, 65535),
            "database": (0, 2**31 - 1),
            "max_connections": (1, _MAX_CONNECTIONS),
            "slices": (1, _MAX_SLICES),
            "keys_per_command": (1, _MAX_KEYS_PER_COMMAND),
        }
        for name, (least, most) in leasts_and_mosts.items():
            number = validation.int_in(getattr(self, name), name, least=least, most=most)
            # NumPy integers become Python integers, which JSON supports.
            object.__setattr__(self, name, int(number))
        for name in ("connect_timeout_seconds", "timeout_seconds"):
            seconds = validation.positive_number(getattr(self, name), name, most=_MAX_SECONDS)
            self._check(name, "at least 0.001", seconds >= 0.001)
            object.__setattr__(self, name, float(seconds))
        self._take(as_bool, "cluster")
        for name in ("host", "model"):
            self._check_name(name)
        for name in ("username", "password", "password_env", "table"):
            if getattr(self, name) is not None:
                self._check_name(name)
        wanted = "a name or an address, not a URL: connections have no TLS"
        self._check("host", wanted, "://" not in self.host)
        self._check("model", "a name without a colon", ":" not in self.model)
        self._check("database", "0 in a cluster", not self.cluster or self.database == 0)
        has_one = self.password is None or self.password_env is None
        self._check("password_env", "None beside a `password`", has_one)
        validation.one_of(self.restore, ("if_empty", "always"), "restore")

    def _check_name(self, name: str) -> None:
        value = getattr(self, name)
        # A password is never shown.
        is_secret = name == "password"
        if not isinstance(value, str):
            kind = type(value).__name__ if is_secret else validation.shown(value)
            raise TypeError(f"`{name}` must be a str. Received: {name}={kind}")
        is_good = len(value) > 0 and value.isprintable() if is_secret else _is_name(value)
        if not is_good:
            wanted = "printable" if is_secret else "a name without blanks and braces"
            received = f"{len(value)} characters" if is_secret else validation.shown(value)
            raise ValueError(f"`{name}` must be {wanted}. Received: {name}={received}")

    def get_config(self) -> dict[str, Any]:
        """The arguments, without the password."""
        config = super().get_config()
        config.pop("password")
        return config

    def settings(self, table: str) -> dict[str, Any]:
        """The settings of the op that creates a table.

        Args:
            table: Name of the variable.

        Returns:
            A value for each setting; None: its default.

        Raises:
            ValueError: If there is no variable of the name `password_env`, or the name of the
                variable is invalid in Redis.
        """
        name = self.table or table
        if not _is_name(name):
            raise ValueError(
                "`table` of a RedisServer must be given for a variable whose name has blanks or "
                f"braces. Received: table=None, name={validation.shown(table)}"
            )
        return {
            "redis_host": self.host,
            "redis_port": self.port,
            "redis_username": self.username,
            "redis_password": self._secret(),
            "redis_database": self.database,
            "redis_cluster": self.cluster,
            "redis_connect_timeout_ms": round(1000 * self.connect_timeout_seconds),
            "redis_timeout_ms": round(1000 * self.timeout_seconds),
            "redis_max_connections": self.max_connections,
            "redis_prefix": f"{self.model}:{name}",
            "redis_slices": self.slices,
            "redis_keys_per_command": self.keys_per_command,
        }

    def _secret(self) -> str | None:
        if self.password is not None:
            return self.password
        if self.password_env is None:
            return None
        password = os.environ.get(self.password_env)
        if not password or not password.isprintable():
            raise ValueError(
                "`password_env` must name an environment variable that has the password of the "
                f"Redis server at {self.host}:{self.port}. Received: password_env="
                f"{validation.shown(self.password_env)}"
            )
        return password
