# SPDX-License-Identifier: Apache-2.0
"""`JoinedTables`: the tables of an optimizer, in places that a checkpoint finds again by name."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed.optimizers.trainer import TableTrainer
from tf_embed.variable.anchor import Anchor

_NUMBER = re.compile(r"_(\d+)(?=/|$)")  # that Keras gives to a name that was in use


class _SavedPlaces(tf.train.experimental.PythonState):
    """The table in each place, in a checkpoint. TensorFlow reads it before any tensor.

    Args:
        owner: The optimizer's name.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.now: dict[str, str] = {}
        self.restored: dict[str, str] = {}

    def serialize(self) -> str:
        """The table names by place, as they are saved."""
        return json.dumps(self.now)

    def deserialize(self, string_value: Any) -> None:
        """Takes the saved names, for tables that join later.

        Raises:
            ValueError: If a table that has joined is in the place of another one.
        """
        restored = json.loads(tf.compat.as_text(string_value))
        places = _matches(list(self.now.values()), restored)
        # Tables may have been renamed, if each of the checkpoint's is there.
        left = [place for place in restored if place not in places]
        if len(left) == places.count(None):
            places = [left.pop(0) if place is None else place for place in places]
        kept = [place if place in restored else None for place in self.now]
        if places != kept:
            raise ValueError(
                f"{self._owner!r} can't be restored: its tables have joined it as "
                f"{list(self.now.values())}, and those of the checkpoint as "
                f"{list(restored.values())}. Restore before the first step, and give tables the "
                "same names."
            )
        self.restored = restored


class _Places(tf.Module):
    """Objects of tables. The dict is there before its members, so a checkpoint can wait for them.

    Args:
        owner: The optimizer's name.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner
        self.saved = _SavedPlaces(owner)
        self.members: dict[str, Any] = {}

    def places_of(self, names: Sequence[str]) -> tuple[list[str | None], list[str]]:
        """Returns the place of each name in the restored checkpoint, or None; and names left there.

        Raises:
            ValueError: If the place of a name isn't clear.
        """
        saved = self.saved
        free = {place: name for place, name in saved.restored.items() if place not in saved.now}
        places = _matches(names, free)
        left = [name for place, name in free.items() if place not in places]
        for place, name in zip(places, names, strict=True):
            # It may be new. If it is one of the checkpoint's, it would get the rows of another.
            if place is None and _stem(name) in map(_stem, left):
                raise ValueError(
                    f"{self._owner!r} can't restore {name!r}, which may be any of {left} in the "
                    "checkpoint: give tables the same names, or call `build` with the variables of "
                    "all of them."
                )
        return places, left

    def add(self, members: Sequence[Any], names: Sequence[str]) -> None:
        """Adds objects, each in the place where a restored checkpoint has its name.

        Raises:
            ValueError: As `places_of`.
        """
        saved = self.saved
        places, left = self.places_of(names)
        following = 1 + max(map(int, (*saved.now, *saved.restored)), default=-1)
        for place, name, member in zip(places, names, members, strict=True):
            if place is None:
                place, following = str(following), following + 1
                if left:
                    # Not an error, because the table may be new since the checkpoint.
                    logging.warning(
                        "%r restores nothing for %r: the checkpoint has no table of this name. Not "
                        "restored so far: %s",
                        self._owner,
                        name,
                        left,
                    )
            saved.now[place] = name
            self.members[place] = member


class JoinedTables(tf.Module):
    """The anchors and trainers of an optimizer's tables, in the order of joining.

    A checkpoint has each in a numbered place, and the table names of all places. Tables may join in
    another order after a restore. Names that end with a number are ordered by it if none of them is
    in the checkpoint, because Keras numbers the layers of all models of a process.

    Args:
        owner: The optimizer's name.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._anchors = _Places(owner)
        self._trainers = _Places(owner)

    def check(self, anchors: Sequence[Anchor], trainers: Sequence[TableTrainer]) -> None:
        """Does nothing, or raises the error that `add` would raise."""
        self._anchors.places_of(_names_of_anchors(anchors))
        self._trainers.places_of(_names_of_trainers(trainers))

    def add(self, anchors: Sequence[Anchor], trainers: Sequence[TableTrainer]) -> None:
        """Adds tables, which join together.

        Args:
            anchors: Their anchors.
            trainers: The trainers of those without an optimizer of their own.

        Raises:
            ValueError: If it isn't clear which of the tables of a restored checkpoint one is.
        """
        self._anchors.add(anchors, _names_of_anchors(anchors))
        self._trainers.add(trainers, _names_of_trainers(trainers))

    @property
    def anchors(self) -> list[Anchor]:
        """The anchors."""
        return list(self._anchors.members.values())

    @property
    def trainers(self) -> list[TableTrainer]:
        """The trainers."""
        return list(self._trainers.members.values())


def _names_of_anchors(anchors: Sequence[Anchor]) -> list[str]:
    return [anchor.table_name for anchor in anchors]


def _names_of_trainers(trainers: Sequence[TableTrainer]) -> list[str]:
    return [trainer.table.options.name for trainer in trainers]


def _matches(names: Sequence[str], saved: dict[str, str]) -> list[str | None]:
    """Returns the place of each name, or None.

    Args:
        names: The names of tables.
        saved: The names by place.
    """
    places: list[str | None] = [None] * len(names)
    free = dict(saved)
    for i, name in enumerate(names):
        places[i] = next((place for place, other in free.items() if other == name), None)
        free.pop(places[i] or "", None)
    for stem in {_stem(name) for place, name in zip(places, names, strict=True) if place is None}:
        unknown = [i for i, name in enumerate(names) if places[i] is None and _stem(name) == stem]
        alike = [place for place, name in free.items() if _stem(name) == stem]
        if len(unknown) == len(alike):
            unknown.sort(key=lambda i: _numbers(names[i]))
            alike.sort(key=lambda place: _numbers(saved[place]))
            for i, place in zip(unknown, alike, strict=True):
                places[i] = place
    return places


def _stem(name: str) -> str:
    """A name without the numbers."""
    return _NUMBER.sub("", name)


def _numbers(name: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(name)]
