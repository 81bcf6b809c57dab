# SPDX-License-Identifier: Apache-2.0
"""`survey`: what a call of a model does, found by a call in a graph that never runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_embed.layers import step_outputs
from tf_embed.table import lookups
from tf_embed.table.lookups import Recording

# Stateful ops that only read, or only fail. Lookups of layers are recorded, and are no ops; the ops
# of lookups here are of `Variable.lookup`, or draw initial rows.
_HARMLESS = {
    *("Assert", "HashTableV2", "If", "LookupTableFindV2", "LookupTableSizeV2", "ReadVariableOp"),
    *("ResourceGather", "TfEmbedFind", "TfEmbedFindPooledTables", "TfEmbedToken", "VarHandleOp"),
    "VariableShape",
}
# The beginnings of the names of other stateful ops, in the branches of a condition, of which a
# graph has only the names.
_STATEFUL = (
    *("Assign", "Collective", "EagerPyFunc", "Iterator", "LookupTableI", "LookupTableRemove"),
    *("Multinomial", "ParameterizedTruncatedNormal", "Print", "PyFunc", "Queue", "Random"),
    *("ResourceApply", "ResourceScatter", "StatefulPartitionedCall", "StatefulRandom"),
    *("StatefulStandard", "StatefulUniform", "TruncatedNormal", "While", "Write"),
)


_HAS_LEFT = "a layer looks up in a tf.function of its own"


@dataclasses.dataclass(frozen=True)
class Survey:
    """What a call of a model does.

    Attributes:
        tables: The name of the table of each lookup.
        num_outputs: The number of calls of layers with tables.
        looks_up_outside: Whether a lookup is outside of such a layer.
        obstacle: The reason for which the model can't be called up to its last lookup a second
            time; None if it can.
    """

    tables: Sequence[str] = ()
    num_outputs: int = 0
    looks_up_outside: bool = False
    obstacle: str | None = None


def survey(call: Callable[[], Any]) -> Survey:
    """Finds out what a call of a model does."""
    found: list[Survey] = []

    def traced() -> None:
        # An error must not leave the trace, which would not initialize the variables that it made.
        try:
            # First as it is, so that what it builds, and the traces of its own tf.functions, are
            # whole.
            with step_outputs.collected(), lookups.recorded():
                is_complete = lookups.call_to_record(call)
            found.append(_surveyed(call) if is_complete else Survey(obstacle=_HAS_LEFT))
        except Exception as error:
            # Such as a collective of a strategy, which must not be in another function. If the
            # model itself is at fault, its own call raises too.
            reason = f"a call in a graph of its own raises {type(error).__name__}"
            found.append(Survey(obstacle=reason))

    tf.function(traced, autograph=False).get_concrete_function()
    return found[-1]


def _surveyed(call: Callable[[], Any]) -> Survey:
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    collected, recorded = step_outputs.collected(), lookups.recorded()
    with keras.StatelessScope(), collected as collection, recorded as recording:
        call()
    outputs = [output.value for output in collection.outputs]
    last = [*recording.zeros, *tf.nest.flatten(outputs, True)]
    return Survey(
        tables=[lookup.table.options.name for lookup in recording.lookups],
        num_outputs=len(outputs),
        looks_up_outside=len(recording.lookups) > collection.num_lookups,
        obstacle=_obstacle(graph.get_operations()[first:], last, recording),
    )


def _obstacle(
    ops: Sequence[tf.Operation], last: Sequence[tf.Tensor], recording: Recording
) -> str | None:
    """The first op that must not run twice, among those up to the last of some tensors."""
    numbers = {op: number for number, op in enumerate(ops)}
    end = 1 + max((numbers.get(tensor.op, -1) for tensor in last), default=-1)
    graph_def = tf.compat.v1.get_default_graph().as_graph_def()
    functions = {one.signature.name: one for one in graph_def.library.function}
    for op in ops[:end]:
        if not op.op_def.is_stateful:
            continue
        if op.type not in _HARMLESS:
            return f"the op {op.type} comes before its last lookup"
        if recording.depends_on_rows(op.inputs):
            return f"the op {op.type}, of rows, comes before its last lookup"
        for branch in ("then_branch", "else_branch") if op.type == "If" else ():
            for node in _nodes(op.get_attr(branch).name, functions):
                if node.op.startswith(_STATEFUL):
                    return f"the op {node.op}, in a condition, comes before its last lookup"
    return None


def _nodes(name: str, functions: Mapping[str, Any]) -> Iterator[Any]:
    """The nodes of a function of a graph, and of the functions that it calls."""
    for node in functions[name].node_def:
        yield node
        for attribute in node.attr.values():
            if attribute.func.name in functions:
                yield from _nodes(attribute.func.name, functions)
