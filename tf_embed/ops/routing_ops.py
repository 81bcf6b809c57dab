# SPDX-License-Identifier: Apache-2.0
"""The ops that group keys by the worker that owns them, typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_embed import _library
from tf_embed.ops import pooling_ops
from tf_embed.ops.lookup_gradient import gradient_of_token

_raw = _library.load()

for _name in ("RouteKeys", "RouteGradients", "UnlessFrozen"):
    tf.no_gradient(f"TfEmbed{_name}")


def route_keys(
    keys: Sequence[tf.Tensor],
    owners: Sequence[tf.Tensor],
    *,
    num_workers: int,
    owner_rules: Sequence[str],
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Groups the keys of some tables by the worker that owns them.

    Args:
        keys: For each table, any shape.
        owners: For each table, the worker of each key, flattened, int32; [0]: by the rule.
        owner_rules: For each table, "hash" or "remainder".

    Returns:
        For each table, the distinct keys [u], worker by worker; for each table, the index of each
        key among them, int32, keys.shape; and how many each worker owns, int32 [tables,
        num_workers].
    """
    return _raw.tf_embed_route_keys(
        keys=list(keys),
        owners=list(owners),
        num_workers=num_workers,
        owner_rules=list(owner_rules),
    )


def route_gradients(
    keys: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    owners: Sequence[tf.Tensor],
    *,
    num_workers: int,
    owner_rules: Sequence[str],
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Sums the gradients of equal keys, and groups them by the worker that owns the keys.

    Args:
        keys: For each table, [n].
        gradients: For each table, [n, dim].
        owners, owner_rules: As in `route_keys`.

    Returns:
        For each table, the distinct keys [u], worker by worker; for each table, the sums [u, dim],
        float64 for float64 gradients, otherwise float32; and how many keys each worker owns, int32
        [tables, num_workers].
    """
    return _raw.tf_embed_route_gradients(
        keys=list(keys),
        gradients=list(gradients),
        owners=list(owners),
        sum_dtypes=[pooling_ops.compute_dtype(one.dtype) for one in gradients],
        num_workers=num_workers,
        owner_rules=list(owner_rules),
    )


def unless_frozen(
    keys: tf.Tensor, gradients: tf.Tensor, trained: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of a table unchanged if `trained`, a bool scalar; otherwise without keys.

    Args:
        keys: [n].
        gradients: [n, dim].
        trained: Whether the table is trained.
    """
    return _raw.tf_embed_unless_frozen(keys=keys, gradients=gradients, trained=trained)


def routed_rows(
    keys: tf.Tensor,
    routed: tf.Tensor,
    rows: tf.Tensor,
    places: tf.Tensor,
    token: tf.Tensor | None = None,
    *,
    noted: tf.Tensor | None = None,
    label: str = "",
) -> tf.Tensor:
    """The rows of a batch, from the rows of its distinct keys. Their gradient goes to the token.

    Args:
        keys: The batch, any shape.
        routed: The distinct keys [u].
        rows: Their rows [u, dim].
        places: The index of each key of the batch in `routed`, int32, keys.shape.
        token: As in `pooling_ops.find_pooled`.
        noted: None, or the keys that `routed` and `places` were made of. They must equal `keys`.

    Returns:
        keys.shape + [dim].
    """
    return _raw.tf_embed_routed_rows(
        keys=keys,
        noted=[] if noted is None else [noted],
        routed=routed,
        rows=rows,
        places=places,
        tokens=[] if token is None else [token],
        label=label,
    )


@tf.RegisterGradient("TfEmbedRoutedRows")
def _routed_rows_gradient(op: tf.Operation, gradient: Any) -> list[Any]:
    """For the token, the gradients of the rows at their keys."""
    gradients: list[Any] = [None] * len(op.inputs)
    if not op.get_attr("num_tokens"):
        return gradients
    # Counted from the end, because `noted` may be absent.
    token = op.inputs[-1]
    routed, rows, places = op.inputs[-4:-1]
    dim = rows.shape[1]
    keys, sums = _raw.tf_embed_routed_rows_gradient(
        gradient=tf.convert_to_tensor(gradient), routed=routed, places=places, dim=dim
    )
    gradients[-1] = gradient_of_token(token, keys, sums, dim)
    return gradients


@tf.RegisterGradient("TfEmbedRoutedRowsGradient")
def _routed_rows_second_gradient(op: tf.Operation, of_keys: Any, of_sums: Any) -> list[Any]:
    """For the gradient that was summed."""
    del of_keys
    return [tf.gather(tf.convert_to_tensor(of_sums), op.inputs[2]), None, None]
