"""What a table-batched layer's output is, by the shapes of its inputs."""

from __future__ import annotations

import abc
from typing import Any

import keras

from tf_embed.tbe import inputs as batches
from tf_embed.tbe.types import PoolingMode, SparseType


class TableBatchedShapes:
    """The methods; a base of the layer."""

    output_dtype: SparseType
    pooling_mode: PoolingMode

    # What the layer is, for these methods.

    @property
    @abc.abstractmethod
    def _features(self) -> batches.Features:
        """What it is called with."""

    @property
    @abc.abstractmethod
    def _feature_dims(self) -> list[int]:
        """Dim of each feature."""

    def compute_output_spec(
        self,
        indices: Any,
        offsets: Any = None,
        per_sample_weights: Any = None,
        feature_requires_grad: Any = None,
        batch_size_per_feature_per_rank: Any = None,
        total_unique_indices: int | None = None,
        training: bool = False,
    ) -> keras.KerasTensor:
        """The symbolic output."""
        sizes = batch_size_per_feature_per_rank
        if offsets is None:
            self._features.declare(indices)
        shape = self.compute_output_shape(
            batches.shapes_of(indices),
            batches.shapes_of(offsets),
            batch_size_per_feature_per_rank_shape=() if sizes is not None else None,
        )
        assert self.output_dtype.dtype is not None
        return keras.KerasTensor(shape, dtype=self.output_dtype.dtype.name)

    def compute_output_shape(
        self,
        indices_shape: Any,
        offsets_shape: Any = None,
        per_sample_weights_shape: Any = None,
        feature_requires_grad_shape: Any = None,
        batch_size_per_feature_per_rank_shape: Any = None,
    ) -> tuple[int | None, ...]:
        """The shape of the output from those of the arguments of a call."""
        del per_sample_weights_shape, feature_requires_grad_shape
        dims = self._feature_dims
        features = self._features
        if self.pooling_mode == PoolingMode.NONE:
            return (features.num_indices(indices_shape, offsets_shape), dims[0])
        if batch_size_per_feature_per_rank_shape is not None:
            return (None,)
        return (features.batch_size(indices_shape, offsets_shape), sum(dims))
