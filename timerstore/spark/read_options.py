"""Options of a reader, checked at once.

| option                  | default   | meaning                                                    |
|-------------------------|-----------|------------------------------------------------------------|
| path, paths             | -         | a store, or a directory of shards; JSON list of several    |
| table                   | messages  | messages, timers, slots, deliveries, transactions          |
| shards                  | all       | as "0-3,7"                                                 |
| columns                 | all       | as "deliver_at,topic"; a user schema does the same         |
| topics                  | all       | as "orders,mail": rows with one of these in column topic   |
| deliver_from_ms, _to_ms | -         | deliver_at (of slots: slot_at) from, and below; epoch ms   |
| stored_from_ms, _to_ms  | -         | stored_at, delivered_at or enqueued_at, the same way       |
| clock_step_ms           | 3600000   | parts of the log whose edges were stored longer before, or |
|                         |           | after, are not read: set it higher to find every row where |
|                         |           | a clock ran ahead by more and was set back                 |
| pushdown                | false     | taken, but Spark's filters narrow nothing: see below       |
| time_type               | timestamp | or long: epoch ms; 1.3 times as fast to group by           |
| max_partition_bytes     | 128m      | bytes of the log a task reads, about                       |
| batch_bytes, batch_rows | 4m, 10000 | a batch ends where either is reached                       |
| on_corrupt              | fail      | skip, stop: columns/damage_policy.py                       |
| verify_crc              | true      |                                                            |
| as_of                   | now       | latest_offsets(path): two reads see the same               |
| precision_ms            | found out | of a broker's store whose wheel shows none                 |

| of streams              | default   | meaning                                                    |
|-------------------------|-----------|------------------------------------------------------------|
| starting_offsets        | earliest  | timestamp:<ms>, or JSON as of latest_offsets(path)         |
| max_records_per_trigger | -         | records of the log, of any table                           |
| max_bytes_per_trigger   | -         | bytes of the log                                           |
| fail_on_data_loss       | true      | where retention was faster than the stream                 |

Spark plans a DataFrame or a view at its first query, and its later ones see the same moment: load
it again to see what came since. So a plan that the first one's filters had narrowed would be read
by all of them, and filters narrow nothing that is read; the options above do.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from timerstore._engine.snapshot.columns.damage_policy import ON_CORRUPT
from timerstore._engine.snapshot.columns.schemas import TABLES, chosen
from timerstore._engine.snapshot.columns.table_scan import Bounds, Wanted
from timerstore._engine.storage.paths import absolute_path
from timerstore.errors import ConfigError
from timerstore.shards.write_options import OPTION_NAMES
from timerstore.spark import offsets
from timerstore.spark.offsets import Position
from timerstore.spark.roots import root_of

Value = TypeVar("Value")

READER_OPTIONS = frozenset(
    {"path", "paths", "table", "shards", "columns", "topics", "deliver_from_ms", "deliver_to_ms"}
    | {"stored_from_ms", "stored_to_ms", "pushdown", "time_type", "max_partition_bytes"}
    | {"batch_bytes", "batch_rows", "on_corrupt", "verify_crc", "as_of", "precision_ms"}
    | {"clock_step_ms", "starting_offsets", "max_records_per_trigger", "max_bytes_per_trigger"}
    | {"fail_on_data_loss"}
)
_WRITER_OPTIONS = frozenset(OPTION_NAMES)
"""A temporary view that is inserted into has these beside the reader's."""

_NO_TOPICS = ("timers", "slots", "transactions")
_SIZE = re.compile(r"([0-9]+)([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader was told. `anchored`: the same from where the process is now."""

    paths: tuple[Path, ...]
    table: str = "messages"
    shards: frozenset[int] | None = None
    columns: tuple[str, ...] | None = None
    bounds: Bounds = field(default_factory=Bounds)
    clock_step_ms: int = 3_600_000
    times_as_long: bool = False
    max_partition_bytes: int = 128 << 20
    batch_bytes: int = 4 << 20
    batch_rows: int = 10_000
    on_corrupt: Any = "fail"
    verify_crc: bool = True
    as_of: dict[int, Position] | None = None
    precision_ms: int | None = None
    starting_offsets: str = "earliest"
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    def wanted(self, columns: tuple[str, ...], *, times_as_long: bool) -> Wanted:
        """Give what tasks are told, for the columns of a schema."""
        return Wanted(
            self.table,
            columns,
            self.bounds,
            times_as_long=times_as_long,
            verify_crc=self.verify_crc,
            on_corrupt=self.on_corrupt,
            batch_rows=self.batch_rows,
            batch_bytes=self.batch_bytes,
        )

    def absolute_path(self) -> "ReadOptions":
        """Give the same with absolute paths: a relative one means what it means now."""
        return replace(self, paths=tuple(absolute_path("path", one) for one in self.paths))


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Read Spark's options; ConfigError lists all that is wrong with them."""
    return _Parser(given).run()


class _Parser:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._problems: list[str] = []

    def run(self) -> ReadOptions:
        for name in sorted(self._given.keys() - READER_OPTIONS - _WRITER_OPTIONS):
            self._problems.append(
                f"{name}: no such option; there are {', '.join(sorted(READER_OPTIONS))}"
            )
        table = self._get("table", _one_of(*TABLES), "messages")
        paths = self._paths()
        columns = self._get("columns", _names, None)
        if columns is not None:
            try:
                chosen(table, columns)
            except ConfigError as error:
                self._problems.extend(error.problems)
        self._get("pushdown", _boolean)
        options = ReadOptions(
            paths=paths,
            table=table,
            shards=self._get("shards", _shards, None),
            columns=columns,
            bounds=self._bounds(table),
            clock_step_ms=self._get("clock_step_ms", _whole(0, 2**62), 3_600_000),
            times_as_long=self._get("time_type", _one_of("timestamp", "long"), "") == "long",
            max_partition_bytes=self._get("max_partition_bytes", _size(64 << 10), 128 << 20),
            batch_bytes=self._get("batch_bytes", _size(1, 512 << 20), 4 << 20),
            batch_rows=self._get("batch_rows", _whole(1, 1_000_000), 10_000),
            on_corrupt=self._get("on_corrupt", _one_of(*ON_CORRUPT), "fail"),
            verify_crc=self._get("verify_crc", _boolean, default=True),
            as_of=self._get("as_of", lambda one: offsets.read("as_of", one), None),
            precision_ms=self._get("precision_ms", _whole(1, 3_600_000), None),
            starting_offsets=self._get("starting_offsets", _starting, "earliest"),
            max_records_per_trigger=self._get("max_records_per_trigger", _whole(1), None),
            max_bytes_per_trigger=self._get("max_bytes_per_trigger", _size(1), None),
            fail_on_data_loss=self._get("fail_on_data_loss", _boolean, default=True),
        )
        if self._problems:
            raise ConfigError(self._problems)
        return options

    def _get(self, name: str, read: Callable[[str], Value], default: Any = None) -> Any:
        if name not in self._given:
            return default
        try:
            return read(self._given[name])
        except ConfigError as error:
            text = error.problems
            self._problems.extend(
                one if one.startswith(f"{name}:") else f"{name}: {one}" for one in text
            )
            return default

    def _paths(self) -> tuple[Path, ...]:
        listed = self._get("paths", _path_list, ())
        single = self._get("path", lambda text: (root_of(text),) if text else (), ())
        if not listed and not single and not self._problems:
            self._problems.append(
                "path: none was given; after CREATE TABLE ... USING timerstore Spark forgets all "
                "options: use CREATE TEMPORARY VIEW, or SELECT ... WITH (`path` = '...')"
            )
        return (*single, *listed)

    def _bounds(self, table: str) -> Bounds:
        topics = self._get("topics", _names, None)
        if topics is not None and table in _NO_TOPICS:
            self._problems.append(f"topics: table {table} has no topic")
        time = _whole(-_INT64, _INT64)
        return Bounds(
            self._get("deliver_from_ms", time, None),
            self._get("deliver_to_ms", time, None),
            self._get("stored_from_ms", time, None),
            self._get("stored_to_ms", time, None),
            topics,
        )


def _one_of(*wanted: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in wanted:
            raise ConfigError(f"wanted one of {', '.join(wanted)}, got {text!r}")
        return text

    return read


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"wanted true or false, got {text!r}")
    return text.lower() == "true"


def _whole(low: int, high: int = _INT64) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ConfigError(f"wanted a whole number from {low} to {high}, got {text!r}")
        return int(text)

    return read


def _size(low: int, high: int = _INT64) -> Callable[[str], int]:
    def read(text: str) -> int:
        found = _SIZE.fullmatch(text)
        size = int(found[1]) * _UNITS[found[2].lower()] if found else -1
        if not low <= size <= high:
            raise ConfigError(f"wanted bytes as 1048576 or 1m, {low} to {high}, got {text!r}")
        return size

    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in text.split(","))
    if not all(names):
        raise ConfigError(f"wanted names with commas between, got {text!r}")
    return names


def _shards(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        edges = re.fullmatch(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?", part)
        low, high = (int(edges[1]), int(edges[2] or edges[1])) if edges else (1, 0)
        if low > high:
            raise ConfigError(f'wanted shards as "0-3,7", got {text!r}')
        found.update(range(low, high + 1))
    return frozenset(found)


def _path_list(text: str) -> tuple[Path, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise ConfigError(f"wanted a JSON list of paths, got {text!r}")
    return tuple(root_of(one) for one in found)


def _starting(text: str) -> str:
    if text == "latest":
        raise ConfigError(
            "latest would be another place after each restart; give what "
            "timerstore.spark.latest_offsets(path) says now"
        )
    if text == "earliest" or re.fullmatch(r"timestamp:-?[0-9]{1,18}", text):
        return text
    offsets.read("starting_offsets", text)
    return text
