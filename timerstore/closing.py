"""Closing: what `with` does for everything that has a `close`."""

from types import TracebackType
from typing import Self


class Closing:
    """Closed at the end of its `with` block, whatever ended it."""

    __slots__ = ()

    def close(self) -> None:
        """Let go of what it has."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
