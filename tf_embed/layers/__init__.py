"""Keras layers."""

from tf_embed.layers.dynamic_embedding import DynamicEmbedding
from tf_embed.layers.table_batched import TableBatchedEmbeddingBags

__all__ = ["DynamicEmbedding", "TableBatchedEmbeddingBags"]
