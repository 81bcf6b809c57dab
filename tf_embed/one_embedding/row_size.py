# SPDX-License-Identifier: Apache-2.0
"""`RowSize`: a check of `size_factor` and `storage_dim` against the optimizer."""

from __future__ import annotations

import dataclasses

from tf_embed import _library
from tf_embed.one_embedding.store_options import StoreOptions
from tf_embed.ops.slot_ops import ExternalRule


@dataclasses.dataclass(frozen=True)
class RowSize:
    """The size of a row, as given by the user."""

    owner: str
    dim: int
    store: StoreOptions

    def check(self, rule: str | ExternalRule) -> None:
        """Checks that the size fits the optimizer.

        Raises:
            ValueError: If the size does not fit. The message names the right size.
        """
        numbers = self.dim + _slots_of(rule, self.dim)
        if self.store.storage_dim != -1:
            # OneFlow stores the last step in 8 bytes, aligned to 8.
            even = numbers + numbers % 2 if rule == "smart_decay_adam" else numbers
            if self.store.storage_dim not in (numbers, even):
                raise ValueError(
                    f"`storage_dim` of the `store_options` of {self.owner!r} must be {numbers}, or "
                    f"-1: its optimizer keeps {numbers - self.dim} numbers beside {self.dim} "
                    f"weights. Received: storage_dim={self.store.storage_dim}"
                )
        elif self.store.size_factor is not None and self.store.size_factor * self.dim != numbers:
            whole = f"size_factor={numbers // self.dim}"
            right = whole if numbers % self.dim == 0 else f"storage_dim={numbers}"
            raise ValueError(
                f"`size_factor` of the `store_options` of {self.owner!r} must be left out, or "
                f"{right}: its optimizer keeps {numbers - self.dim} numbers beside {self.dim} "
                f"weights. Received: size_factor={self.store.size_factor}"
            )


def _slots_of(rule: str | ExternalRule, dim: int) -> int:
    """Returns the number of slot values that a rule keeps for a row."""
    if not isinstance(rule, str):
        return sum(rule.widths)
    slots = _library.vocabulary()["rules"][rule]
    return slots["wide_slots"] * dim + slots["row_slots"]
