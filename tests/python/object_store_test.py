"""Rows in an object store: s3:// by tensorflow-io, against a server on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

import tf_embed

# Its libraries load with one TensorFlow only; its Python imports with any.
if tf.__version__.startswith("2.16."):
    pytest.importorskip("tensorflow_io", reason="needs tensorflow-io: pip install 'tf_embed[io]'")
else:
    pytest.skip("needs TensorFlow 2.16, as tensorflow-io does", allow_module_level=True)
pytest.importorskip("moto", reason="needs a server of S3's interface: pip install 'moto[server]'")

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "S3_USE_HTTPS": "0",
    "S3_VERIFY_SSL": "0",
}
MOST_SECONDS = 60


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def bucket():
    """A bucket on a server that lives as long as this file's tests."""
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", address.split(":")[1]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    before = dict(os.environ)
    os.environ.update(CREDENTIALS, S3_ENDPOINT=f"http://{address}")
    try:
        request = urllib.request.Request(f"http://{address}/rows", method="PUT")
        for _ in range(10 * MOST_SECONDS):
            try:
                urllib.request.urlopen(request).close()
                break
            except OSError:
                time.sleep(0.1)
        yield "s3://rows"
    finally:
        server.terminate()
        server.wait()
        os.environ.clear()
        os.environ.update(before)


def rows_of(v: tf_embed.Variable) -> dict[int, list[float]]:
    keys, rows = v.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))


@pytest.mark.io
@pytest.mark.smoke
def test_a_save_in_an_object_store_is_replaced_and_loaded(bucket):
    folder = f"{bucket}/some/where"
    v = tf_embed.Variable(dim=4, name="v", devices=["/CPU:0"] * 2)
    for number in range(2):
        v.upsert(range(3000), np.full([3000, 4], float(number)))
        v.save_to_file_system(folder, buffer_size=10_000)
    w = tf_embed.Variable(dim=4, name="v", devices=["/CPU:0"] * 3)
    w.load_from_file_system(folder)
    assert rows_of(w) == rows_of(v)
    assert len(tf.io.gfile.listdir(folder)) == 3


@pytest.mark.io
@pytest.mark.smoke
def test_damage_in_an_object_store_is_found(bucket):
    folder = f"{bucket}/damaged"
    v = tf_embed.Variable(dim=4, name="v")
    v.upsert([1], [[1.0] * 4])
    v.save_to_file_system(folder)
    (name,) = (one for one in tf.io.gfile.listdir(folder) if one.endswith(".rows"))
    with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
        good = file.read()
    with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
        file.write(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    with pytest.raises(tf.errors.DataLossError, match="is damaged"):
        v.load_from_file_system(folder)
