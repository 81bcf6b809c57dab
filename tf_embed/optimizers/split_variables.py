# SPDX-License-Identifier: Apache-2.0
"""The variables of a model, split into anchors of tables and dense variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import keras

from tf_embed.variable.anchor import Anchor


@dataclasses.dataclass(frozen=True)
class SplitVariables:
    """The variables of a model; an object, so that Keras does not track them.

    Attributes:
        variables: All of them.
        anchors: The anchors, one for each table.
        dense: The dense variables.
        guard: The variable that tells a loss scale optimizer about the gradients of tables; None
            without such an optimizer.
    """

    variables: list[Any]
    anchors: list[Anchor]
    dense: list[Any]
    guard: keras.Variable | None = None


def split_variables(variables: Iterable[Any]) -> SplitVariables:
    """Splits the variables of a model. Only the first anchor of each table counts."""
    variables = list(variables)
    # Reversed twice: the first anchor of each table stays, and the order too.
    anchors = {id(one.table): one for one in reversed(variables) if isinstance(one, Anchor)}
    return SplitVariables(
        variables=variables,
        anchors=list(reversed(anchors.values())),
        dense=[variable for variable in variables if not isinstance(variable, Anchor)],
    )
