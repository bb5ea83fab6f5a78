"""Odd values for arguments: what programs pass by mistake, or from another library."""

import array
import enum
import mmap
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np

from tests.support.bench import NOW

WAITS = {
    "seven", "many", "digits", "part", "endless", "int64", "uint64", "scalar", "float32", "float64",
    "level",
}  # fmt: skip
"""Values that `wait=` would wait for, or might."""

GOOD: dict[str, Any] = {
    "topic": "t", "body": b"x", "bodies": [b"x", b"y"], "queue_id": 0, "offset": 0, "group": "g",
    "key": "k", "source": "s", "version": 1, "time_ms": NOW, "per_second": 5, "name": "n",
    "receipt": "x", "half": "x",
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "put_every": {"every": 60.0},
    "put_every.cron": {},
    "put.replace": {"key": "k", "delay": 5.0},
    "put.unique": {"key": "k", "delay": 5.0},
    "put.key": {"replace": True, "delay": 5.0},
    "put.wait_at_most": {"key": "k", "replace": True, "delay": 5.0},
    "reschedule": {"delay": 5.0},
}
"""Arguments passed together with the odd value, so that the call checks it."""
ASKED = (
    "lease",
    "max_count",
    "wait",
    "tags",
    "sql",
    "max_attempts",
    "backoff",
    "ordered",
    "nothing_such",
)


class Odd:
    """Has no text, no truth, no hash, and is equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("neither")

    def __eq__(self, other: object) -> bool:
        raise ValueError("who knows")

    def __repr__(self) -> str:
        raise RuntimeError("nothing to say")


class Name(str):
    """As those of templates and XML libraries: its own text is another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"

    def __format__(self, _form: str) -> str:
        return "another text"


class Body(bytes):
    """As those of serializers."""

    __slots__ = ()


class Word(enum.StrEnum):
    """A member is text."""

    X = "x"
    T = "t"


class Mixed(str, enum.Enum):  # noqa: UP042 - its text is not its value
    """A member is text, and shows itself as another one."""

    X = "x"


class Plain(enum.Enum):
    """A member is no text."""

    X = "x"


class Level(enum.IntEnum):
    """A member is a whole number."""

    ONE = 1


class Moment(datetime):
    """As pandas.Timestamp."""


class Pairs(Mapping[str, str]):
    """A mapping that is no dict."""

    def __getitem__(self, name: str) -> str:
        return {"a": "b"}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("a",))

    def __len__(self) -> int:
        return 1


def _mapped() -> mmap.mmap:
    memory = mmap.mmap(-1, 4)
    memory[:] = b"mmap"
    return memory


EARLY, LATE = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))


def odd_values() -> dict[str, Any]:
    """Return the values by their kinds. Those that can be read once are new ones."""
    return {
        "none": None, "true": True, "seven": 7, "below": -1, "many": 10**30, "digits": 10**5000,
        "part": 1.5, "nan": float("nan"), "endless": float("inf"), "below all": -float("inf"),
        "text": "x", "empty": "", "surrogate": "\ud800", "in text": "a\udc80b", "nul": "a\0b",
        "long": "x" * 5000, "bytes": b"x", "list": [1], "lists": [[1]], "dict": {"a": 1},
        "tuple": (1, 2), "set": {1}, "array": np.array([1, 2]), "scalar": np.array(3),
        "no rows": np.array([]), "texts": np.array(["a", "b"]), "bools": np.array([True, False]),
        "int64": np.int64(5), "uint64": np.uint64(2**64 - 1), "span64": np.timedelta64(1, "s"),
        "day64": np.datetime64("2030"), "float32": np.float32(1.5), "float64": np.float64(2.5),
        "bool64": np.True_, "object": object(), "odd": Odd(), "type": int, "call": len,
        "naive": datetime(2030, 1, 1),  # noqa: DTZ001
        "last": datetime.max.replace(tzinfo=UTC),
        "early": datetime(1, 1, 1, tzinfo=EARLY), "late": datetime.max.replace(tzinfo=LATE),
        "moment": Moment(2023, 11, 15, tzinfo=EARLY), "day": date(2030, 1, 1),
        "span": timedelta.max, "below span": timedelta(-1), "short span": timedelta(seconds=1),
        "decimal": Decimal("1.5"), "fraction": Fraction(3, 2), "complex": 1j,
        "path": Path("x\ud800"), "uuid": UUID(int=7),
        "str64": np.str_("x"), "name": Name("x"), "word": Word.X, "mixed": Mixed.X,
        "member": Plain.X, "level": Level.ONE, "bytes64": np.bytes_(b"x"), "body": Body(b"x"),
        "bytearray": bytearray(b"x"), "buffer": array.array("B", b"x"), "view": memoryview(b"x"),
        "steps": memoryview(b"abcd")[::2], "mmap": _mapped(),
        "proxy": MappingProxyType({"a": "b"}), "pairs": Pairs(), "ordered": OrderedDict(a="b"),
        "names": {Name("a"): Name("b")}, "word list": [Word.X, Name("y")], "deque": deque(["x"]),
        "texts in tuple": ("x", "y"), "frozen": frozenset({"x"}), "nothing": frozenset(),
        "generator": (one for one in ("x", "y")), "range": range(2),
    }  # fmt: skip
