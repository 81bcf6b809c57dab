# SPDX-License-Identifier: Apache-2.0
"""`StockProcess`: a process with TensorFlow in which tf_embed can't be imported."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

_SERVER = """
    import contextlib, importlib.abc, io, pickle, sys

    class Hides(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "tf_embed":
                raise ImportError("tf_embed is hidden here")

    sys.meta_path.insert(0, Hides())
    try:
        import tf_embed
    except ImportError:
        pass
    else:
        raise AssertionError("tf_embed can be imported")
    import numpy as np
    import tensorflow as tf

    def arrays_of(answers):
        flat = tf.nest.flatten(answers, expand_composites=True)
        return [(tf.bitcast(a, tf.uint16) if a.dtype == tf.bfloat16 else a).numpy() for a in flat]

    def call(path, function, inputs):
        loaded = tf.saved_model.load(path)
        return arrays_of(getattr(loaded, function)(*tf.nest.map_structure(tf.constant, inputs)))

    def signature(path, name, inputs):
        loaded = tf.saved_model.load(path)
        tensors = {key: tf.constant(array) for key, array in inputs.items()}
        return {key: one.numpy() for key, one in loaded.signatures[name](**tensors).items()}

    def again(path, function, inputs, other):
        # Loads twice, forgets one, saves the other and loads that.
        gone, loaded = tf.saved_model.load(path), tf.saved_model.load(path)
        del gone
        tf.saved_model.save(loaded, other)
        del loaded
        return call(other, function, inputs)

    def session(path, name, inputs):
        # As programs without Python load it: a session, its saver and its initializer.
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
            of = meta.signature_def[name]
            feeds = {of.inputs[key].name: array for key, array in inputs.items()}
            return session.run({key: one.name for key, one in of.outputs.items()}, feeds)

    def run(code):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        return printed.getvalue()

    stdout, sys.stdout = sys.stdout.buffer, sys.stderr
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer = True, globals()[name](*arguments)
        except Exception as error:
            answer = False, f"{type(error).__name__}: {error}"
        pickle.dump(answer, stdout)
        stdout.flush()
"""


class StockProcess:
    """Loads SavedModels and calls them. The process ends with the with block."""

    def __enter__(self) -> StockProcess:
        environment = {key: one for key, one in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=os.path.dirname(os.path.abspath(__file__)),
        )
        return self

    def __exit__(self, *_: Any) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def call(self, path: str, inputs: Any, function: str = "serve") -> list[np.ndarray]:
        """The flattened answers of a function, bfloat16 as its bits."""
        return self._ask("call", path, function, inputs)

    def call_again(self, path: str, inputs: Any, other: str) -> list[np.ndarray]:
        """The answers of a model that was loaded twice, and saved again to `other`."""
        return self._ask("again", path, "serve", inputs, other)

    def signature(
        self, path: str, inputs: Mapping[str, Any], name: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """The outputs of a signature."""
        return self._ask("signature", path, name, dict(inputs))

    def session(
        self, path: str, inputs: Mapping[str, Any], name: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """The outputs of a signature in a session that loads the model."""
        return self._ask("session", path, name, dict(inputs))

    def run(self, code: str) -> str:
        """Runs a program and returns its output."""
        return self._ask("run", code)

    def _ask(self, name: str, *arguments: Any) -> Any:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        pickle.dump((name, arguments), process.stdin)
        process.stdin.flush()
        good, answer = pickle.load(process.stdout)
        if not good:
            raise AssertionError(answer)
        return answer
