# SPDX-License-Identifier: Apache-2.0
"""Names of TensorFlow Recommenders Addons' `dynamic_embedding.keras`, for Keras 3.

    layers      Embedding (BasicEmbedding), SquashedEmbedding, FieldWiseEmbedding,
                LayerNormalization
    callbacks   ModelCheckpoint
    models      save_model, load_model

New code has all that these layers do, and weights of ids beside it, in
`tf_embed.layers.DynamicEmbedding`.
"""

from tf_embed.tfra.keras import callbacks, layers, models

__all__ = ["callbacks", "layers", "models"]
