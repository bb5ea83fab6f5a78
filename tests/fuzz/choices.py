"""A fuzz input read as choices: whatever its bytes are, they choose something."""


class Choices:
    """What is left of an input. Behind its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self._at

    def bytes(self, count: int) -> bytes:
        """As many bytes as there are, `count` at most."""
        part = self._data[self._at : self._at + count]
        self._at += len(part)
        return part

    def number(self, width: int) -> int:
        """Give an unsigned number of so many bytes."""
        return int.from_bytes(self.bytes(width).ljust(width, b"\0"), "big")

    def below(self, limit: int) -> int:
        """Give one of 0 to limit - 1."""
        return self.number(1 if limit <= 256 else 2) % limit
