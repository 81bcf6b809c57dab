# SPDX-License-Identifier: Apache-2.0
"""Training with several workers: `tf.distribute.MultiWorkerMirroredStrategy`.

    run    launches workers on one machine: `python -m tf_embed.distributed.run --workers 2 train.py`
"""
