# SPDX-License-Identifier: Apache-2.0
"""A server without tf_embed: it answers a batch with a model that `export_static` wrote.

    python flights_serve_stock.py EXPORT_DIR BATCH.npz ANSWERS.npy

It makes the import of tf_embed fail, so that only TensorFlow computes the answers.
"""

import sys

import numpy as np
import tensorflow as tf

sys.modules["tf_embed"] = None  # the import of it fails


def main(export_dir: str, batch_path: str, answers_path: str) -> None:
    try:
        import tf_embed  # noqa: F401
    except ImportError:
        pass
    else:
        raise SystemExit("tf_embed was imported, which this program must do without.")
    model = tf.saved_model.load(export_dir)
    with np.load(batch_path) as batch:
        ids = {name: tf.constant(batch[name]) for name in batch.files}
    np.save(answers_path, model.serve(ids).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
