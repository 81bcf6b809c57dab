# SPDX-License-Identifier: Apache-2.0
"""Keras layers."""

from tf_embed.layers.dynamic_embedding import DynamicEmbedding

__all__ = ["DynamicEmbedding"]
