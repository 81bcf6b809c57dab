# SPDX-License-Identifier: Apache-2.0
"""An object store in memory, with the calls that tensorflow-io's s3:// file system makes.

These are HEAD, GET with a range, PUT, copies, DELETE, and lists in one part. Other calls get 501.
Signatures are not checked.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "2026-01-01T00:00:00.000Z"


def listed(names: list[str], delimiter: str, prefix: str) -> str:
    """The answer to a list request: objects with the prefix, and folders below it."""
    contents, folders = "", set()
    for name in sorted(name for name in names if name.startswith(prefix)):
        folder, found, _ = name[len(prefix) :].partition(delimiter or "\0")
        if found:
            folders.add(f"<Prefix>{escape(prefix + folder + delimiter)}</Prefix>")
        else:
            modified = f"<LastModified>{MODIFIED}</LastModified>"
            contents += f"<Contents><Key>{escape(name)}</Key>{modified}</Contents>"
    common = "".join(f"<CommonPrefixes>{one}</CommonPrefixes>" for one in sorted(folders))
    return f"<ListBucketResult>{contents}{common}</ListBucketResult>"


class Handler(BaseHTTPRequestHandler):
    """Handles requests for /bucket and /bucket/name. Buckets need not be created."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), dict(parse_qsl(url.query))
        if "list-type" in query:
            bucket = f"{path}/"
            names = [one.removeprefix(bucket) for one in self.objects if one.startswith(bucket)]
            text = listed(names, query.get("delimiter", ""), query.get("prefix", ""))
            return self._answer(200, text.encode())
        body = self.objects.get(path)
        if url.query or body is None:
            return self._answer(501 if url.query else 404)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, body)
        first, last = int(asked[1]), min(int(asked[2]), len(body) - 1)
        if first > last:
            return self._answer(416)
        place = f"bytes {first}-{last}/{len(body)}"
        return self._answer(206, body[first : last + 1], Content_Range=place)

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url, source = urlsplit(self.path), self.headers.get("x-amz-copy-source")
        if url.query or (source and f"/{unquote(source)}" not in self.objects):
            return self._answer(501 if url.query else 404)
        self.objects[unquote(url.path)] = self.objects[f"/{unquote(source)}"] if source else body
        return self._answer(200, b"<CopyObjectResult/>" if source else b"")

    def do_DELETE(self) -> None:
        self.objects.pop(unquote(self.path), None)
        self._answer(204)

    def log_message(self, *arguments: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Runs a server in threads of this process, and yields its address."""
    handler = type("Store", (Handler,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
