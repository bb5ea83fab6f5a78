"""Read a fuzz input as choices: any bytes choose something."""


class Choices:
    """The rest of an input. After its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Return the number of bytes left."""
        return len(self._data) - self._at

    def bytes(self, count: int) -> bytes:
        """Return up to `count` bytes."""
        part = self._data[self._at : self._at + count]
        self._at += len(part)
        return part

    def number(self, width: int) -> int:
        """Return an unsigned number of this many bytes."""
        return int.from_bytes(self.bytes(width).ljust(width, b"\0"), "big")

    def below(self, limit: int) -> int:
        """Return a number from 0 to limit - 1."""
        return self.number(1 if limit <= 256 else 2) % limit
