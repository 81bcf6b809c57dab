"""One optimizer for the dense variables and the dynamic tables of a model."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import keras

from tf_embed.anchor import Anchor, calling_optimizers
from tf_embed.optimizers.rules import FusedTrainer, check_fused, optimizer_of, step_variable


@dataclasses.dataclass(frozen=True)
class _Split:
    """The variables of a model; in an object of its own, so that Keras does not track them."""

    variables: list[Any]
    anchors: list[Anchor]
    dense: list[Any]


@keras.saving.register_keras_serializable(package="tf_embed")
class DynamicEmbeddingOptimizer(keras.optimizers.Optimizer):
    """Lets a Keras optimizer train dynamic tables too.

    Dense variables are trained by the optimizer itself. The rows of tables are trained by the
    same rule with the same hyper-parameters, learning rate, schedule and step, in the table: only
    rows that a step touches change, also by weight decay, and gradients of equal keys are summed
    first. A table that has an optimizer of its own is trained by that.

    Args:
        keras_optimizer: SGD, Adagrad, Adam or AdamW of keras.optimizers,
            `tf_embed.optimizers.RowWiseAdagrad`, or the name of one. Its options clipnorm,
            clipvalue, global_clipnorm, use_ema, loss_scale_factor and
            gradient_accumulation_steps are not supported yet.
        bp_v2: Stored. Rows are always updated in place, which is what bp_v2 is for.
        synchronous: Stored. There is one process so far.
        name: Name of the optimizer.

    Raises:
        ValueError: The optimizer has no rule for tables, or an unsupported option.

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

    def __init__(
        self,
        keras_optimizer: Any,
        bp_v2: bool = False,
        synchronous: bool = False,
        name: str | None = None,
    ) -> None:
        keras_optimizer = optimizer_of(keras_optimizer)
        trainer = FusedTrainer(keras_optimizer)
        super().__init__(learning_rate=0.0, name=name or "dynamic_embedding_optimizer")
        self.inner_optimizer = keras_optimizer
        self.bp_v2 = bool(bp_v2)
        self.synchronous = bool(synchronous)
        self._trainer = trainer
        self._split: _Split | None = None

    def build(self, variables: list[Any]) -> None:
        """Makes the optimizer's variables and chooses the rule of each table.

        Args:
            variables: The trainable variables of the model.

        Raises:
            ValueError: A keras.optimizers.LossScaleOptimizer wraps this one.
        """
        if self.built:
            return
        for outer in calling_optimizers():
            if isinstance(outer, keras.optimizers.LossScaleOptimizer):
                raise ValueError(
                    f"{self.name!r} must not be wrapped in a LossScaleOptimizer, as "
                    "model.compile does where the dtype policy is mixed_float16: use "
                    f'"mixed_bfloat16", or compile(auto_scale_loss=False). Received: {outer.name!r}'
                )
        check_fused(self.inner_optimizer)  # an option may have been set since
        split = _split(variables)
        super().build(split.variables)
        self.inner_optimizer.build(split.dense)
        for anchor in split.anchors:
            if anchor.own_trainer is None:
                anchor.table.bind_rule(self._trainer.rule)
        self._split = split

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Updates variables and tables by gradients.

        Args:
            grads: The gradients, None where there is none; for the anchor of a table a
                tf.IndexedSlices.
            trainable_variables: The variable of each gradient. By default those that the
                optimizer was built with.

        Raises:
            ValueError: A gradient of a table is not a tf.IndexedSlices.
        """
        grads = list(grads)
        if not grads:
            return
        if trainable_variables is None:
            if self._split is None:
                raise ValueError(
                    "`trainable_variables` must be given until the optimizer is built. Received: "
                    "trainable_variables=None"
                )
            trainable_variables = self._split.variables
        trainable_variables = list(trainable_variables)
        if len(grads) != len(trainable_variables):
            raise ValueError(
                "`grads` must have one gradient for each of `trainable_variables`. Received: "
                f"{len(grads)} gradients, {len(trainable_variables)} variables"
            )
        if not self.built:
            self.build(trainable_variables)
        if all(gradient is None for gradient in grads):
            raise ValueError("`grads` must have a gradient for some variable. Received: only None")
        dense_grads: list[Any] = []
        dense: list[Any] = []
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if not isinstance(variable, Anchor):
                dense_grads.append(gradient)
                dense.append(variable)
            elif gradient is not None:
                self._update(variable, gradient)
        if any(gradient is not None for gradient in dense_grads):
            self.inner_optimizer.apply(dense_grads, dense)
        else:
            self._trainer.advance()

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """As `apply`, from pairs. Gives `iterations`."""
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return self.iterations

    def _update(self, anchor: Anchor, gradient: Any) -> None:
        anchor.check_gradient(gradient)
        if anchor.own_trainer is not None:
            anchor.assign(gradient)
        elif anchor.trainable:
            anchor.update(gradient, self._trainer)

    @property
    def iterations(self) -> Any:
        """Number of steps made: the inner optimizer's."""
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
        """The inner optimizer's variables."""
        return self.inner_optimizer.variables

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Keeps variables and tables from weight decay; as in Keras."""
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        """What Keras calls when training ends."""
        self.inner_optimizer.finalize_variable_values(_split(var_list).dense)

    def save_own_variables(self, store: Any) -> None:
        """Writes the step; Keras saves the inner optimizer, an attribute, by itself."""
        store["step"] = step_variable(self.inner_optimizer).numpy()

    def load_own_variables(self, store: Any) -> None:
        """Makes ready for Keras to load the inner optimizer, and sees to the step.

        Keras skips an optimizer that is not built, with a warning, as one that a model has not used
        yet. The tables would have slots of another step then.
        """
        if "step" not in store.keys():  # noqa: SIM118, a store is no dict
            return
        model = _loading_model(self)
        if model is not None and not self.built:
            self.build(model.trainable_variables)
        step_variable(self.inner_optimizer).assign(store["step"])

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "keras_optimizer": keras.optimizers.serialize(self.inner_optimizer),
            "bp_v2": self.bp_v2,
            "synchronous": self.synchronous,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> DynamicEmbeddingOptimizer:
        """The optimizer of a config."""
        inner = keras.optimizers.deserialize(
            config["keras_optimizer"], custom_objects=custom_objects
        )
        return cls(**{**config, "keras_optimizer": inner})


def _split(variables: Any) -> _Split:
    variables = list(variables)
    return _Split(
        variables=variables,
        anchors=[variable for variable in variables if isinstance(variable, Anchor)],
        dense=[variable for variable in variables if not isinstance(variable, Anchor)],
    )


def _loading_model(optimizer: keras.optimizers.Optimizer) -> keras.Model | None:
    """The model that was compiled with an optimizer and is just being loaded.

    An optimizer knows no model, so the callers are looked at. Where none is found, what Keras loads
    of an optimizer that is not built is left as it is.
    """
    frame = inspect.currentframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, keras.Model) and getattr(value, "optimizer", None) is optimizer:
                return value
        frame = frame.f_back
    return None
