# SPDX-License-Identifier: Apache-2.0
"""`WithBlock`: a base of classes that are closed by the end of a `with` block."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

from absl import logging


class WithBlock(abc.ABC):
    """A class that the end of a `with` block closes, by `_end`, which subclasses implement.

    If the block fails, its own error is raised, and one of `_end` is logged.
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
            # The error of the block itself is raised.
            logging.exception("%s of %r ends with an error.", type(self).__name__, self.path)
