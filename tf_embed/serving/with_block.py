# SPDX-License-Identifier: Apache-2.0
"""`WithBlock`: a base of classes that are closed by the end of a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from absl import logging


class WithBlock:
    """Is ended by a `with` block. If the block fails, an error of the end is only logged."""

    path: str

    def _end(self) -> None:
        raise AssertionError("Each class of these says what the block ends.")

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
            # The block's own error is raised.
            logging.exception("%s of %r ends with an error.", type(self).__name__, self.path)
