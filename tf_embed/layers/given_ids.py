# SPDX-License-Identifier: Apache-2.0
"""Dense ids in place of ragged or sparse ids, which a layer without a padding id can't serve.

Signatures take tensors, so `model.export` makes a signature for dense ids even if the model takes
ragged or sparse ids. Without a padding id, the filler of a dense batch is looked up like any id.

Below, "ragged" stands for ragged or sparse.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_embed import callers
from tf_embed.saving import keras_files
from tf_embed.validation import with_dependencies

_SAVED = "given_ids"

# Sources of the dense ids of a traced lookup.
_IN_PLACE = "in_place"  # from a dense tensor for a ragged keras.Input
_DECLARED = "declared"  # from a keras.Input in another way
_UNKNOWN = "unknown"  # there is no functional model
_DEFAULT = "default_of_model"  # in a function that Keras gives each model for a SavedModel
# Kinds of ids.
_RAGGED = "ragged"
_UNDECLARED = "undeclared"  # ragged, in a model with a dense keras.Input that was given ragged ids
_MADE_DENSE = "made_dense"  # dense, made by the model from a ragged keras.Input


class GivenIds:
    """The kinds of ids that a layer without a padding id was given.

    The name of an op marks a lookup of dense ids in a graph, and stays with the function wherever
    it goes. `check` reads the marks in the functions of a SavedModel. So a function may be traced
    before the export, and before the layer is given ragged ids for the first time.

    Args:
        owners: The layer or each of its features, for messages.
    """

    def __init__(self, owners: Sequence[str]) -> None:
        self._owners = list(owners)
        self._mark = f"ids_{uuid.uuid4().hex}"
        self._kinds: set[tuple[int, str, int | None]] = set()  # feature, kind, rank
        self._was_in_place = False  # dense ids, for a ragged keras.Input

    def marked(self, ids: Any, feature: int = 0) -> Any:
        """Records the kind of ids and returns them. Dense ids in a graph get a mark."""
        if _is_ragged(ids):
            inputs = callers.functional_inputs()
            undeclared = any(_is_ragged(given) and not _is_ragged(one) for one, given in inputs)
            self._kinds.add((feature, _UNDECLARED if undeclared else _RAGGED, ids.shape.rank))
            return ids
        if tf.executing_eagerly() or not isinstance(ids, tf.Tensor):
            return ids
        inputs = callers.functional_inputs()
        source = _DECLARED if inputs else _UNKNOWN
        of_ragged = [given for one, given in inputs if _is_ragged(one)]
        if _comes_from(ids, [given for given in of_ragged if isinstance(given, tf.Tensor)]):
            source, self._was_in_place = _IN_PLACE, True
        elif _comes_from(ids, [given for given in of_ragged if _is_ragged(given)]):
            self._kinds.add((feature, _MADE_DENSE, ids.shape.rank))
        shape = "any" if ids.shape.rank is None else "-".join(["shape", *map(str, ids.shape)])
        mark = f"{self._mark}/{feature}/{shape}/{source}"
        if callers.is_default_of_model():
            # It is saved with any object that has the model, which may serve another function.
            mark = f"{mark}/{_DEFAULT}"
            if self._are_in_place(feature, shape, source):
                refused = tf.debugging.Assert(False, [self._message(feature, shape)])
                ids = with_dependencies(ids, refused)
        return tf.identity(ids, name=mark)

    def check(self, functions: Iterable[Any]) -> None:
        """Refuses functions with dense ids in place of ragged ids.

        Raises:
            ValueError: If a function has a lookup of such ids.
        """
        if not self._kinds and not self._was_in_place:
            return  # as for most layers; the search takes time
        sources = "|".join((_IN_PLACE, _DECLARED, _UNKNOWN))
        marks = re.compile(rf"{self._mark}/(\d+)/(any|shape[\w-]*)/({sources})")
        for function in functions:
            graph = function.graph.as_graph_def()
            called = [node for one in graph.library.function for node in one.node_def]
            # A default function refuses each call itself. If another function calls it, the
            # SavedModel serves it, so its marks count.
            names = [node.name for node in called]
            names += [node.name for node in graph.node if _DEFAULT not in node.name]
            for mark in filter(None, map(marks.search, names)):
                feature, shape, source = int(mark[1]), mark[2], mark[3]
                if self._are_in_place(feature, shape, source):
                    raise ValueError(
                        "A model of ragged or sparse ids can't be exported as it is:\n\n"
                        + self._message(feature, shape)
                    )

    def _are_in_place(self, feature: int, shape: str, source: str) -> bool:
        """Whether the dense ids of a traced lookup are in place of ragged ids.

        For a ragged keras.Input: yes, unless the model itself makes ids dense. For a dense
        keras.Input: if that input was given ragged ids. Without a keras.Input: if the layer was
        ever given ragged ids of that rank.
        """
        given = {(kind, rank) for one, kind, rank in tuple(self._kinds) if one == feature}
        if source == _IN_PLACE:
            return {kind for kind, _ in given} != {_MADE_DENSE}
        kinds = (_UNDECLARED,) if source == _DECLARED else (_UNDECLARED, _RAGGED)
        ranks = {rank for kind, rank in given if kind in kinds}
        return bool(ranks if shape == "any" else ranks & {shape.count("-"), None})

    def _message(self, feature: int, shape: str) -> str:
        shown = "any shape" if shape == "any" else f"shape=({', '.join(shape.split('-')[1:])})"
        return (
            f"`padding_id` of {self._owners[feature]!r} must be set for dense ids in place of "
            "ragged or sparse ones, as in the signature that `model.export` makes: without it, "
            "what fills short lines is looked up as an id. Received: padding_id=None, ids of "
            f"{shown}"
        )

    def arrays(self) -> dict[str, Any]:
        """Returns the kinds as arrays for a Keras file, or no arrays if there are no kinds."""
        if not self._kinds:
            return {}
        return {_SAVED: keras_files.array_of_text(json.dumps(sorted(self._kinds, key=str)))}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Adds the kinds of a file, and removes them from its arrays.

        Raises:
            ValueError: If the file has something else in their place.
        """
        saved = arrays.pop(_SAVED, None)
        if saved is None:  # a layer with only dense ids, or an earlier version
            return
        try:
            self._kinds |= {
                (one, kind, rank) for one, kind, rank in json.loads(keras_files.text_of(saved))
            }
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The file has no kinds of ids for {self._owners[0]!r}: {error}"
            ) from error


def _is_ragged(ids: Any) -> bool:
    """Whether ids, possibly symbolic, are ragged or sparse."""
    if isinstance(ids, keras.KerasTensor):  # older versions of Keras have no `ragged`
        return getattr(ids, "ragged", False) or ids.sparse
    return isinstance(ids, (tf.RaggedTensor, tf.SparseTensor))


def _comes_from(ids: tf.Tensor, sources: Sequence[Any]) -> bool:
    """Whether a tensor in a graph is computed from any of `sources`, which may be ragged or sparse.

    Also True if unknown: in the function of a loop or a condition.
    """
    parts = tf.nest.flatten(list(sources), expand_composites=True)
    parts = [part for part in parts if tf.is_symbolic_tensor(part)]
    graphs, names = {id(part.graph) for part in parts}, {part.name for part in parts}
    waiting, seen = [ids] if parts else [], set()
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        if id(tensor.graph) in graphs and tensor.name in names:
            return True
        if id(tensor.graph) not in graphs and tensor.op.type == "Placeholder":
            return True
        waiting.extend(tensor.op.inputs)
    return False
