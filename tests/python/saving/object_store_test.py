# SPDX-License-Identifier: Apache-2.0
"""Rows in an object store, against a server in this process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from support import TESTS
from support.processes.s3_server import s3_server

PROGRAM = TESTS / "support" / "processes" / "object_store.py"
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "S3_USE_HTTPS": "0",
    "S3_VERIFY_SSL": "0",
}

# tensorflow-io's libraries load with only one TensorFlow; its Python imports with any.
if not tf.__version__.startswith("2.16."):
    pytest.skip("needs TensorFlow 2.16, as tensorflow-io does", allow_module_level=True)
if importlib.util.find_spec("tensorflow_io") is None:
    pytest.skip("needs tensorflow-io: pip install 'tf_embed[io]'", allow_module_level=True)


@pytest.mark.io
@pytest.mark.smoke
def test_rows_in_an_object_store():
    with s3_server() as address:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "s3://rows"],
            env={**os.environ, **SETTINGS, "S3_ENDPOINT": address},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loaded == saved, damage found" in done.stdout
