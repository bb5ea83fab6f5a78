"""Paths as plain text: what the engine makes of them here, at a tenth of what pathlib's cost.

Nothing of them is looked up anywhere: they are names on a disk in memory.
"""

from functools import lru_cache


class SimPath(str):
    """A path, as far as the engine asks it."""

    __slots__ = ()

    def __truediv__(self, name: object) -> "SimPath":
        return _join(self, str(name))

    @property
    def parts_of(self) -> tuple["SimPath", str]:
        """The folder and the name in it."""
        return _split(self)

    @property
    def parent(self) -> "SimPath":
        """The folder that it is in."""
        return _split(self)[0]

    @property
    def name(self) -> str:
        """Its last part."""
        return _split(self)[1]

    @property
    def parents(self) -> tuple["SimPath", ...]:
        """All folders above it."""
        found, at = [], self
        while at != "/":
            at = at.parent
            found.append(at)
        return tuple(found)

    def with_name(self, name: str) -> "SimPath":
        """Another name in the same folder."""
        return _join(self.parent, name)

    def absolute(self) -> "SimPath":
        """Itself: there is no working directory."""
        return self

    def resolve(self) -> "SimPath":
        """Itself: nothing leads anywhere else."""
        return self

    def is_mount(self) -> bool:
        """No disk is mounted in another."""
        return False

    def is_relative_to(self, other: str) -> bool:
        """Whether it lies there, or below."""
        return self == other or self.startswith(f"{other}/")


@lru_cache(1 << 16)
def _join(folder: str, name: str) -> SimPath:
    return SimPath(f"{folder}{name}" if folder == "/" else f"{folder}/{name}")


@lru_cache(1 << 16)
def _split(path: str) -> tuple[SimPath, str]:
    folder, _, name = path.rpartition("/")
    return SimPath(folder or "/"), name
