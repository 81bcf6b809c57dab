# SPDX-License-Identifier: Apache-2.0
"""`export_static`: writes a SavedModel that needs only TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_embed import validation
from tf_embed.ops import substitutes
from tf_embed.saving.row_blocks import blocks_of
from tf_embed.static_export.new_folder import new_folder
from tf_embed.static_export.quantization import QUANTIZATIONS
from tf_embed.static_export.served_functions import SERVE, ServedFunction, served_functions
from tf_embed.static_export.stock_table import StockTable
from tf_embed.static_export.variable_files import Filling, VariableFiles
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.variable import Variable

ABSENT = ("initializer", "zeros")
_Resource = tf.saved_model.experimental.TrackableResource
_OUR_OPS = "TfEmbed"
_PYTHON_OPS = ("EagerPyFunc", "PyFunc", "PyFuncStateless")  # only run in this process


def export_static(
    model: Any,
    path: str | os.PathLike[str],
    quantize: str | None = None,
    *,
    absent: str = "initializer",
    input_signature: Any = None,
    overwrite: bool = False,
) -> None:
    """Writes a model as a SavedModel that uses only TensorFlow's ops.

    TensorFlow, TensorFlow Serving and the C API load it without tf_embed. The rows of all tables
    are in its variables, and keys are in TensorFlow's hash tables. Without `quantize`, its results
    are bit-identical to the model's in a tf.function. It has the rows as of the call, which can't
    be trained. See docs/guides/static_export.md.

    The export of a Keras model or layer has one function, `serve`, which calls the model with
    `training=False`. The export of a tf.Module has the module's tf.functions that have an input
    signature, under their names. The signature "serving_default" is `serve`, or the only function.

    Memory: a table is copied once while it is written, or block by block if it has rows on disk.
    The serving process has all rows in memory.

    Args:
        model: A built Keras model or layer, or a tf.Module such as one with a `tf_embed.Variable`.
            Its tables must be in this process alone.
        path: A folder to make; a str or an os.PathLike.
        quantize: How floating rows are stored. "float16": a weight w changes by at most |w| / 2048
            + 2**-25, and a weight that float16 can't hold is refused. "int8": a byte for each
            weight and 8 bytes for each row; a weight changes by at most (maximum - minimum) / 510 +
            2**-21 * greatest |w| of its row + 2**-126; the rows of a 16-bit dtype are then rounded
            to that dtype. Rows that would not get smaller are stored unchanged.
            Initial rows are exact. Default: None, rows are unchanged.
        absent: The output for a key without a row. "initializer": its initial row, as in the model.
            "zeros": zeros; a smaller graph. Default: "initializer".
        input_signature: The arguments of a call, a list of tf.TensorSpec or keras.InputSpec, or
            structures of them. Default: None, the symbolic inputs of a Keras model, or the input
            signature of each tf.function of a tf.Module.
        overwrite: Whether a SavedModel at `path` is replaced, once the new one is complete.
            Default: False, an existing `path` is refused.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is out of range, `path` exists, the model is not built, a table
            is sharded over processes, a tf.function has the name of an attribute of tf.Module, the
            model looks up in a tf.function that it calls, it would serve dense ids in place of
            ragged or sparse ids without a `padding_id`, or it runs an op that only this library or
            this process has. Nothing is written then.

    Example:
        >>> import tempfile
        >>> import keras, tensorflow as tf, tf_embed
        >>> layer = tf_embed.layers.DynamicEmbedding(2, initializer="ones")
        >>> model = keras.Sequential([keras.Input([2], dtype="int64"), layer])
        >>> layer.variable.upsert([7], [[1.5, 2.5]])
        >>> folder = tempfile.mkdtemp() + "/static"
        >>> tf_embed.export_static(model, folder)
        >>> served = tf.saved_model.load(folder)  # in any process that has TensorFlow
        >>> served.serve(tf.constant([[7, 8]], tf.int64)).numpy().tolist()
        [[[1.5, 2.5], [1.0, 1.0]]]
    """
    path = validation.path_of(path, "path")
    validation.one_of(quantize, QUANTIZATIONS, "quantize", or_none=True)
    draws = validation.one_of(absent, ABSENT, "absent") == "initializer"
    overwrite = validation.flag(overwrite, "overwrite")
    if not tf.executing_eagerly():
        raise ValueError("`export_static` must be called in eager execution.")
    for table in _known_tables(model):
        table.spread.check_export("a static export", table.options.name)
    functions = served_functions(model, input_signature)
    tracing = _Tracing(quantize, draws)
    with new_folder(path, overwrite) as folder:
        with substitutes.using(tracing.stand_in_of):
            signatures = {one.name: tracing.trace(one) for one in functions}
            if SERVE in signatures or len(signatures) == 1:
                default = signatures.get(SERVE) or next(iter(signatures.values()))
                signatures.setdefault("serving_default", default)
            tracing.track(model)
            tf.saved_model.save(tracing.stock, folder, signatures=signatures)
        tracing.fill(folder)


class _StockModel(tf.Module):
    """The saved module: the functions of a model as attributes, and their resources.

    Attributes:
        tables: The stand-ins for tables.
        weights: All other variables.
        resources: TensorFlow's lookup tables.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[StockTable] = []
        self.weights: list[tf.Variable] = []
        self.resources: list[Any] = []


class _Tracing:
    """Traces the functions of a model, and holds the state that the SavedModel must not contain.

    Args:
        quantize: See `export_static`.
        draws: Whether keys without a row get their initial row.

    Attributes:
        stock: The module to save.
    """

    def __init__(self, quantize: str | None, draws: bool) -> None:
        self._quantize = quantize
        self._draws = draws
        self._sources: list[Table] = []
        self._traced: list[Any] = []
        self.stock = _StockModel()

    def stand_in_of(self, table: Table) -> StockTable:
        """Returns the stand-in of a table, the same object at each call."""
        for source, stand_in in zip(self._sources, self.stock.tables, strict=True):
            if source is table:
                return stand_in
        table.spread.check_export("a static export", table.options.name)
        stand_in = StockTable(table, quantize=self._quantize, draws=self._draws)
        self._sources.append(table)
        self.stock.tables.append(stand_in)
        return stand_in

    def trace(self, served: ServedFunction) -> Any:
        """Traces a function and makes it an attribute of the stock model."""
        function = tf.function(
            served.function, input_signature=served.signature, autograph=served.autograph
        )
        concrete = function.get_concrete_function()
        _check_ops(concrete.graph.as_graph_def(), served.name)
        for table in self._sources:
            if table.check_functions is not None:
                table.check_functions([concrete])
        self._traced.append(concrete)
        # tf.saved_model.save finds functions by attributes.
        setattr(self.stock, served.name, function)
        return function

    def track(self, model: Any) -> None:
        """Adds all other variables and lookup tables of the functions to the stock model."""
        stand_ins = {id(one) for table in self.stock.tables for one in (table.keys, table.rows)}
        captured = {id(one) for concrete in self._traced for one in concrete.captured_inputs}
        weights = {id(one): one for concrete in self._traced for one in concrete.variables}
        self.stock.weights.extend(one for key, one in weights.items() if key not in stand_ins)
        for one in _objects_of(model):
            is_resource = isinstance(one, _Resource)
            if is_resource and not isinstance(one, Table) and id(one.resource_handle) in captured:
                self.stock.resources.append(one)

    def fill(self, folder: str) -> None:
        """Writes the rows of all tables into the files of the SavedModel."""
        tables = self.stock.tables
        files = VariableFiles(folder, [f"tables/{i}" for i in range(len(tables))])
        for i, (source, table) in enumerate(zip(self._sources, tables, strict=True)):
            with blocks_of(source, folder) as blocks:
                files.fill(Filling(f"tables/{i}", table, blocks))
        files.finish()
        # The fingerprint has a checksum of the replaced files.
        fingerprint = os.path.join(folder, "fingerprint.pb")
        if tf.io.gfile.exists(fingerprint):
            tf.io.gfile.remove(fingerprint)


def _known_tables(model: Any) -> Iterator[Table]:
    """Yields the tables of a model that can be found without a call. Tracing finds the others."""
    if isinstance(model, keras.Layer):
        for weight in model.weights:
            if isinstance(weight, Anchor):
                yield from weight.tables
    for one in (model, *model.submodules) if isinstance(model, tf.Module) else ():
        if isinstance(one, Variable):
            yield one.table


def _objects_of(model: Any) -> Iterator[Any]:
    """Yields the trackable objects of a model, including all layers and resources, each once."""
    found: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        first = waiting.pop()
        if id(first) in found:
            continue
        for one in tf.train.TrackableView(first).descendants():
            if id(one) in found:
                continue
            found[id(one)] = one
            yield one
            if isinstance(one, keras.Layer):
                # Keras hides lists and dicts from TensorFlow.
                waiting.extend(_items_of(vars(one)))


def _items_of(container: Any) -> Iterator[Any]:
    """Yields the layers, modules and resources in dicts, lists and tuples."""
    seen: dict[int, Any] = {}
    waiting = [container]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (keras.Layer, tf.Module, _Resource)):
            yield one
        elif isinstance(one, (dict, list, tuple)) and id(one) not in seen:
            seen[id(one)] = one
            waiting.extend(one.values() if isinstance(one, dict) else one)


def _check_ops(graph: Any, name: str) -> None:
    """Checks that a graph has no ops that are missing in another process.

    Args:
        graph: A tf.compat.v1.GraphDef.
        name: The name of its function.

    Raises:
        ValueError: If there is such an op.
    """
    for where, nodes in _nodes_of(graph, name):
        for node in nodes:
            if node.op.startswith(_OUR_OPS):
                raise ValueError(
                    f"`model` must look rows up, and do nothing else with tables, in what is "
                    f"exported. If a tf.function that it calls was called before: "
                    f"{substitutes.INLINE} Received: {where!r} runs {node.op}"
                )
            if node.op in _PYTHON_OPS:
                raise ValueError(
                    f"`model` must not call Python when it runs, such as by tf.py_function, "
                    f"because other processes can't. Received: {where!r} runs {node.op}"
                )


def _nodes_of(graph: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, graph.node
    for function in graph.library.function:
        yield function.signature.name, function.node_def
