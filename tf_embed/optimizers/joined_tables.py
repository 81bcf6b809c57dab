# SPDX-License-Identifier: Apache-2.0
"""`JoinedTables`: the tables of an optimizer, in numbered places that a save names."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_embed.optimizers.trainer import TableTrainer
from tf_embed.variable.anchor import Anchor

_NUMBER = re.compile(r"_(\d+)(?=/|$)")  # Keras adds it to a layer's name


@dataclasses.dataclass(frozen=True)
class _Name:
    """The name of a table."""

    text: str
    is_automatic: bool  # numbered by Keras, over all models of a process


class Places:
    """The table name of each place, now and in the restored checkpoint."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._now: dict[str, _Name] = {}
        self._restored: dict[str, str] = {}

    def saved(self) -> dict[str, str]:
        """The names by place, as saved."""
        return {place: name.text for place, name in self._now.items()}

    def restore(self, saved: dict[str, str]) -> None:
        """Remembers the saved names, for tables that join later.

        Raises:
            ValueError: If a joined table is in the place of another table.
        """
        places = self.places_in(saved)
        if places != [place if place in saved else None for place in self._now]:
            raise ValueError(
                f"{self._owner!r} can't be restored: its tables have joined it as "
                f"{list(self.saved().values())}, and those of the checkpoint as "
                f"{list(saved.values())}. Restore before the first step, and give tables the same "
                "names."
            )
        self._restored = saved

    def places_in(self, saved: Mapping[str, str]) -> list[str | None]:
        """Returns the place of each table that has joined in a save, or None.

        Tables whose names are not in the save are taken for renamed tables, in the same order, if
        the save has as many unmatched names.

        Args:
            saved: The names by place.

        Raises:
            ValueError: If the place of a name isn't clear.
        """
        places = self._matches(list(self._now.values()), saved)
        left = [place for place in saved if place not in places]
        if len(left) != places.count(None):
            return places
        for i, name in enumerate(self._now.values()):
            if places[i] is None:
                places[i] = place = left.pop(0)
                # Nothing is lost, but the user may have meant a new table.
                logging.warning(
                    "%r restores %r from %r, as if it had been renamed",
                    self._owner,
                    name.text,
                    saved[place],
                )
        return places

    def check(self, names: Sequence[_Name]) -> None:
        """Refuses tables whose place in the restored checkpoint isn't clear.

        Raises:
            ValueError: If it isn't.
        """
        self._matches(names, self._free())

    def take(self, names: Sequence[_Name]) -> list[str]:
        """Returns the place of each table that joins: the saved place of its name, or a new place.

        Raises:
            ValueError: As `check`.
        """
        free = self._free()
        taken = []
        following = 1 + max(map(int, (*self._now, *self._restored)), default=-1)
        places = self._matches(names, free)
        left = [name for place, name in free.items() if place not in places]
        for place, name in zip(places, names, strict=True):
            if place is None:
                place, following = str(following), following + 1
                if left:
                    # Not an error, because the table may be new since the checkpoint.
                    logging.warning(
                        "%r restores nothing for %r: the checkpoint has no table of this name. Not "
                        "restored so far: %s",
                        self._owner,
                        name.text,
                        left,
                    )
            self._now[place] = name
            taken.append(place)
        return taken

    def _free(self) -> dict[str, str]:
        return {place: name for place, name in self._restored.items() if place not in self._now}

    def _matches(self, names: Sequence[_Name], saved: Mapping[str, str]) -> list[str | None]:
        """Returns the place of each name in a save, or None.

        Raises:
            ValueError: If several tables may have the name.
        """
        places: list[str | None] = [None] * len(names)
        # Automatic names last, because they may match any name that is left.
        groups = [(name.is_automatic, _key(name)) for name in names]
        for is_automatic, key in sorted(set(groups)):
            members = [i for i, group in enumerate(groups) if group == (is_automatic, key)]
            found = [
                place
                for place, text in saved.items()
                if place not in places and _key(_Name(text, is_automatic)) == key
            ]
            if not found:
                continue
            if len(found) != len(members):
                raise ValueError(
                    f"{self._owner!r} can't restore {names[members[0]].text!r}, which may be any "
                    f"of {[saved[place] for place in found]} in the save: give each table a name, "
                    "the same as in the save, or call `build` with the variables of all of them."
                )
            if is_automatic:
                members.sort(key=lambda i: _numbers(names[i].text))
                found.sort(key=lambda place: _numbers(saved[place]))
            for i, place in zip(members, found, strict=True):
                places[i] = place
        return places


class JoinedTables(tf.Module, tf.train.experimental.PythonState):
    """The anchors and trainers of an optimizer's tables.

    A checkpoint has each table in a numbered place, and the names of all tables. A table that joins
    a restored optimizer gets the place of its name, whatever the order. Keras numbers the layers of
    all models of a process, so automatic names are matched by the order of their numbers, if there
    are as many in the checkpoint.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.anchor_places = Places(owner)
        self.trainer_places = Places(owner)
        # By place. The dicts exist before their members, so that a checkpoint can wait for the
        # members.
        self.anchors: dict[str, Anchor] = {}
        self.trainers: dict[str, TableTrainer] = {}

    def serialize(self) -> str:
        """The names by place, for a checkpoint."""
        return json.dumps([self.anchor_places.saved(), self.trainer_places.saved()])

    def deserialize(self, string_value: Any) -> None:
        """Takes the names of a checkpoint. TensorFlow calls it before it reads any tensor.

        Raises:
            ValueError: If a joined table is in the place of another table.
        """
        anchors, trainers = json.loads(tf.compat.as_text(string_value))
        self.anchor_places.restore(anchors)
        self.trainer_places.restore(trainers)

    def check(self, anchors: Sequence[Anchor], trainers: Sequence[TableTrainer]) -> None:
        """Does nothing, or raises the error that `add` would raise."""
        self.anchor_places.check(_names_of_anchors(anchors))
        self.trainer_places.check(_names_of_trainers(anchors, trainers))

    def add(self, anchors: Sequence[Anchor], trainers: Sequence[TableTrainer]) -> None:
        """Adds tables, which join together. A table with its own optimizer has no trainer here.

        Raises:
            ValueError: If a table can't be matched to the tables of a restored checkpoint.
        """
        places = self.anchor_places.take(_names_of_anchors(anchors))
        for place, anchor in zip(places, anchors, strict=True):
            self.anchors[place] = anchor
        places = self.trainer_places.take(_names_of_trainers(anchors, trainers))
        for place, trainer in zip(places, trainers, strict=True):
            self.trainers[place] = trainer


def _names_of_anchors(anchors: Sequence[Anchor]) -> list[_Name]:
    return [_Name(anchor.table_name, anchor.has_automatic_name) for anchor in anchors]


def _names_of_trainers(anchors: Sequence[Anchor], trainers: Sequence[TableTrainer]) -> list[_Name]:
    is_automatic = {id(anchor.table): anchor.has_automatic_name for anchor in anchors}
    tables = [trainer.table for trainer in trainers]
    return [_Name(table.options.name, is_automatic[id(table)]) for table in tables]


def _key(name: _Name) -> str:
    """The part of a name that tells tables apart: all of it, unless Keras has numbered it."""
    return _NUMBER.sub("", name.text) if name.is_automatic else name.text


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]
