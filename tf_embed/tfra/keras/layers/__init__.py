# SPDX-License-Identifier: Apache-2.0
"""Embedding layers by the names and arguments of TensorFlow Recommenders Addons."""

from tf_embed.tfra.keras.layers.all_to_all_embedding import (
    AllToAllEmbedding,
    HvdAllToAllEmbedding,
)
from tf_embed.tfra.keras.layers.embedding import BasicEmbedding, Embedding
from tf_embed.tfra.keras.layers.field_wise_embedding import FieldWiseEmbedding
from tf_embed.tfra.keras.layers.layer_normalization import LayerNormalization
from tf_embed.tfra.keras.layers.squashed_embedding import SquashedEmbedding

__all__ = [
    "AllToAllEmbedding",
    "BasicEmbedding",
    "Embedding",
    "FieldWiseEmbedding",
    "HvdAllToAllEmbedding",
    "LayerNormalization",
    "SquashedEmbedding",
]
