# SPDX-License-Identifier: Apache-2.0
"""Optimizers: the wrapper of a model's optimizer, and rules that Keras lacks."""

from tf_embed.optimizers.dynamic_embedding_optimizer import DynamicEmbeddingOptimizer
from tf_embed.optimizers.rowwise_adagrad import RowwiseAdagrad
from tf_embed.optimizers.smart_decay_adam import SmartDecayAdam

__all__ = ["DynamicEmbeddingOptimizer", "RowwiseAdagrad", "SmartDecayAdam"]
