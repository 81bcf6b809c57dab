# SPDX-License-Identifier: Apache-2.0
"""The graphs of the tf.functions that are being traced."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def outermost_graph() -> tf.Graph:
    """The graph of the outermost tf.function that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    # Only function graphs have the attribute. The outermost function's outer graph is no function
    # graph. AutoGraph, which converts this in a traced step, can't read an assignment expression.
    outer: Any = getattr(graph, "outer_graph", None)
    while hasattr(outer, "outer_graph"):
        graph = outer
        outer = graph.outer_graph
    return graph


def innermost_graph() -> tf.Graph:
    """The graph of the innermost tf.function that is being traced.

    In a condition or a loop, it is the graph of the function around them.
    """
    outermost = outermost_graph()
    graph: Any = tf.compat.v1.get_default_graph()
    # Graphs of conditions and loops have other classes. None of these classes is public.
    while graph is not outermost and type(graph) is not type(outermost):
        graph = graph.outer_graph
    return graph
