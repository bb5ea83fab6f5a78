"""Plant a bug: replace a method, a rule or a call into C by a wrong one for a while.

The engine's own code knows nothing of planted bugs.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from tests.support.inside.engine import ffi, lib

Patches = Iterator[Any]


class Mutant(NamedTuple):
    """A planted bug."""

    name: str
    says: str
    patches: Callable[[], Patches]
    equivalent: str = ""  # why it is no bug in this design, if it is not
    needs: str = ""  # a schedule without an operation or setting of this name cannot detect the bug


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, says: str, equivalent: str = "", needs: str = "") -> Callable[[Any], Any]:
    """Register the replacements that a function yields under a name."""

    def register(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        assert name not in MUTANTS, f"two mutants have one name: {name}"
        MUTANTS[name] = Mutant(name, says, patches, equivalent, needs)
        return patches

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run the block with a bug in the engine."""
    with ExitStack() as stack:
        for one in MUTANTS[name].patches():
            stack.enter_context(one)
        yield


class Lib:
    """The C library, with some calls replaced."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)


def nothing(*_args: Any, **_given: Any) -> None:
    """Do nothing."""


def swap(owner: Any, name: str, value: Any) -> Any:
    """Replace a method."""
    return patch.object(owner, name, value)


def set_states(native: Any, ids: Any, state: int) -> None:
    """Set the states of timer ids to waiting, handed over or cancelled."""
    each = np.ascontiguousarray(ids, np.int64)
    lib.ts_states_set_many(native, ffi.from_buffer("int64_t[]", each), len(each), state)
