"""The methods of `Variable` about what trains it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_embed import arguments
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor


class TrainingMethods(tf.Module):
    """A variable, as far as optimizers go. `Variable` has the rest."""

    _table: Table
    _anchor: Anchor | None

    @property
    def trainable(self) -> bool:
        """Whether optimizers may change rows."""
        return self._anchor is not None and not self._anchor.frozen

    @property
    def anchor(self) -> Anchor | None:
        """The Keras variable that stands for the table on a tf.GradientTape.

        None where the rows are not trained.
        """
        return self._anchor

    @property
    def trainable_variables(self) -> tuple[Anchor, ...]:
        """What to take gradients of and to hand to an optimizer: the anchor, if trainable."""
        return (self._anchor,) if self._anchor is not None and self.trainable else ()

    @property
    def trainable_store(self) -> dict[str, Anchor]:
        """`trainable_variables` by name."""
        variables = self.trainable_variables
        return {self._table.options.name: variables[0]} if variables else {}

    def get_trainable_by_name(self, name: str) -> Anchor | None:
        """What to take gradients of and to hand to an optimizer, by the name of a lookup.

        A variable has one anchor, whatever its lookups are called, so every name gives that, also
        before the first lookup.

        Args:
            name: The `name` of an `embedding_lookup`, or any other.

        Returns:
            The anchor; None where rows are not trained.

        Raises:
            TypeError: `name` is no str.
            RuntimeError: In a graph. Ask outside of the tf.function, or take `anchor`.

        Example:
            >>> import keras, tensorflow as tf, tf_embed
            >>> params = tf_embed.tfra.get_variable("foo", dim=4)
            >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3))
            >>> @tf.function
            ... def loss_fn(ids):
            ...     emb = tf_embed.embedding_lookup(params, ids, name="user_embedding")
            ...     return tf.reduce_mean(tf.reduce_sum(emb, axis=1))
            >>> ids = tf.constant([1, 2, 3], tf.int64)
            >>> for i in range(10):
            ...     _ = optimizer.minimize(
            ...         lambda: loss_fn(ids),
            ...         var_list=[params.get_eager_trainable_by_name("user_embedding")],
            ...     )
            >>> int(params.size())
            3
            >>> tf_embed.tfra.forget_variable("foo")
        """
        if not isinstance(name, str):
            raise TypeError(f"`name` must be a str. Received: name={arguments.shown(name)}")
        if not tf.executing_eagerly():
            raise RuntimeError(
                "`get_trainable_by_name` is for eager execution: call it outside of the "
                f"tf.function, or take the `anchor` of {self._table.options.name!r}."
            )
        return self._anchor

    def get_eager_trainable_by_name(self, name: str) -> Anchor | None:
        """`get_trainable_by_name`."""
        return self.get_trainable_by_name(name)

    def get_slot_variables(self, optimizer: Any) -> list[SlotVariable]:
        """What an optimizer keeps beside the rows, such as Adam's momentum and velocity.

        Args:
            optimizer: A `tf_embed.DynamicEmbeddingOptimizer`, the Keras optimizer in it, or the
                table's own optimizer.

        Returns:
            A view for each slot, with `lookup`, `export` and `size`; none where the optimizer does
            not train this variable, or has not yet been built.

        Raises:
            TypeError: It is no Keras optimizer.

        Example:
            >>> import keras, tf_embed
            >>> v = tf_embed.Variable(dim=2, name="users")
            >>> adam = keras.optimizers.Adam(0.1, name="adam")
            >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(adam)
            >>> with tf.GradientTape() as tape:
            ...     loss = tf.reduce_sum(tf_embed.embedding_lookup(v, [5]))
            >>> optimizer.apply(tape.gradient(loss, v.trainable_variables), v.trainable_variables)
            >>> slots = v.get_slot_variables(optimizer)
            >>> [slot.name for slot in slots]
            ['users/adam/momentum', 'users/adam/velocity']
            >>> slots[0].lookup([5]).numpy()
            array([[0.1, 0.1]], dtype=float32)
        """
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise TypeError(
                "`optimizer` must be a keras.optimizers.Optimizer. Received: optimizer="
                f"{arguments.shown(optimizer)}"
            )
        own = None if self._anchor is None else self._anchor.own_trainer
        if own is not None:
            return own.slots if own.optimizer is optimizer else []
        of_table = getattr(optimizer, "slot_variables", None)
        if of_table is not None:
            return of_table(self._table)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer
        trainers = (one for one in self._table.trainers if one.optimizer is optimizer)
        trainer = next(trainers, None)
        return [] if trainer is None else trainer.slots
