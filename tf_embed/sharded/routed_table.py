# SPDX-License-Identifier: Apache-2.0
"""`RoutedTable`: the base of tables whose rows are sharded over processes or devices."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from typing_extensions import override

from tf_embed import callers
from tf_embed.ops import pooling_ops
from tf_embed.ops.slot_ops import ExternalRule
from tf_embed.ops.whole_table_ops import Exported
from tf_embed.table import admission_counts
from tf_embed.table.lookups import Lookup
from tf_embed.table.policies import share_of
from tf_embed.table.table import Table
from tf_embed.table.table_options import TableOptions


class RoutedTable(Table):
    """A table whose operations group keys by the process, or the device, that owns them."""

    _advice = ""  # an alternative, for messages about unsupported options

    def __copy__(self) -> Table:
        # TensorFlow copies each resource when it writes a SavedModel, before it requests rows.
        if callers.saves_a_model():
            self.spread.check_export("a SavedModel", self.options.name)
        return super().__copy__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        raise ValueError(
            f"The table of {self.options.name!r} can't be copied: it is {self.spread.where}."
        )

    @override
    def joins(self, lookup: Lookup) -> bool:
        return False

    @override
    def _look_up(self, lookup: Lookup) -> tf.Tensor:
        """Fetches the rows of the distinct keys, and pools them here."""
        if lookup.pooling is None:
            return super()._look_up(lookup)
        wide = pooling_ops.compute_dtype(self.options.value_dtype)

        def rows_of(some: tf.Tensor) -> tf.Tensor:
            rows = dataclasses.replace(lookup, keys=some, pooling=None)
            return tf.cast(self._look_up(rows), wide)

        return lookup.pooling.find_and_pool(lookup.keys, rows_of, self.options.dim)

    @override
    def find_slots(
        self, keys: tf.Tensor, rule: ExternalRule
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        raise self._refused("an optimizer whose rule runs outside of the table")

    @override
    def assign_slots(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        slots: tf.Tensor,
        rule: str | ExternalRule,
        initial_value: float = 0.0,
    ) -> tf.Operation | None:
        raise self._refused("slots that are written from outside")

    def _with_shape(self, rows: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(rows, keys.shape.concatenate([self.options.dim]))

    def _with_defaults(
        self, rows: tf.Tensor, exists: tf.Tensor, defaults: tf.Tensor | None
    ) -> tf.Tensor:
        """Rows, with the defaults of absent keys, which have gradients like all rows."""

        @tf.custom_gradient
        def replaced(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            with_defaults = tf.where(exists[..., tf.newaxis], rows, tf.cast(defaults, rows.dtype))
            return with_defaults, lambda gradient: gradient

        return rows if defaults is None else replaced(rows)

    def _refused(self, what: str) -> ValueError:
        return ValueError(
            f"The table of {self.options.name!r} is {self.spread.where}, which does not work with "
            f"{what}.{self._advice}"
        )

    # Saving.

    @property
    def _counts_keys(self) -> bool:
        policy = self.options.policy
        has_counts = policy is not None and policy.admission is not None
        return has_counts and admission_counts.knows_keys(self.options)

    def _check_counts(self) -> None:
        """Refuses to gather admission counts in one array if they do not name their keys.

        Raises:
            ValueError: If they do not.
        """
        if not admission_counts.knows_keys(self.options):
            raise self._refused(
                "checkpoints and files of Keras if its policy has a `BloomAdmission`, or an "
                "`admission` of strings, whose counts are those of one part: use "
                "`save_rows`"
            )

    def _owned(self, saved: Exported, owns: Callable[[tf.Tensor], tf.Tensor]) -> Exported:
        """The rows of an export that a part owns: `owns` maps keys [n] to bool [n]."""
        mine = owns(saved.keys)

        def rows(all_rows: tf.Tensor) -> tf.Tensor:
            # An export without slots or statistics has arrays without rows, which pass unchanged.
            has_rows = tf.equal(tf.shape(all_rows)[0], tf.shape(mine)[0])
            return tf.cond(has_rows, lambda: tf.boolean_mask(all_rows, mine), lambda: all_rows)

        policy = saved.policy
        if self._counts_keys:
            policy = admission_counts.chosen(policy, owns, self.options.key_dtype)
        return saved._replace(
            keys=tf.boolean_mask(saved.keys, mine),
            values=rows(saved.values),
            slots=rows(saved.slots),
            statistics=rows(saved.statistics),
            policy=policy,
        )


def share_of_options(options: TableOptions, number: int, count: int, process: str) -> TableOptions:
    """The options of a process's table: a share of the bounds, and a separate folder.

    Args:
        options: The options of the whole table.
        number: The number of this process.
        process: "worker" or "server", for messages.

    Raises:
        ValueError: If the bound is less than a row for each process.
    """
    policy = options.policy
    if policy is not None and policy.max_rows is not None:
        if policy.max_rows < count:
            raise ValueError(
                f"`max_rows` of {options.name!r} must be at least {count}, a row for each "
                f"{process}. Received: max_rows={policy.max_rows}"
            )
        policy = share_of(policy, number, count)
    storage = options.storage
    if storage is not None and storage.path is not None:
        path = os.path.join(storage.path, f"{process}_{number}")
        storage = dataclasses.replace(storage, path=path)
    return dataclasses.replace(
        options, policy=policy, storage=storage, init_size=-(-options.init_size // count)
    )
