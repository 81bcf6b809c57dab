# SPDX-License-Identifier: Apache-2.0
"""Names of TensorFlow Recommenders Addons' `dynamic_embedding.keras`, for Keras 3.

    layers      Embedding (BasicEmbedding), SquashedEmbedding, FieldWiseEmbedding,
                LayerNormalization
    callbacks   ModelCheckpoint
    models      save_model, load_model

New code should use `tf_embed.layers.DynamicEmbedding`, which does the same and also takes weights
of ids.
"""

from tf_embed.tfra.keras import callbacks, layers, models

__all__ = ["callbacks", "layers", "models"]
