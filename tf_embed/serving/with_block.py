# SPDX-License-Identifier: Apache-2.0
"""`WithBlock`: a base of classes that the end of a `with` block closes."""

from __future__ import annotations

import abc
from types import TracebackType

from absl import logging
from typing_extensions import Self


class WithBlock(abc.ABC):
    """A class that the end of a `with` block closes. Subclasses implement `_end`.

    If the block fails, its error is raised, and an error of `_end` is logged.
    """

    path: str

    @abc.abstractmethod
    def _end(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._end()
        except Exception:
            if error is None:
                raise
            # The user's own error goes on; this one would hide it.
            logging.exception("%s of %r ends with an error.", type(self).__name__, self.path)
