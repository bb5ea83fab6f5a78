"""The base of every class that owns descriptors, maps, threads, locks or C memory.

Two objects cannot own the same resource. The finalizer of a copy would close the resource of the
original, and the number of a closed descriptor is soon reused for another file.

Invariants:
    1. copy, deepcopy and pickle of an owner raise TypeError before a second object exists. So does
       a copy of an object that refers to one, also through a bound method.
    2. The finalizer of an owner also works if `__init__` did not complete.
"""

from typing import NoReturn, SupportsIndex


class Owner:
    """Cannot be copied or pickled."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        reject_copy(self)

    def __reduce__(self) -> NoReturn:
        reject_copy(self)


def reject_copy(owner: object) -> NoReturn:
    """Raise the TypeError for a copy or pickle of an owner."""
    name = type(owner).__name__
    raise TypeError(
        f"{name}: wanted an object that can be copied or pickled, got {name}, which owns files, "
        "threads, locks or memory of this process; share this one between threads, or open another"
    )
