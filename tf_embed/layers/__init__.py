"""Keras layers."""

from tf_embed.layers.dynamic_embedding import DynamicEmbedding

__all__ = ["DynamicEmbedding"]
