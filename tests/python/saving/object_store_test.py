# SPDX-License-Identifier: Apache-2.0
"""Rows in an object store, against a server on this machine."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
import tensorflow as tf

from support import TESTS

PROGRAM = TESTS / "support" / "processes" / "object_store.py"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "S3_USE_HTTPS": "0",
    "S3_VERIFY_SSL": "0",
}
MAX_SECONDS = 60

# tensorflow-io's libraries load with one TensorFlow only; its Python imports with any.
if not tf.__version__.startswith("2.16."):
    pytest.skip("needs TensorFlow 2.16, as tensorflow-io does", allow_module_level=True)
if importlib.util.find_spec("tensorflow_io") is None:
    pytest.skip("needs tensorflow-io: pip install 'tf_embed[io]'", allow_module_level=True)
if importlib.util.find_spec("moto") is None:
    pytest.skip("needs a server like S3: pip install 'moto[server]'", allow_module_level=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server with the bucket `rows`."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/rows", method="PUT")
        for _ in range(10 * MAX_SECONDS):
            try:
                urllib.request.urlopen(request).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.io
@pytest.mark.smoke
def test_rows_in_an_object_store(server: str):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "s3://rows"],
        env={**os.environ, **CREDENTIALS, "S3_ENDPOINT": server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loaded == saved, damage found" in done.stdout
