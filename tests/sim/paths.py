"""Paths as plain text, with the few methods that the engine uses here.

They cost a tenth of pathlib's paths. No path is looked up in a real file system: it is a name on a
disk in memory.
"""

from functools import lru_cache


class SimPath(str):
    """A path, with the methods that the engine needs."""

    __slots__ = ()

    def __truediv__(self, name: object) -> "SimPath":
        return _join(self, str(name))

    @property
    def parts_of(self) -> tuple["SimPath", str]:
        """Return the folder, and the name in it."""
        return _split(self)

    @property
    def parent(self) -> "SimPath":
        """Return the folder of the path."""
        return _split(self)[0]

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return _split(self)[1]

    @property
    def parents(self) -> tuple["SimPath", ...]:
        """Return all folders above the path."""
        found, at = [], self
        while at != "/":
            at = at.parent
            found.append(at)
        return tuple(found)

    def with_name(self, name: str) -> "SimPath":
        """Return the path with another name in the same folder."""
        return _join(self.parent, name)

    def absolute(self) -> "SimPath":
        """Return the path itself: there is no working directory."""
        return self

    def resolve(self) -> "SimPath":
        """Return the path itself: there are no links."""
        return self

    def is_mount(self) -> bool:
        """Return False: no disk is mounted in another."""
        return False

    def is_relative_to(self, other: str) -> bool:
        """Return whether the path is the other one, or below it."""
        return self == other or self.startswith(f"{other}/")


@lru_cache(1 << 16)
def _join(folder: str, name: str) -> SimPath:
    return SimPath(f"{folder}{name}" if folder == "/" else f"{folder}/{name}")


@lru_cache(1 << 16)
def _split(path: str) -> tuple[SimPath, str]:
    folder, _, name = path.rpartition("/")
    return SimPath(folder or "/"), name
