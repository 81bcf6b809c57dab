# SPDX-License-Identifier: Apache-2.0
"""Saves and loads rows in an object store, by the s3:// file system of tensorflow-io.

    python tests/support/processes/object_store.py s3://bucket

tensorflow-io reads the server and its credentials from the environment. This program ends without
TensorFlow's teardown, because tensorflow-io's file systems abort in it after use, also without
tf_embed: "pure virtual method called".
"""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np
import tensorflow as tf
import tensorflow_io  # noqa: F401  registers s3://

import tf_embed


def rows_of(v: tf_embed.Variable) -> dict[int, list[float]]:
    keys, rows = v.export()
    return dict(zip(keys.numpy().tolist(), rows.numpy().tolist(), strict=True))


def replace_and_load(bucket: str) -> None:
    folder = f"{bucket}/some/where"
    v = tf_embed.Variable(dim=4, name="v", devices=["/CPU:0"] * 2)
    for number in range(2):
        v.upsert(range(3000), np.full([3000, 4], float(number)))
        v.save_rows(folder, buffer_bytes=10_000)
    w = tf_embed.Variable(dim=4, name="v", devices=["/CPU:0"] * 3)
    w.load_rows(folder)
    assert rows_of(w) == rows_of(v)
    assert len(rows_of(w)) == 3000
    names = tf.io.gfile.listdir(folder)
    assert len(names) == 3, names


def find_damage(bucket: str) -> None:
    folder = f"{bucket}/damaged"
    v = tf_embed.Variable(dim=4, name="v")
    v.upsert([1], [[1.0] * 4])
    v.save_rows(folder)
    (name,) = (one for one in tf.io.gfile.listdir(folder) if one.endswith(".rows"))
    with tf.io.gfile.GFile(f"{folder}/{name}", "rb") as file:
        good = file.read()
    with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
        file.write(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    try:
        v.load_rows(folder)
    except tf.errors.DataLossError as error:
        assert "is damaged" in str(error), error
    else:
        raise AssertionError("A damaged file was loaded.")


def main() -> int:
    try:
        replace_and_load(sys.argv[1])
        find_damage(sys.argv[1])
    except Exception:
        traceback.print_exc()
        return 1
    print("loaded == saved, damage found")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
