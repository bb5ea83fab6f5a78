"""Check the types of arguments: whole numbers, flags and sequences.

Raises: MessageError, with every problem of one argument.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from timerstore.errors import ConfigError, MessageError, quoted, typed
from timerstore.types.clock import Clock
from timerstore.types.config import StoreConfig

# --- argument types ---


_Read = TypeVar("_Read")
Int64Array = npt.NDArray[np.int64]
PROBLEMS_MAX = 5  # listed in one error


def refuse_values(
    wrong: npt.NDArray[np.bool_], message: str, values: npt.NDArray[np.generic]
) -> None:
    """Raise MessageError if any value is wrong, with their number and the first few."""
    places = np.flatnonzero(wrong)
    if len(places):
        some = ", ".join(f"{values[k]} at {k}" for k in places[:PROBLEMS_MAX])
        raise MessageError(f"{message}; {len(places)} are not: {some}")


def whole(value: object) -> int | None:
    """Return a whole number (also one of numpy) as int; None for a bool or any other type."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # TypeError if it has no index
    except TypeError:
        return None


def check_flag(name: str, value: object) -> bool:
    """Return a flag as bool. MessageError on any type other than bool, also a number."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise MessageError(f"{name}: wanted True or False, got {quoted(value)}")


def each_of(what: str, given: object, read: Callable[[Any], _Read]) -> list[_Read]:
    """Parse each item of a sequence.

    Raises:
        MessageError: `given` is a single item, or an item is wrong; the error has its index.
    """
    return [read_of(what, at, one, read) for at, one in enumerate(several(what, given))]


def several(what: str, given: object) -> Iterator[Any]:
    """Return an iterator over several items. MessageError on a single item.

    Text, bytes and named tuples (receipts are named tuples) count as single items.
    """
    is_one = isinstance(given, str | bytes) or (
        isinstance(given, tuple) and type(given) is not tuple
    )
    if isinstance(given, Iterable) and not is_one:
        with suppress(TypeError):  # a numpy array may be a single item (no dimensions)
            return iter(given)
    raise MessageError(f"{what}: wanted several, got {typed(given)}")


def read_of(what: str, at: int, one: object, read: Callable[[Any], _Read]) -> _Read:
    """Parse one item of a sequence. The text of a MessageError begins with its index."""
    try:
        return read(one)
    except MessageError as error:
        raise MessageError([f"{what}[{at}]: {one}" for one in error.problems]) from error


# --- config check ---
# Check the configuration and the clock that a caller passes to open a store.


def check_config(config: object, clock: object) -> None:
    """Raise ConfigError unless these are a StoreConfig (or None) and a Clock (or None)."""
    problems = []
    if config is not None and not isinstance(config, StoreConfig):
        problems.append(f"config: wanted a StoreConfig, got {type(config).__name__}")
    elif config is not None and ":" in config.store_address[0]:
        problems.append(
            f"store_host: wanted an IPv4 address (this release only reads IPv6), got "
            f"{config.store_host!r}"
        )
    if clock is not None and not isinstance(clock, Clock):
        problems.append(f"clock: wanted a Clock, got {type(clock).__name__}")
    if problems:
        raise ConfigError(problems)
