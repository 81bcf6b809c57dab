"""Optimizers: the wrapper for a model's, and the rules that Keras lacks."""

from tf_embed.optimizers.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_embed.optimizers.row_wise_adagrad import RowWiseAdagrad

__all__ = ["DynamicEmbeddingOptimizer", "RowWiseAdagrad"]
