"""Check the types of arguments: whole numbers, flags, sequences; shared by all other checks.

Raises: MessageError, naming everything that is wrong with one argument at once.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from timerstore.errors import MessageError, quoted, typed

_Read = TypeVar("_Read")
Int64Array = npt.NDArray[np.int64]
PROBLEMS_MAX = 5  # named in one error


def refuse_values(
    wrong: npt.NDArray[np.bool_], message: str, values: npt.NDArray[np.generic]
) -> None:
    """Raise MessageError where any is wrong: how many, and the first few."""
    places = np.flatnonzero(wrong)
    if len(places):
        some = ", ".join(f"{values[k]} at {k}" for k in places[:PROBLEMS_MAX])
        raise MessageError(f"{message}; {len(places)} are not: {some}")


def whole(value: object) -> int | None:
    """Give a whole number, numpy's too, as int; None for a bool and for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the question is whether it has one
    except TypeError:
        return None


def check_flag(name: str, value: object) -> bool:
    """Give a flag; MessageError on what is no truth value, though it may count as one."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise MessageError(f"{name}: wanted True or False, got {quoted(value)}")


def each_of(what: str, given: object, read: Callable[[Any], _Read]) -> list[_Read]:
    """Read each of several; MessageError where it is one alone, or says which is wrong first."""
    return [read_of(what, at, one, read) for at, one in enumerate(several(what, given))]


def several(what: str, given: object) -> Iterator[Any]:
    """Give one by one; MessageError where it is one alone.

    A tuple with names is one: receipts are such.
    """
    is_one = isinstance(given, str | bytes) or (
        isinstance(given, tuple) and type(given) is not tuple
    )
    if isinstance(given, Iterable) and not is_one:
        with suppress(TypeError):  # an array of numpy may be one alone, too
            return iter(given)
    raise MessageError(f"{what}: wanted several, got {typed(given)}")


def read_of(what: str, at: int, one: object, read: Callable[[Any], _Read]) -> _Read:
    """Read one of several; MessageError says which it was."""
    try:
        return read(one)
    except MessageError as error:
        raise MessageError([f"{what}[{at}]: {one}" for one in error.problems]) from error
