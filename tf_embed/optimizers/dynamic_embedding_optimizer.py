# SPDX-License-Identifier: Apache-2.0
"""One optimizer for the dense variables and the dynamic tables of a model."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from tf_embed import callers, validation
from tf_embed.optimizers import gradients as row_gradients
from tf_embed.optimizers import keras_file_state
from tf_embed.optimizers.joined_tables import JoinedTables
from tf_embed.optimizers.optimizer_text import optimizer_text
from tf_embed.optimizers.rules import optimizer_of, optimizer_of_config, step_variable
from tf_embed.optimizers.step_arguments import (
    SplitVariables,
    assign_all,
    check_loss,
    check_no_option,
    check_tape,
    items_in,
    pairs_in,
    split_variables,
    variables_in,
)
from tf_embed.optimizers.steps import TableGradient, dense_step, run_if, train_all
from tf_embed.optimizers.table_gradient import (
    check_scale,
    clip_together,
    each_anchor_once,
    one_for_each_table,
)
from tf_embed.optimizers.trainer import TableTrainer, check_optimizer, refuse_if_mirrored
from tf_embed.optimizers.untrained_tables import UntrainedTables
from tf_embed.table.slot_variable import SlotVariable
from tf_embed.table.table import Table
from tf_embed.variable.anchor import Anchor
from tf_embed.variable.outer_optimizers import check_around

_joining = threading.RLock()  # held while an optimizer is built or a table joins it


@keras.saving.register_keras_serializable(package="tf_embed")
class DynamicEmbeddingOptimizer(keras.optimizers.Optimizer):
    """Lets a Keras optimizer train dynamic tables too.

    Dense variables are trained by the optimizer itself. The rows of tables are trained in the
    table, by the same rule with the same hyper-parameters, learning rate, schedule and step. Only
    rows that a step touches change, also by weight decay, and gradients of equal keys are summed
    first. A table that has its own optimizer is trained by its own optimizer. If a model is
    compiled again with a new optimizer, the slots of tables are re-initialized, like the slots of
    dense variables.

    The rule is the optimizer on a dense variable of the rows that a step touches, with the dense
    gradient of these rows. The rules of SGD, RMSprop, Adagrad, RowwiseAdagrad, Adam, AdamW, Ftrl
    and SmartDecayAdam run in the table, and so do the rules of FBGEMM's and OneFlow's optimizers
    (see `tf_embed.tbe` and `tf_embed.one_embedding`). Any other optimizer, including your own, runs
    on the gathered rows; statistics that it takes over a variable (Lamb's norms, Adafactor's) are
    over these rows.

    Options work as in Keras, but over touched rows: clipping of the summed gradient,
    `global_clipnorm` with dense variables and tables together; `weight_decay` and `use_ema` change
    a row only in steps that touch it, and the end of `fit` replaces all rows by their averages;
    `gradient_accumulation_steps`; `loss_scale_factor`. Gradients that wait for a row are dropped if
    it is removed or the table is cleared. If the row is evicted or restricted, they insert it
    again. A NaN or infinite gradient affects the rows of its step as it would affect a dense
    variable of those rows. Other rows stay finite, which is not guaranteed for a dense variable of
    all rows. Use these options to clip: tf.clip_by_global_norm takes the norm of each use of a key,
    before they are summed, and in a table-batched layer the norm of the pooled values. For
    mixed_float16, pass a keras.optimizers.LossScaleOptimizer; the wrapper is then an instance of
    that class too.

    A table that is added after the first step joins in the first step that names it. Dense
    variables must exist when the optimizer is built, as in Keras.

    Threads may train a table together, with separate optimizers or a common one, and no update of a
    row is lost. A rule that runs in the table changes each row in place; any other optimizer reads
    rows and writes them back, and such steps take turns on the table. The step, `iterations`, and
    dense variables are as safe as Keras leaves them. When averages of `use_ema` replace the
    weights, upserts and removals that other threads make at the same time are undone.

    Under tf.distribute.MirroredStrategy a table makes one step with the gradients of all replicas.
    The rule of the optimizer must then run in the table, without `global_clipnorm`, `use_ema`,
    `gradient_accumulation_steps` and LossScaleOptimizer.

    Args:
        keras_optimizer: A Keras optimizer or its name. Not MultiOptimizer.
        share_slots: Whether other optimizers train the tables too, such as one in each thread.
            Their slots are then kept, and shared by optimizers of the same kind. By default a new
            optimizer's tables begin with new slots, except for slots that other processes made on
            parameter servers or in Redis.
        name: Name of the optimizer.

    Raises:
        TypeError: If it is not a Keras optimizer.
        ValueError: If the optimizer, or a pair of its options, can't train tables.

    Example:
        >>> import keras, numpy as np, tf_embed
        >>> model = keras.Sequential([
        ...     keras.Input((3,), dtype="int64"),
        ...     tf_embed.layers.DynamicEmbedding(4, combiner="mean"),
        ...     keras.layers.Dense(1),
        ... ])
        >>> model.compile(tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.Adam(1e-3)), "mse")
        >>> history = model.fit(np.array([[1, 2, 3]]), np.array([1.0]), verbose=0)
        >>> int(model.layers[0].variable.size())
        3
    """

    trains_dynamic_tables = True  # for anchors, which refuse other optimizers

    def __init__(
        self,
        keras_optimizer: Any,
        *,
        share_slots: bool = False,
        name: str | None = None,
    ) -> None:
        keras_optimizer = optimizer_of(keras_optimizer)
        check_optimizer(_rule_optimizer(keras_optimizer))
        name = "dynamic_embedding_optimizer" if name is None else validation.name_of(name)
        is_base = type(self) is DynamicEmbeddingOptimizer
        if is_base and isinstance(keras_optimizer, keras.optimizers.LossScaleOptimizer):
            # Not `__new__`, because subclasses have other arguments.
            object.__setattr__(self, "__class__", LossScalingTableOptimizer)
        # Keras needs a number here. The property below returns the inner optimizer's.
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)
        self._inner_optimizer = keras_optimizer
        self.share_slots = validation.flag(share_slots, "share_slots")
        self._tables = JoinedTables(name)
        self._split: SplitVariables | None = None
        self._untrained = UntrainedTables(name)

    # In the first step of a tf.function, AutoGraph would trace both branches of each `if`.
    @tf.autograph.experimental.do_not_convert
    def build(self, variables: list[Any]) -> None:
        """Makes the optimizer's variables and chooses the rule of each table.

        Args:
            variables: The trainable variables of the model.

        Raises:
            ValueError: If a keras.optimizers.LossScaleOptimizer wraps this optimizer, or the
                strategy is a MirroredStrategy and the optimizer can't train tables under it.
        """
        # Not `built`, which Keras sets before the optimizer is ready for a step of another thread.
        if self._split is not None:
            return
        with _joining:
            if self._split is None:
                self._build(variables)

    def _build(self, variables: list[Any]) -> None:
        check_around(self)
        rule_optimizer = self._rule_optimizer
        check_optimizer(rule_optimizer)  # an option may have been set since
        split = split_variables(variables)
        trainers = [
            TableTrainer(anchor, rule_optimizer)
            for anchor in split.anchors
            if anchor.own_trainer is None
        ]
        self._check_strategy(split.anchors, trainers)
        self._tables.check(split.anchors, trainers)
        # Without variables: Keras would track them in a list, in the order of this build.
        keras.optimizers.Optimizer.build(self, [])
        dense = split.dense
        if isinstance(self.inner_optimizer, keras.optimizers.LossScaleOptimizer):
            with tf.init_scope():
                # A LossScaleOptimizer can't check the gradients of tables. The gradient of this
                # variable tells it whether they are finite.
                guard = keras.Variable(0.0, dtype="float32", name="loss_scale_guard")
            split = dataclasses.replace(split, guard=guard)
            self._guard = guard  # an attribute, so that checkpoints find it
            dense = [*dense, guard]
        self.inner_optimizer.build(dense)
        with tf.init_scope():
            # A restored optimizer has made steps, and may own the slots in the tables.
            is_new = int(tf.convert_to_tensor(step_variable(rule_optimizer))) == 0
        for trainer in trainers:
            # Rows on a server have slots that other processes trained with this rule.
            is_kept = trainer.table.outlives_process and trainer.table.rule is None
            trainer.bind()
            if is_new and not is_kept and not self.share_slots:  # like dense variables
                trainer.table.drop_slots()
        self._tables.add(split.anchors, trainers)
        self._split = split

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates variables and tables by gradients.

        Args:
            grads: The gradients, with None for a missing gradient, and a tf.IndexedSlices for the
                anchor of a table.
            trainable_variables: The variable of each gradient. Default: the variables that the
                optimizer was built with.

        Raises:
            TypeError: If an argument is not a list, or an item has a wrong type.
            ValueError: If the gradient of a table is not a tf.IndexedSlices, a dense variable was
                missing when the optimizer was built, or an anchor has two different gradients. An
                anchor that is listed twice with the same gradient is trained once. This happens if
                lookups use a variable under two names.
        """
        grads = items_in(grads, "grads")
        if not grads:
            return
        if trainable_variables is None:
            if self._split is None:
                raise ValueError(
                    "`trainable_variables` must be given until the optimizer is built. Received: "
                    "trainable_variables=None"
                )
            trainable_variables = self._split.variables
        trainable_variables = variables_in(trainable_variables, "trainable_variables")
        if len(grads) != len(trainable_variables):
            raise ValueError(
                "`grads` must have one gradient for each of `trainable_variables`. Received: "
                f"{len(grads)} gradients, {len(trainable_variables)} variables"
            )
        if self._split is None:
            self.build(trainable_variables)
        if all(gradient is None for gradient in grads):
            raise ValueError("`grads` must have a gradient for some variable. Received: only None")
        self._untrained.warn(trainable_variables, grads)
        dense: list[Any] = []
        dense_grads: list[Any] = []
        tables: list[TableGradient] = []
        for gradient, variable in each_anchor_once(grads, trainable_variables):
            if not isinstance(variable, Anchor):
                dense_grads.append(gradient)
                dense.append(variable)
                continue
            trainer = self._trainer_of(variable)
            # A step without a gradient may still count, as a step of an accumulation does.
            if gradient is None and (variable.own_trainer or not trainer.needs_every_step):
                continue
            keys, values = variable.slices_of(variable.no_rows() if gradient is None else gradient)
            tables.append(TableGradient(variable, trainer, keys, values))
        tables = one_for_each_table(check_scale(tables, self.inner_optimizer))
        if tf.distribute.has_strategy():  # the optimizer may have been built outside of it
            self._check_strategy(
                [table.anchor for table in tables],
                [table.trainer for table in tables if not table.is_own],
            )
        if isinstance(self.inner_optimizer, keras.optimizers.LossScaleOptimizer):
            self._apply_loss_scaled(tables, dense_grads, dense)
            return
        scale = self.inner_optimizer.loss_scale_factor or 1.0
        if largest := row_gradients.clipping(self._rule_optimizer).global_clipnorm:
            tables, dense_grads = clip_together(tables, dense_grads, scale, largest)
        # Before the dense step, which increments `iterations`: rows use the number of this step.
        train_all(tables, scale)
        if any(gradient is not None for gradient in dense_grads):
            self._apply_dense(dense_grads, dense)
        else:
            # A step of tables alone counts too: schedules and bias corrections use the count.
            step_variable(self._rule_optimizer).assign_add(1)

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Updates variables and tables by pairs of a gradient and a variable; see `apply`.

        Args:
            grads_and_vars: The pairs, a list or another iterable.

        Returns:
            `iterations`.
        """
        pairs = pairs_in(grads_and_vars, "grads_and_vars")
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return self.iterations

    def minimize(self, loss: Any, var_list: Any, tape: tf.GradientTape | None = None) -> Any:
        """Computes the gradients of a loss, and applies them.

        Args:
            loss: A callable without arguments that returns the loss; or the loss, a tensor, with
                the `tape` that recorded it.
            var_list: The variables and anchors to train, or a callable that returns them, which is
                called after the loss.
            tape: The tape of a loss that is a tensor.

        Returns:
            `iterations`.

        Raises:
            TypeError: If an argument has another type.
            ValueError: If the loss is a tensor and there is no tape.

        Example:
            >>> import keras, tf_embed
            >>> v = tf_embed.Variable(dim=1)
            >>> optimizer = tf_embed.DynamicEmbeddingOptimizer(keras.optimizers.SGD(0.5))
            >>> loss = lambda: tf.reduce_sum(tf_embed.embedding_lookup(v, [3, 4]))
            >>> int(optimizer.minimize(loss, v.trainable_variables))
            1
            >>> v.lookup([3]).numpy().tolist()
            [[-0.5]]
        """
        check_tape(tape)
        if callable(loss):
            tape = tf.GradientTape() if tape is None else tape
            with tape:
                given, loss = loss, loss()
                check_loss(loss, given)
                variables = variables_in(var_list() if callable(var_list) else var_list, "var_list")
                # Under the tape, because gradients are taken of the scaled loss.
                loss = self.scale_loss(loss)
        elif tape is None:
            raise ValueError(
                "`tape` must be given where `loss` is no callable: the tf.GradientTape that saw "
                f"how it was made. Received: loss={validation.shown(loss)}, tape=None"
            )
        else:
            check_loss(loss, loss)
            variables = variables_in(var_list() if callable(var_list) else var_list, "var_list")
            with tape:
                loss = self.scale_loss(loss)
        return self.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def __repr__(self) -> str:
        known = vars(self)  # `__init__` may have failed halfway
        texts = [f"keras_optimizer={type(known.get('_inner_optimizer')).__name__}"]
        if (split := known.get("_split")) is not None:
            tables = len(self._tables.anchors)  # including tables that joined since the build
            texts += [f"tables={tables}", f"dense variables={len(split.dense)}"]
        return optimizer_text(self, texts)

    def scale_loss(self, loss: Any) -> Any:
        """Scales the loss as the inner optimizer does, before gradients are taken.

        Args:
            loss: The loss, a scalar.

        Returns:
            The scaled loss.
        """
        return self.inner_optimizer.scale_loss(loss)

    def _apply_dense(self, grads: list[Any], variables: list[Any]) -> None:
        """Makes the inner optimizer's step.

        Keras sums gradients over replicas, even if there is only one replica. TensorFlow's gradient
        of that sum leaks the whole graph of a traced step. Within a merge call there is no such
        sum.
        """
        step = functools.partial(self.inner_optimizer.apply, grads, variables)
        replica = tf.distribute.get_replica_context()
        if replica is None or tf.distribute.has_strategy():
            step()
            return
        replica.merge_call(lambda _: dense_step(step))

    def _apply_loss_scaled(
        self, tables: list[TableGradient], dense_grads: list[Any], dense: list[Any]
    ) -> None:
        """Makes a step of a LossScaleOptimizer, unless some gradient is not finite.

        The gradient of an additional variable, the guard, represents the gradients of the tables.
        """
        # The scale of this step: the step of the inner optimizer below may change it.
        scale = tf.identity(self.inner_optimizer.dynamic_scale)
        if largest := row_gradients.clipping(self._rule_optimizer).global_clipnorm:
            tables, dense_grads = clip_together(tables, dense_grads, scale, largest)
        # After clipping: a norm that overflows turns finite gradients into NaN.
        tables_finite = row_gradients.all_finite(table.values for table in tables)
        dense_finite = row_gradients.all_finite(
            one.values if isinstance(one, tf.IndexedSlices) else one
            for one in dense_grads
            if one is not None
        )
        # Keras skips the dense step if a gradient is not finite, so the tables skip theirs.
        run_if(
            tf.logical_and(tables_finite, dense_finite), functools.partial(train_all, tables, scale)
        )
        guard_grad = tf.where(tables_finite, 0.0, float("nan"))
        guard = self._split.guard  # type: ignore[union-attr]
        self.inner_optimizer.apply([*dense_grads, guard_grad], [*dense, guard])

    def _trainer_of(self, anchor: Anchor) -> TableTrainer:
        if anchor.own_trainer is not None:
            return anchor.own_trainer  # type: ignore[return-value]
        trainer = self._trainer_of_table(anchor.table)
        return self._join(anchor) if trainer is None else trainer

    def _trainer_of_table(self, table: Table) -> TableTrainer | None:
        trainers = (one for one in self.table_trainers if one.table is table)
        return next(trainers, None)

    @tf.autograph.experimental.do_not_convert
    def _join(self, anchor: Anchor) -> TableTrainer:
        """Makes the trainer of a table that the optimizer was built without."""
        trainer = TableTrainer(anchor, self._rule_optimizer)
        self._check_strategy([anchor], [trainer])
        trainer.catch_up(next(iter(self.table_trainers), None))
        with _joining:
            known = self._trainer_of_table(anchor.table)  # another thread may have joined it
            if known is not None:
                return known
            self._tables.check([anchor], [trainer])
            # If no optimizer has trained the table in this process, its slots are from a
            # checkpoint.
            is_new = trainer.table.rule is not None and not trainer.has_trained_before
            trainer.bind()
            if is_new and not self.share_slots:
                trainer.table.drop_slots()
            self._tables.add([anchor], [trainer])
        return trainer

    def _check_strategy(self, anchors: list[Anchor], trainers: list[TableTrainer]) -> None:
        """Refuses a strategy of several replicas that can't train the tables."""
        if anchors and isinstance(self.inner_optimizer, keras.optimizers.LossScaleOptimizer):
            tables = [table for anchor in anchors for table in anchor.tables]
            refuse_if_mirrored("LossScaleOptimizer", tables)
        norm = row_gradients.clipping(self._rule_optimizer).global_clipnorm
        if trainers and norm:
            refuse_if_mirrored(f"global_clipnorm={norm}", [one.table for one in trainers])
        for trainer in trainers:
            trainer.check_strategy()
        for anchor in anchors:
            if anchor.own_trainer is not None:
                anchor.own_trainer.check_strategy()

    def slot_variables(self, table: Table) -> list[SlotVariable]:
        """Returns the optimizer's state of a table, see `Variable.slot_variables`.

        The list is empty if the optimizer does not train the table.
        """
        trainer = self._trainer_of_table(table)
        return [] if trainer is None else trainer.slots

    @property
    def table_trainers(self) -> list[TableTrainer]:
        """The trainers of tables without their own optimizer, once this optimizer is built."""
        return list(self._tables.trainers.values())

    @property
    def _rule_optimizer(self) -> Any:
        return _rule_optimizer(self.inner_optimizer)

    @property
    def inner_optimizer(self) -> Any:
        """The Keras optimizer.

        Raises:
            ValueError: If keras.callbacks.SwapEMAWeights reads it to swap its variables.
        """
        asks = isinstance(callers.caller_object(), keras.callbacks.SwapEMAWeights)
        if asks and self.table_trainers:
            raise ValueError(
                "keras.callbacks.SwapEMAWeights does not reach the rows of dynamic tables: leave "
                "it out. Averages take the place of weights at the end of `fit` and, where "
                "`ema_overwrite_frequency` is set, while it runs."
            )
        return self._inner_optimizer

    @property
    def iterations(self) -> Any:
        """The number of steps that the inner optimizer has made."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def variables(self) -> list[Any]:
        """The inner optimizer's variables and the state that it keeps for whole tables."""
        state = [variable for trainer in self.table_trainers for variable in trainer.state]
        return [*self.inner_optimizer.variables, *state]

    def set_weights(self, weights: Any) -> None:
        """Sets `variables`. Rows and slots of tables are not among them.

        Args:
            weights: A list with an array for each variable.

        Raises:
            TypeError: If `weights` is not a list.
            ValueError: If an array is missing, has another shape or has no numbers.
        """
        assign_all(self.variables, weights)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_inner_optimizer" in vars(self):  # Keras has made its part of the object
            check_no_option(name, value)
        super().__setattr__(name, value)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Keeps variables and tables from weight decay; as in Keras.

        Args:
            var_list: A list of variables and anchors. Default: None, no list.
            var_names: A list of parts of names. Default: None, no list.

        Raises:
            ValueError: If the optimizer is built, because its tables would not see the change.
        """
        if self.built:
            raise ValueError(
                f"`exclude_from_weight_decay` of {self.name!r} must be called before the optimizer "
                "is built, which its first step does."
            )
        self._rule_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        """Replaces weights by their averages, with `use_ema`. Keras calls it after training.

        Args:
            var_list: The variables and anchors of the model.
        """
        split = split_variables(var_list)
        self.inner_optimizer.finalize_variable_values(split.dense)
        for anchor in split.anchors:
            trainer = self._trainer_of_table(anchor.table)
            if trainer is not None and anchor.own_trainer is None and not anchor.frozen:
                trainer.finalize()

    def save_own_variables(self, store: Any) -> None:
        """Writes the step and the state of tables outside their rows and slots.

        Keras saves the inner optimizer itself, because it is an attribute.
        """
        keras_file_state.save(store, self._rule_optimizer, self.table_trainers)

    def load_own_variables(self, store: Any) -> None:
        """Loads the step, and prepares the inner optimizer to be loaded by Keras.

        Keras skips an optimizer that is not built, with a warning. The slots of the tables would
        then be of another step.
        """
        arrays = keras_file_state.load_step(store, self.name, self._rule_optimizer)
        if arrays is None:
            return  # saved with another kind of optimizer
        model = callers.model_being_loaded(self)
        if model is not None:
            self.build(model.trainable_variables)
        places = self._tables.trainer_places
        keras_file_state.load_tables(arrays, self.table_trainers, places)

    @override
    def get_config(self) -> dict[str, Any]:
        return {
            "keras_optimizer": keras.optimizers.serialize(self.inner_optimizer),
            "share_slots": self.share_slots,
            "name": self.name,
        }

    @classmethod
    @override
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> DynamicEmbeddingOptimizer:
        inner = optimizer_of_config(config["keras_optimizer"], custom_objects)
        # Earlier files have another name of `share_slots`.
        share_slots = config.get("share_slots", config.get("bp_v2", False))
        return cls(inner, share_slots=share_slots, name=config.get("name"))


@keras.saving.register_keras_serializable(package="tf_embed")
class LossScalingTableOptimizer(DynamicEmbeddingOptimizer, keras.optimizers.LossScaleOptimizer):
    """A `DynamicEmbeddingOptimizer` around a LossScaleOptimizer, which scales the loss.

    It is a LossScaleOptimizer too, because Keras wraps any other optimizer of a mixed_float16 model
    in a LossScaleOptimizer, also when it loads the model.
    """

    def __init__(self, keras_optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(optimizer_of(keras_optimizer), keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "`keras_optimizer` must be a keras.optimizers.LossScaleOptimizer, because Keras "
                "adds none here. Received: keras_optimizer="
                f"{validation.shown(keras_optimizer)}"
            )
        super().__init__(keras_optimizer, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """The settings and the state of the inner optimizer's scaling."""
        if name in ("dynamic_growth_steps", "dynamic_scale", "initial_scale", "step_counter"):
            return getattr(self._inner_optimizer, name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


def _rule_optimizer(optimizer: Any) -> Any:
    """The optimizer whose rule and options count."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer
