# SPDX-License-Identifier: Apache-2.0
"""A server that speaks the Redis protocol and answers as a test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


class Raw(bytes):
    """An answer that is sent without encoding."""


Answer = int | bytes | None | list["Answer"] | Exception


def encoded(answer: Answer) -> bytes:
    """An answer in the protocol. An exception becomes an error with its message."""
    if isinstance(answer, Exception):
        return f"-{answer}\r\n".encode()
    if isinstance(answer, Raw):
        return answer
    if answer is None:
        return b"$-1\r\n"
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, bytes):
        return b"$%d\r\n%s\r\n" % (len(answer), answer)
    return b"*%d\r\n" % len(answer) + b"".join(map(encoded, answer))


class FalseRedis:
    """Keeps the metadata of a table, and asks `rows` for all other answers.

    Attributes:
        meta: The table's metadata, or a test's.
        rows: Returns the answer to the words of a command.
    """

    def __init__(self) -> None:
        self.meta = b""
        self.rows: Callable[[list[bytes]], Answer] = lambda words: [None] * (len(words) - 2)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=[client], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as asked:
            while count := asked.readline():
                words = []
                for _ in range(int(count[1:])):
                    size = int(asked.readline()[1:])
                    words.append(asked.read(size + 2)[:-2])
                client.sendall(encoded(self._answer_to(words)))

    def _answer_to(self, words: list[bytes]) -> Answer:
        if words[0] == b"GET":
            return self.meta or None
        if words[0] == b"EVAL" and words[3].endswith(b":meta"):
            self.meta = words[5]
            return 1
        return self.rows(words)
