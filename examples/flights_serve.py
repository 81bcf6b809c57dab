# SPDX-License-Identifier: Apache-2.0
"""A minimal server: it answers a batch with an exported model.

    python flights_serve.py EXPORT_DIR BATCH.npz ANSWERS.npy

It shares no code with the training program. Loading the model takes TensorFlow, and
`import tf_embed` for the ops of the tables.
"""

import sys

import numpy as np
import tensorflow as tf

import tf_embed  # noqa: F401  registers the ops


def main(export_dir: str, batch_path: str, answers_path: str) -> None:
    model = tf.saved_model.load(export_dir)
    with np.load(batch_path) as batch:
        ids = {name: tf.constant(batch[name]) for name in batch.files}
    np.save(answers_path, model.serve(ids).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
