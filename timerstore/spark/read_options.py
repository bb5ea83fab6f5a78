"""Parse and check the options of a reader.

| option                  | default   | meaning                                                    |
|-------------------------|-----------|------------------------------------------------------------|
| path, paths             | -         | a store or a shard directory; `paths` is a JSON list       |
| table                   | messages  | messages, timers, timer_units, slots, deliveries,          |
|                         |           | transactions                                               |
| shards                  | all       | for example "0-3,7"                                        |
| columns                 | see below | for example "deliver_at,topic"; a user schema also works;  |
|                         |           | "*" stands for all                                         |
| topics                  | all       | for example "orders,mail": keep rows of these topics       |
| keys                    | all       | for example "4711,4712": keep messages with one of these   |
|                         |           | keys; for the tables messages, timers and deliveries       |
| properties              | all       | names of the properties in the column `properties`         |
| ledger                  | false     | whether `messages` has the records of ingested versions    |
| deliver_from_ms, _to_ms | -         | range of deliver_at (slot_at for slots) in epoch ms; the   |
|                         |           | lower bound is included, the upper bound is not            |
| stored_from_ms, _to_ms  | -         | the same for stored_at, delivered_at or enqueued_at        |
| clock_step_ms           | 3600000   | skip parts of the log whose first records were stored more |
|                         |           | than this outside the range; raise it if a clock ran ahead |
|                         |           | by more and was then set back                              |
| pushdown                | false     | accepted without effect: Spark filters do not narrow reads |
| time_type               | timestamp | or long: epoch ms, 1.3 times as fast to group by           |
| max_partition_bytes     | 256m      | approximate number of log bytes that a task reads          |
| batch_bytes, batch_rows | 4m, 10000 | a batch ends when either limit is reached                  |
| on_corrupt              | fail      | or skip, stop: see columns/table_scan.py                |
| verify_crc              | true      | check the checksum of each record                          |
| as_of                   | now       | JSON of latest_offsets(path): pins the state that is read  |
| precision_ms            | detected  | for a broker's store whose wheel does not show it          |

| option of streams       | default   | meaning                                                    |
|-------------------------|-----------|------------------------------------------------------------|
| starting_offsets        | earliest  | or timestamp:<ms>, or JSON of latest_offsets(path)         |
| max_records_per_trigger | -         | maximum log records of a batch, over all tables            |
| max_bytes_per_trigger   | -         | maximum log bytes of a batch                               |
| fail_on_data_loss       | true      | raise if retention removed data before the stream read it  |

Without `columns` and a user schema, a read has all columns but `body` and `properties`. Spark does
not say which columns a query uses, so each row would carry them, also for a count.

Spark plans a DataFrame or view at its first query, and later queries see the same state. Load it
again to see newer rows. A plan narrowed by the filters of the first query would also be used by
later queries. For this reason filters do not narrow a read; the options above do.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from timerstore._engine.snapshot.columns.schemas import TABLES, chosen
from timerstore._engine.snapshot.columns.table_scan import ON_CORRUPT, Bounds, Wanted
from timerstore._engine.storage.anchor import absolute_path
from timerstore.errors import ConfigError
from timerstore.shards.write_options import OPTION_NAMES
from timerstore.spark import offsets
from timerstore.spark.locations import local_path, store_paths
from timerstore.spark.offsets import Position

Value = TypeVar("Value")

READER_OPTIONS = frozenset(
    {"path", "paths", "table", "shards", "columns", "topics", "keys", "ledger", "properties"}
    | {"deliver_from_ms", "deliver_to_ms"}
    | {"stored_from_ms", "stored_to_ms", "pushdown", "time_type", "max_partition_bytes"}
    | {"batch_bytes", "batch_rows", "on_corrupt", "verify_crc", "as_of", "precision_ms"}
    | {"clock_step_ms", "starting_offsets", "max_records_per_trigger", "max_bytes_per_trigger"}
    | {"fail_on_data_loss"}
)
_WRITER_OPTIONS = frozenset(OPTION_NAMES)
"""Writer options: a temporary view used with INSERT has these in addition."""

_ONLY_BY_NAME = ("body", "properties")
_NOT_MESSAGES = ("timer_units", "slots", "transactions")
_SIZE = re.compile(r"([0-9]+)([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a reader."""

    paths: tuple[Path, ...]
    table: str = "messages"
    shards: frozenset[int] | None = None
    columns: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    clock_step_ms: int = 3_600_000
    times_as_long: bool = False
    max_partition_bytes: int = 256 << 20
    batch_bytes: int = 4 << 20
    batch_rows: int = 10_000
    on_corrupt: Any = "fail"
    verify_crc: bool = True
    as_of: dict[int, Position] | None = None
    precision_ms: int | None = None
    with_ledger: bool = False
    property_names: tuple[str, ...] | None = None
    starting_offsets: str = "earliest"
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True

    def wanted(self, columns: tuple[str, ...], *, times_as_long: bool) -> Wanted:
        """Return the scan of these columns, to send to the tasks."""
        return Wanted(
            self.table,
            columns,
            self.bounds,
            times_as_long=times_as_long,
            verify_crc=self.verify_crc,
            on_corrupt=self.on_corrupt,
            batch_rows=self.batch_rows,
            batch_bytes=self.batch_bytes,
            with_ledger=self.with_ledger,
            property_names=self.property_names,
        )

    def absolute_path(self) -> "ReadOptions":
        """Return a copy with paths made absolute from the current working directory."""
        return replace(self, paths=tuple(absolute_path("path", one) for one in self.paths))


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Parse Spark's options. Raise ConfigError, which lists all problems."""
    return _Parser(given).run()


class _Parser:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._problems: list[str] = []

    def run(self) -> ReadOptions:
        for name in sorted(self._given.keys() - READER_OPTIONS - _WRITER_OPTIONS):
            self._problems.append(
                f"{name}: unknown option; known: {', '.join(sorted(READER_OPTIONS))}"
            )
        table = self._get("table", _one_of(*TABLES), "messages")
        paths = self._paths()
        columns = self._get("columns", lambda text: _names(text.lower()), ())
        every = tuple(column.name for column in TABLES[table])
        if columns == ("*",):
            columns = every
        elif columns:
            try:
                chosen(table, columns)
            except ConfigError as error:
                self._problems.extend(error.problems)
        else:
            columns = tuple(name for name in every if name not in _ONLY_BY_NAME)
        self._get("pushdown", _boolean)
        options = ReadOptions(
            paths=paths,
            table=table,
            shards=self._get("shards", _shards, None),
            columns=columns,
            bounds=self._bounds(table),
            clock_step_ms=self._get("clock_step_ms", _whole(0, 2**62), 3_600_000),
            times_as_long=self._get("time_type", _one_of("timestamp", "long"), "") == "long",
            max_partition_bytes=self._get("max_partition_bytes", _size(64 << 10), 256 << 20),
            batch_bytes=self._get("batch_bytes", _size(1, 512 << 20), 4 << 20),
            batch_rows=self._get("batch_rows", _whole(1, 1_000_000), 10_000),
            on_corrupt=self._get("on_corrupt", _one_of(*ON_CORRUPT), "fail"),
            verify_crc=self._get("verify_crc", _boolean, default=True),
            as_of=self._get("as_of", lambda one: offsets.read("as_of", one), None),
            precision_ms=self._get("precision_ms", _whole(1, 3_600_000), None),
            with_ledger=self._get("ledger", _boolean, default=False),
            property_names=self._get("properties", _names, None),
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
        single = self._get("path", store_paths, ())
        if not listed and not single and not self._problems:
            self._problems.append(
                "path: missing; Spark drops the options of CREATE TABLE ... USING timerstore: use "
                "CREATE TEMPORARY VIEW, or SELECT ... WITH (`path` = '...')"
            )
        return (*single, *listed)

    def _bounds(self, table: str) -> Bounds:
        topics, keys = self._get("topics", _names, None), self._get("keys", _names, None)
        for name, given in (("topics", topics), ("keys", keys)):
            if given is not None and table in _NOT_MESSAGES:
                self._problems.append(f"{name}: table {table} has no {name}")
        time = _whole(-_INT64, _INT64)
        return Bounds(
            self._get("deliver_from_ms", time, None),
            self._get("deliver_to_ms", time, None),
            self._get("stored_from_ms", time, None),
            self._get("stored_to_ms", time, None),
            topics,
            keys,
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
            raise ConfigError(f"wanted bytes as 1048576 or 1m, from {low} to {high}, got {text!r}")
        return size

    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(one.strip() for one in text.split(","))
    if not all(names):
        raise ConfigError(f"wanted names separated by commas, got {text!r}")
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
    return tuple(local_path("paths", one) for one in found)


def _starting(text: str) -> str:
    if text == "latest":
        raise ConfigError(
            "latest would mean another position after each restart; give the result of "
            "timerstore.spark.latest_offsets(path)"
        )
    if text == "earliest" or re.fullmatch(r"timestamp:-?[0-9]{1,18}", text):
        return text
    offsets.read("starting_offsets", text)
    return text
