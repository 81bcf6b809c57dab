# SPDX-License-Identifier: Apache-2.0
"""The table of one variable: a resource that holds every shard, its operations, and its saving.

All shards are in one resource because TensorFlow saves a single resource well. It writes a
SavedModel from a copy of this object with another handle. So the methods that save and restore may
use only the handle and plain Python values. The memory is freed together with this object, as with
TensorFlow's own lookup tables. It does not wait for the handle, because TensorFlow never frees some
of the functions that Keras trains with, and they hold the handle.

The methods take checked tensors; `variable.py` checks them. They may run in many threads at once.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed import _library, callers, validation
from tf_embed.ops import (
    new_table_ops,
    policy_ops,
    pooling_ops,
    slot_ops,
    substitutes,
    turn_ops,
    whole_table_ops,
)
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.ops.whole_table_ops import Exported
from tf_embed.table import callable_rows, joined, lookups, redis_restore, sharding, step_tokens
from tf_embed.table.lookups import Lookup
from tf_embed.table.spread import Local, Spread
from tf_embed.table.table_meta import SavedKind
from tf_embed.table.table_options import TableOptions
from tf_embed.table.trainer_set import TrainerSet

_raw = _library.load()

_numbers = itertools.count()


class Table(tf.saved_model.experimental.TrackableResource):
    """A table and its shards."""

    spread: Spread = Local()  # the processes that have the rows

    def __init__(self, options: TableOptions) -> None:
        with tf.init_scope():  # the handle must not be of a graph that is being traced
            super().__init__(device=options.device)
            self.options = options
            # The table's name in a graph, unique so that no two tables share rows. TensorFlow
            # changes it again in each copy of a SavedModel that is loaded.
            self._shared_name = f"tf_embed/{options.name}/{uuid.uuid4().hex}"
            self._rule: str | ExternalRule | None = None
            self.number = next(_numbers)  # in order of creation
            self.trainers = TrainerSet()  # the trainers that bound a rule
            self.on_update: Callable[[tf.Tensor], Any] | None = None  # told each step's keys
            # Waits for a thread that writes the rows to files, before all rows are replaced.
            self.wait_until_written: Callable[[], object] = lambda: None
            # Held while rows are written to files, so that saves run one at a time.
            self.save_turn = threading.RLock()
            # Raise to reject the rule of an optimizer to bind, or functions to save.
            self.check_rule: Callable[[str | ExternalRule], None] | None = None
            self.check_functions: Callable[[Iterable[Any]], None] | None = None
            self._track_trackable(SavedKind(options.name, options.kind), "kind")
            # Made once, because in eager execution the zeros take longer than a small lookup, and
            # even the size of a dtype takes a part of its time.
            self._has_narrow_keys = options.key_dtype.size == 4
            with tf.device(options.device):
                self._no_owners = tf.zeros([0], tf.int32)
                self._no_rows = tf.zeros([0], options.value_dtype)
            self._host_handle = self.resource_handle
            if options.is_on_gpu:
                self._host_handle = new_table_ops.handle_on_host(self.resource_handle)
            eagerly = self._destruction_context  # TensorFlow destroys a resource in it
            if reason := options.device_reason:  # otherwise it is no table of a user
                logging.info("%r is on %s: %s.", options.name, options.device_text, reason)
            freed = weakref.finalize(self, new_table_ops.destroy, self.resource_handle, eagerly)
            # Memory is freed with the process, but files in a folder would stay.
            freed.atexit = options.storage is not None and options.storage.path is not None

    def _create_resource(self) -> tf.Tensor:
        options = self.options
        initializer = options.initializer
        shared_name = self._name_of_resource()
        return new_table_ops.create_table(
            shared_name=shared_name,
            key_dtype=options.key_dtype,
            value_dtype=options.value_dtype,
            dim=options.dim,
            num_shards=options.num_shards,
            init_size=options.init_size,
            label=options.name,
            initializer=initializer.kind,
            initializer_values=initializer.values,
            seed=initializer.seed,
            table_id=initializer.table_id,
            settings=options.settings(for_graph=shared_name is not None),
        )

    def _name_of_resource(self) -> str | None:
        """The name by which the op finds the table again. None makes each call create a table."""
        return None if tf.executing_eagerly() else self._shared_name

    def _destroy_resource(self) -> None:
        """Does nothing, because it would free the table in use for each copy in a SavedModel."""

    def __copy__(self) -> Table:
        """A copy for a SavedModel: the same table. TensorFlow then sets another handle on it."""
        callers.check_functions_to_save(self.check_functions, self.options.name)
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        """A separate table with the same rows, slots and seed."""
        redis_restore.check_copy(self.options)
        # In `memo` before the rest is copied, because `on_update` may refer to this table.
        copied = memo[id(self)] = type(self)(self.options)
        copied._rule = self._rule
        copied.on_update = copy.deepcopy(self.on_update, memo)
        copied.check_functions = copy.deepcopy(self.check_functions, memo)
        for mine, theirs in zip(self.parts, copied.parts, strict=True):
            theirs.import_(mine.export())
        return copied

    def __repr__(self) -> str:
        options = self.options
        return f"<table of {options.name!r}, dim={options.dim}, shards={options.num_shards}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"The table of {self.options.name!r} can't be pickled: save it with "
            "tf.train.Checkpoint, or keep the keys and rows that `export` gives."
        )

    @property
    def handle_on_host(self) -> tf.Tensor:
        """The handle for ops with arrays on the host; in eager execution they run on the CPU."""
        return self._host_handle if tf.executing_eagerly() else self.resource_handle

    @property
    def handle_for_keys(self) -> tf.Tensor:
        """The handle for ops with keys. Narrow keys and their rows are on the host."""
        return self.handle_on_host if self._has_narrow_keys else self.resource_handle

    @property
    def parts(self) -> tuple[Table, ...]:
        """The tables that hold the rows, each with a resource: itself, unless it has parts."""
        return (self,)

    # Reads and writes.

    def find(
        self,
        keys: tf.Tensor,
        defaults: tf.Tensor | None = None,
        token: tf.Tensor | None = None,
        *,
        training: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Looks up rows, without changing any.

        Args:
            keys: Any shape.
            defaults: Rows of absent keys, [dim] or keys.shape + [dim]; None for initial rows.
            token: The target of the gradient of the rows, see `gradient_ops.token`; or None.
            training: Whether this counts as a use of the rows, if the table keeps statistics.

        Returns:
            Rows, keys.shape + [dim], and whether each key is present, keys.shape.
        """
        stand_in = substitutes.of(self)
        if stand_in is not None:
            return stand_in.find(keys, defaults)
        options = self.options
        draws = defaults is None and options.initializer.is_of_python
        if defaults is None:
            defaults = self._rows_of_engine()
        tokens = [] if token is None else [token]
        training = validation.is_training(training) and options.notes_uses
        inputs = self.handle_for_keys, keys, self._owners(keys), defaults, tokens
        rows, exists = _raw.tf_embed_find(*inputs, dim=options.dim, training=training)
        if draws:
            rows = callable_rows.put_in(options, keys, rows, exists)
        return rows, exists

    def joins(self, lookup: Lookup) -> bool:
        """Whether a lookup can be made together with lookups of other tables."""
        del lookup
        return not self.options.initializer.is_of_python

    def look_up(self, lookup: Lookup) -> tf.Tensor:
        """The result of a lookup, which may be made together with lookups of other tables."""
        answer = lookups.answer_of(lookup)
        return self._look_up(lookup) if answer is None else answer

    def _look_up(self, lookup: Lookup) -> tf.Tensor:
        """Makes a lookup by itself."""
        if lookup.pooling is not None:
            return Table.pool(self, lookup)
        return self.find(lookup.keys, lookup.defaults, lookup.token, training=lookup.training)[0]

    def pool(self, lookup: Lookup) -> tf.Tensor:
        """Makes a pooled lookup of keys that this resource has."""
        options, pooling = self.options, lookup.pooling
        assert pooling is not None  # because it is a pooled lookup
        stand_in = substitutes.of(self)
        if stand_in is not None:
            return stand_in.find_pooled(lookup.keys, pooling, lookup.defaults)
        return pooling_ops.find_pooled(
            *self.inputs_of(lookup),
            lookup.token,
            pooling.bags,
            pooling.weights,
            value_dtype=options.value_dtype,
            dim=options.dim,
            combiner=pooling.combiner,
            padding=pooling.padding,
            training=validation.is_training(lookup.training) and options.notes_uses,
        )

    def find_or_insert(
        self, keys: tf.Tensor, defaults: tf.Tensor | None = None, *, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The same as `find`, but inserts the initial rows of absent keys, or their `defaults`.

        In training, it inserts only the keys that `apply` would insert now.
        """
        inputs = self._inputs_of_write(keys)
        if defaults is None:
            defaults = self._initial_rows(keys, inputs["owners"])
        return _raw.tf_embed_find_or_insert(**inputs, defaults=defaults, training=training)

    def insert_or_assign(
        self, keys: tf.Tensor, values: tf.Tensor, distinct: bool = False
    ) -> tf.Operation | None:
        """Writes rows. The last of equal keys wins. `distinct` is a hint that no keys are equal."""
        done = _raw.tf_embed_insert_or_assign(
            **self._inputs_of_write(keys), values=values, distinct=distinct
        )
        return self._updated(keys, done)

    def accum(
        self, keys: tf.Tensor, old_values: tf.Tensor, new_values: tf.Tensor, exists: tf.Tensor
    ) -> tf.Operation | None:
        """Adds differences to present rows and inserts absent rows; see `Variable.accum`."""
        inputs = self._inputs_of_write(keys)
        done = _raw.tf_embed_accum(
            **inputs, old_values=old_values, new_values=new_values, exists=exists
        )
        return self._updated(keys, done)

    def apply(
        self,
        keys: tf.Tensor,
        gradients: tf.Tensor,
        *,
        rule: str,
        hyper: tf.Tensor,
        step: tf.Tensor,
        distinct: bool = False,
        stochastic_rounding: bool = False,
        unless_frozen: tf.Tensor | None = None,
        joins: bool = False,
    ) -> tf.Operation | None:
        """Applies one step of an optimizer rule. With a token, exactly once.

        Args:
            keys: Any shape. The gradients of equal keys are summed before the rule runs.
            gradients: keys.shape + [dim], of the value dtype. They may be float32 if the value
                dtype is float16 or bfloat16, to avoid overflow and underflow.
            rule: Name of the rule. If the rule is not the present rule, it replaces the table's
                slots.
            hyper: float64 vector, the rule's hyper-parameters, see `optimizers/rules.py`.
            step: int64 scalar, the number of this step; the first is 1.
            distinct: A hint that all keys are distinct, which skips the search for equal keys.
            stochastic_rounding: Rounds float16 and bfloat16 weights up or down without bias. The
                noise is a function of the table's seed and id, the step, the key and the column.
            unless_frozen: Whether to apply the step, a bool scalar. Default: True.
            joins: Whether the step may be made together with steps of other tables, at the end of
                a block of `joined_steps`; then the result is None.
        """
        if self.options.initializer.is_of_python:
            # The fused op can't call Python, so new rows are drawn and inserted before it.
            Table.find_or_insert(self, keys, training=True)  # keys are here already
        token = list(step_tokens.token_of_step())
        arguments = self._inputs_of_write(keys) | {
            "gradients": gradients,
            "hyper": hyper,
            "step": step,
            "rule": rule,
            "distinct": distinct,
            "stochastic_rounding": stochastic_rounding,
        }
        is_alone = not joins or token or arguments["scores"] or self.on_update is not None
        trained = [] if unless_frozen is None else [unless_frozen]
        alone = functools.partial(_raw.tf_embed_apply, **arguments, token=token, trained=trained)
        if not is_alone and joined.join_step(self, arguments, unless_frozen, alone):
            return None
        return self._updated(keys, alone())

    def find_slots(
        self, keys: tf.Tensor, rule: ExternalRule
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Reads rows and slots for an optimizer outside the table, and inserts nothing.

        Args:
            keys: Any shape.
            rule: The optimizer's rule, which becomes the table's.

        Returns:
            Rows, keys.shape + [dim]; their slots, keys.shape + [slots of a row], group after
            group; and whether each key is present, keys.shape. Absent keys have their initial rows
            and slots.
        """
        handle, keys, owners = self._inputs(keys).values()
        return slot_ops.find_slots(
            handle,
            keys,
            owners,
            self._initial_rows(keys, owners),
            dim=self.options.dim,
            slot_dtype=self.options.slot_dtype,
            rule=rule,
        )

    def assign_slots(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        slots: tf.Tensor,
        rule: str | ExternalRule,
        initial_value: float = 0.0,
    ) -> tf.Operation | None:
        """Writes rows and slots in the layout of `find_slots`. The keys must be distinct.

        Keys that admission holds back, and keys without room, are not written. Slots of a fused
        rule have the layout of `read_slots`, with the same `initial_value`.
        """
        handle, keys, owners = self._inputs(keys).values()
        done = slot_ops.assign_slots(
            handle,
            keys,
            owners,
            values,
            slots,
            dim=self.options.dim,
            rule=rule,
            initial_value=initial_value,
            scores=self._scores(keys),
        )
        return self._updated(keys, done)

    def turn(self) -> AbstractContextManager[None]:
        """A lock in order of arrival, for a block that reads rows and writes them back.

        It is not reentrant. The table's own operations do not take it.
        """
        return turn_ops.turn_of(self.resource_handle)

    def read_slots(
        self, keys: tf.Tensor, rule: str | ExternalRule, initial_value: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The slots of a rule, keys.shape + [slots of a row], and whether each key is present.

        The slots are initial for absent keys, or if the table has another rule.
        """
        return slot_ops.read_slots(
            self.handle_on_host,
            keys,
            self._owners(keys),
            slot_dtype=self.options.slot_dtype,
            rule=rule,
            initial_value=initial_value,
        )

    def prefetch(self, keys: tf.Tensor) -> tf.Operation | None:
        """Promotes rows from lower tiers to the first tier. Absent keys are skipped."""
        with tf.device("/CPU:0"):  # also in a function of tf.data, which has no GPU
            return _raw.tf_embed_prefetch(**self._inputs(keys) | {"table": self._host_handle})

    def erase(self, keys: tf.Tensor) -> tf.Operation | None:
        """Removes keys, and gradients that wait for them. Absent keys are ignored."""
        self.trainers.forget(keys)
        return _raw.tf_embed_erase(**self._inputs(keys))

    def clear(self) -> tf.Operation | None:
        """Removes every key, and all gradients that wait."""
        self.wait_until_written()
        self.trainers.forget()
        return _raw.tf_embed_clear(table=self.resource_handle)

    def shrink(self) -> tf.Operation | None:
        """Compacts the table and frees memory."""
        return _raw.tf_embed_shrink(table=self.resource_handle)

    def size(self, shard: int = -1) -> tf.Tensor:
        """Number of keys in a shard, or in all shards if `shard` is -1; int64 scalar."""
        return whole_table_ops.size(self.handle_on_host, shard)

    def export(self, *, with_slots: bool = True, with_policy: bool = True) -> Exported:
        """A consistent snapshot of the whole table; see `whole_table_ops.export`."""
        options = self.options
        return whole_table_ops.export(
            self.handle_on_host,  # an op on the GPU would need room there for all rows once more
            key_dtype=options.key_dtype,
            value_dtype=options.value_dtype,
            slot_dtype=options.slot_dtype,
            dim=options.dim,
            with_slots=with_slots,
            with_policy=with_policy,
        )

    export_all = export  # for checkpoints and Keras files; subclasses gather rows from elsewhere

    def import_(self, saved: Exported) -> tf.Operation | None:
        """Replaces the whole content with an export, from any number of shards.

        Statistics that the export lacks start now. If there are more rows than the bound, the
        policy evicts the first rows in its order.
        """
        self.wait_until_written()
        imported = _raw.tf_embed_import(**saved._asdict() | self._inputs(saved.keys))
        if self._rule is not None and tf.executing_eagerly():
            self.bind_rule(self._rule)  # the export may have another rule
        return imported

    def restrict(
        self, num_reserved: tf.Tensor, order: str, trigger: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Removes the first rows of an order until `num_reserved` are left.

        Args:
            num_reserved: int64 scalar.
            order: A name of `policies.ORDERS` whose statistics the table keeps.
            trigger: The number of rows above which rows are removed, int64 scalar. None removes
                rows always.

        Returns:
            The number of removed rows, int64 scalar.
        """

        def restricted() -> tf.Tensor:
            return policy_ops.restrict(self.handle_on_host, num_reserved, order=order)

        if trigger is None:
            return restricted()
        return tf.cond(self.size() > trigger, restricted, lambda: tf.constant(0, tf.int64))

    def row_statistics(self, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The usage statistics of rows; see `policy_ops.row_statistics`."""
        return policy_ops.row_statistics(self.handle_on_host, keys, self._owners(keys))

    def set_scores(self, keys: tf.Tensor, scores: tf.Tensor) -> tf.Operation | None:
        """Sets the scores of the rows that are present, int64, keys.shape."""
        return policy_ops.set_scores(self.handle_on_host, keys, self._owners(keys), scores)

    def export_scores(self, order: str, split_size: int) -> tuple[tf.Tensor, tf.Tensor]:
        """All keys and their scores in an order; see `policy_ops.export_scores`."""
        return policy_ops.export_scores(
            self.handle_on_host, split_size, key_dtype=self.options.key_dtype, order=order
        )

    @property
    def rule(self) -> str | ExternalRule | None:
        """The optimizer rule that was bound in this process."""
        return self._rule

    @property
    def outlives_process(self) -> bool:
        """Whether the rows are on a server, and so outlive this process and may be shared."""
        return self.options.redis is not None

    @tf.autograph.experimental.do_not_convert  # in a tf.function it would make a tensor of int()
    def bind_rule(self, rule: str | ExternalRule) -> None:
        """Sets the optimizer rule that the table will be trained with.

        If the rule is not the present rule, the next step replaces the slots of all rows and keeps
        their weights. A warning is logged if rows have slots of another rule.
        """
        if self.check_rule is not None:
            self.check_rule(rule)
        self._rule, rows = rule, 0
        with tf.init_scope():
            for part in self.parts:
                part._rule = rule
                rows += int(slot_ops.rows_of_other_rule(part.resource_handle, rule=rule))
        if rows:  # no error: a change of the optimizer may be meant
            logging.warning(
                "%r is now trained by the rule %r: the optimizer slots of its %d rows, of another "
                "rule, start anew; their weights are kept.",
                self.options.name,
                rule if isinstance(rule, str) else "external",
                rows,
            )

    @tf.autograph.experimental.do_not_convert
    def drop_slots(self) -> None:
        """Removes the optimizer slots of all rows. The next step initializes them again."""
        with tf.init_scope():
            handles = [part.resource_handle for part in self.parts]
            # The rule of SGD has no slots.
            if not any(int(slot_ops.rows_of_other_rule(one, rule="sgd")) for one in handles):
                return
            logging.info("%r has a new optimizer: its slots start anew.", self.options.name)
            no_keys = tf.zeros([0], self.options.key_dtype)
            # Binding a rule without slots removes them, and other threads may use the rows.
            for part in self.parts:
                with part.turn():
                    part.find_slots(no_keys, ExternalRule(id=0, widths=(), initial_values=()))

    # Saving. Called on this object, and on copies of it with another handle.

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        with_all = callers.saves_all(self.options.name)
        return self.export_all(with_slots=with_all, with_policy=with_all)._asdict()

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return redis_restore.restore(self, Exported(**restored_tensors))

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children = dict(super()._trackable_children(save_type, **kwargs))
        if save_type != "checkpoint":
            children.pop("kind")
        return children

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        """Raises: an asynchronous save, which calls this, would have rows of a later step."""
        raise ValueError(
            f"The table of {self.options.name!r} can't be saved by an asynchronous checkpoint: "
            "leave tf.train.CheckpointOptions(enable_async=True) out."
        )

    def _updated(self, keys: tf.Tensor, done: tf.Operation | None) -> tf.Operation | None:
        """Calls `on_update` after a step. `done` is the operation of the step."""
        if self.on_update is not None:
            with tf.control_dependencies([] if done is None else [done]):
                distinct, _ = pooling_ops.unique_keys(tf.reshape(keys, [-1]), self.handle_for_keys)
                self.on_update(distinct)
        return done

    def _scores(self, keys: tf.Tensor) -> list[tf.Tensor]:
        """The `scores` argument of the ops that write: the policy's scores for the keys."""
        policy = self.options.policy
        return [] if policy is None else policy.scores(keys, self.options.name)

    def _inputs(self, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """The inputs that all ops on keys share."""
        return {"table": self.handle_for_keys, "keys": keys, "owners": self._owners(keys)}

    def inputs_of(self, lookup: Lookup) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The inputs of an op for a lookup: the handle, keys, owners, and defaults."""
        handle, keys, owners = self._inputs(lookup.keys).values()
        if lookup.defaults is not None:
            return handle, keys, owners, lookup.defaults
        padding = None if lookup.pooling is None else lookup.pooling.padding
        return handle, keys, owners, self._initial_rows(keys, owners, padding)

    def _inputs_of_write(self, keys: tf.Tensor) -> dict[str, Any]:
        """The arguments that all ops that write rows of keys share."""
        options = {"dim": self.options.dim, "scores": self._scores(keys)}
        return self._inputs(keys) | options

    def _owners(self, keys: tf.Tensor) -> tf.Tensor:
        options = self.options
        owners = sharding.owners(keys, options.num_shards, options.partition_fn, options.name)
        if owners is not None:
            return owners
        return self._no_owners if tf.executing_eagerly() else tf.zeros([0], tf.int32)

    def _initial_rows(
        self, keys: tf.Tensor, owners: tf.Tensor, padding: pooling_ops.Padding | None = None
    ) -> tf.Tensor:
        """The `defaults` argument of the ops that gives absent keys initial rows."""
        rows = self._rows_of_engine()
        if not self.options.initializer.is_of_python:
            return rows
        return callable_rows.defaults(
            self.resource_handle, self.options, keys, owners, rows, padding
        )

    def _rows_of_engine(self) -> tf.Tensor:
        """The `defaults` input that makes the engine draw initial rows."""
        options = self.options
        if options.initializer.strings:
            return tf.constant(options.initializer.strings)
        return self._no_rows if tf.executing_eagerly() else tf.zeros([0], options.value_dtype)
