# SPDX-License-Identifier: Apache-2.0
"""What a summary says about itself to TensorBoard.

`tf.summary.scalar` and `tf.summary.histogram` need the package tensorboard, which may be missing.
`tf.summary.write` with this metadata does not.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def _metadata(plugin: str, data_class: int) -> Any:
    """The metadata for a plugin of TensorBoard, with a number of tensorflow.DataClass."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    metadata.data_class = data_class
    return metadata


SCALAR = _metadata("scalars", 1)
HISTOGRAM = _metadata("histograms", 2)
