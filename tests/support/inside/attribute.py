"""An attribute or a constant of the engine that a test reads or replaces."""

from typing import Any, NamedTuple


class Attribute(NamedTuple):
    """A private attribute or method that tests replace: its owner, and its name there.

    monkeypatch.setattr(*DISPATCH_READ, read)
    DISPATCH_READ.value        the present value
    """

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        """Return the owner's present value of this name."""
        return getattr(self.owner, self.name)
