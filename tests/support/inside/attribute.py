"""An attribute or a constant of the engine that a test reads or replaces."""

from typing import Any, NamedTuple


class Attribute(NamedTuple):
    """A private attribute or method that tests replace: its owner, and its name there.

    monkeypatch.setattr(*DISPATCH_READ, read)
    DISPATCH_READ.value        what is there now
    """

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        """What the owner has under this name now."""
        return getattr(self.owner, self.name)
