"""Owner: the base of every class that owns descriptors, maps, threads, locks or C memory.

Two objects cannot own the same: the finalizer of a copy would close what the other one uses, and
the number of a closed descriptor soon is that of another file.

Invariants:
    1. copy, deepcopy and pickle of an owner raise TypeError before a second object exists. So does
       a copy of whatever holds one, also by a bound method.
    2. A finalizer of an owner works on one that was never initialised.
"""

from typing import NoReturn, SupportsIndex


class Owner:
    """Cannot be copied or pickled."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn:
        refuse_copy(self)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)


def refuse_copy(owner: object) -> NoReturn:
    """Raise the TypeError of a copy or pickle of an owner."""
    name = type(owner).__name__
    raise TypeError(
        f"{name}: wanted an object that can be copied or pickled, got {name}, which owns files, "
        "threads, locks or memory of this process; share this one (threads may), or open another "
        "where it is needed"
    )
