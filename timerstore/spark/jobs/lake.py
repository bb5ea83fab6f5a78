"""The cold lake: far timers as Parquet files by day of delivery, and the claims on these files.

On-disk format:
    deliver_day=2026-11-21/<run>-00000.parquet   rows with the columns COLUMNS
    _runs/<run>.json                             a committed append, with the names of its files
    _promotions/2026-11-21/0000000000.json       a claim: a set of files of that day to promote
    _promotions/2026-11-21/0000000000.done       the same claim after the shards have its rows
    _tombstones/*.parquet                        message_id of messages cancelled in the lake
    _staging/<run>/                              an unfinished append
    _lake.json                                   the format, and the id of the lake
Thread safety: any number of processes may use a lake. Each file that decides something is created
    only if absent, and is durable before anything depends on it.
Invariants:
    1. A file counts as soon as the record of its run exists and names it.
    2. A file is in at most one claim of its day, so it is promoted once. The rows of a claim are
       scheduled under (source, version) = (promote.<lake id>.<day>, number of the claim), and
       a shard ingests a version once.
    3. Files appended to a day after its promotion are claimed separately.
    4. All claims of a day are read before the next one is created. Their numbers have no gap.
Raises: ConfigError if a directory is not a lake. CorruptError if a record is unreadable.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import Json
from timerstore._engine.storage.disk import Disk, is_temporary_of
from timerstore.errors import ConfigError, CorruptError, FormatVersionError

FORMAT = 1
COLUMNS = ("topic", "message_id", "deliver_ms", "body", "key", "tags")
"""Types: text, text, int64, binary, text, text. A file may lack the last two columns."""

DAY_PREFIX = "deliver_day="
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CLAIM = re.compile(r"([0-9]{10})\.json")


class LakeFile(NamedTuple):
    """One Parquet file. `name` is its name in the directory of its day."""

    day: date
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A set of files of one day that are promoted together."""

    day: date
    number: int
    files: tuple[str, ...]
    rows: int


class Lake:
    """A cold lake. Use `open_lake` to open or create one."""

    def __init__(self, root: Path, lake_id: str, disk: Disk) -> None:
        self.root = root
        self.id = lake_id
        self._disk = disk

    # --- appending ---

    def run(self, run_id: str) -> tuple[LakeFile, ...] | None:
        """Return the files of a committed append, or None if it is not committed."""
        found = self._run(run_id)
        if found is not None:
            self._disk.sync_directory(
                self._runs
            )  # its creator may have been killed before the sync
        return found

    def _run(self, run_id: str) -> tuple[LakeFile, ...] | None:
        path = self._run_path(run_id)
        text = self._disk.read_small(path)
        return None if text is None else tuple(_files_of(_read(text, path), path))

    def staging(self, run_id: str) -> Path:
        """Return the staging directory of a run. Files left by a killed run are overwritten."""
        return self.root / "_staging" / check_run_id(run_id)

    def commit_run(self, run_id: str, files: Iterable[LakeFile]) -> tuple[LakeFile, ...]:
        """Commit the files of a run. Return its files, which may be those of an earlier commit."""
        path = self._run_path(run_id)
        told = sorted(files)
        table: Json = {
            "format": FORMAT,
            "run": run_id,
            "files": [
                {"day": one.day.isoformat(), "name": one.name, "rows": one.rows, "bytes": one.bytes}
                for one in told
            ],
        }
        self._disk.make_directory(path.parent)
        self._disk.create_small(path, _text(table))
        found = self.run(run_id)
        assert found is not None, "written above"
        return found

    def day_folder(self, day: date) -> Path:
        """Return the directory of a day of delivery."""
        return self.root / f"{DAY_PREFIX}{day.isoformat()}"

    def files(self) -> Iterator[LakeFile]:
        """Yield every file of a committed run."""
        names = self._disk.list(self._runs)
        if names:
            self._disk.sync_directory(self._runs)
        for name in sorted(names):
            if name.endswith(".json") and not name.startswith("."):
                yield from self._run(name.removesuffix(".json")) or ()

    # --- promoting ---

    def claims(self, day: date) -> tuple[Claim, ...]:
        """Return the claims of a day in order. They are durable, as rows are ingested by number."""
        folder = self._claims_folder(day)
        numbers = sorted(
            int(match[1]) for name in self._disk.list(folder) if (match := _CLAIM.fullmatch(name))
        )
        if numbers != list(range(len(numbers))):
            raise CorruptError("claim numbers with a gap", where=folder, got=numbers)
        if numbers:
            self._disk.sync_directory(folder)
        return tuple(self._claim(day, number) for number in numbers)

    def unclaimed(self, day: date, files: Iterable[LakeFile]) -> tuple[LakeFile, ...]:
        """Return the files of the day that are in no claim."""
        return _unclaimed(day, files, self.claims(day))

    def claim(self, day: date, files: Iterable[LakeFile]) -> Claim | None:
        """Claim the unclaimed files of a day. Return None if none are left for this process."""
        listed = tuple(files)
        # One reading of the claims gives both the files and the number. With two readings a claim
        # created between them would be followed by a second claim of the same files.
        while chosen := sorted(_unclaimed(day, listed, claims := self.claims(day))):
            number = len(claims)
            table: Json = {
                "format": FORMAT,
                "day": day.isoformat(),
                "number": number,
                "rows": sum(one.rows for one in chosen),
                "files": [one.name for one in chosen],
            }
            path = self._claim_path(day, number)
            self._disk.make_directory(path.parent)
            if self._disk.create_small(path, _text(table)):
                return self._claim(day, number)
        return None

    def is_done(self, claim: Claim) -> bool:
        """Return whether the shards have the rows of a claim. A positive result is durable."""
        return self._disk.read_created(self._done_path(claim)) is not None

    def finish(self, claim: Claim, figures: Json) -> None:
        """Record that the shards have the rows of a claim. This may be repeated."""
        self._disk.create_small(self._done_path(claim), _text({"format": FORMAT, **figures}))

    def unfinished(self) -> list[Claim]:
        """Return the claims of a killed or running promotion, whose rows the shards may lack."""
        return [
            claim
            for day in self.claimed_days()
            for claim in self.claims(day)
            if not self.is_done(claim)
        ]

    def claimed_days(self) -> list[date]:
        """Return the days that have a claim."""
        return sorted(
            date.fromisoformat(name) for name in self._disk.list(self.root / "_promotions")
        )

    def tombstones(self) -> list[Path]:
        """Return the Parquet files with the ids of cancelled messages."""
        folder = self.root / "_tombstones"
        return sorted(folder / one for one in self._disk.list(folder) if one.endswith(".parquet"))

    def purge(self, claim: Claim) -> int:
        """Remove the files of a finished claim. Return the number of removed files."""
        assert self.is_done(claim), claim
        paths = [self.day_folder(claim.day) / name for name in claim.files]
        there = [path for path in paths if self._disk.exists(path)]
        for path in there:
            self._disk.unlink(path)
        return len(there)

    # --- paths ---

    @property
    def _runs(self) -> Path:
        return self.root / "_runs"

    def _run_path(self, run_id: str) -> Path:
        return self._runs / f"{check_run_id(run_id)}.json"

    def _claims_folder(self, day: date) -> Path:
        return self.root / "_promotions" / day.isoformat()

    def _claim_path(self, day: date, number: int) -> Path:
        return self._claims_folder(day) / f"{number:010d}.json"

    def _done_path(self, claim: Claim) -> Path:
        return self._claims_folder(claim.day) / f"{claim.number:010d}.done"

    def _claim(self, day: date, number: int) -> Claim:
        path = self._claim_path(day, number)
        text = self._disk.read_small(path)
        if text is None:
            raise CorruptError("claim file is missing", where=path)
        table = _read(text, path)
        try:
            names = _as_list(table.get("files"), "files")
            files = tuple(_as_text(name, "files") for name in names)
            rows = json_text.as_int(table.get("rows"), "rows")
        except CorruptError as error:
            raise CorruptError(f"unreadable: {error}", where=path) from error
        return Claim(day, number, files, rows)


def open_lake(root: Path, *, create: bool = False, disk: Disk | None = None) -> Lake:
    """Open the lake in a directory, or create it if `create` is true.

    Raises:
        ConfigError: the directory is not a lake, or it is not empty and cannot become one.
    """
    disk, root = disk or Disk(), root.absolute()
    path = root / "_lake.json"
    text = disk.read_created(path)
    if text is None:
        if not create:
            raise ConfigError(f"{root}: not a cold lake (no _lake.json); cold-append creates one")
        # A killed process may have left a temporary file. Another may create the lake right now.
        others = [n for n in disk.list(root) if n != path.name and not is_temporary_of(n, path)]
        if others:
            raise ConfigError(f"{root}: not empty and not a cold lake; use a new directory")
        disk.make_directory(root)
        disk.create_small(path, _text({"format": FORMAT, "id": uuid.uuid4().hex}))
        text = disk.read_created(path)
        assert text is not None, "created above, here or by another process"
    table = _read(text, path)
    return Lake(root, _as_text(table.get("id"), "id"), disk)


def check_run_id(run_id: str) -> str:
    """Return the run id. Raise ConfigError if it cannot be part of a file name."""
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"--run-id: wanted 1 to 100 of A-Z a-z 0-9 _ . -, not _ . - first, got {run_id!r}"
        )
    return run_id


def day_of(folder: str) -> date | None:
    """Return the day of a name like `deliver_day=2026-11-21`, or None for other names."""
    if not folder.startswith(DAY_PREFIX):
        return None
    try:
        return date.fromisoformat(folder.removeprefix(DAY_PREFIX))
    except ValueError:
        return None


def _unclaimed(
    day: date, files: Iterable[LakeFile], claims: Iterable[Claim]
) -> tuple[LakeFile, ...]:
    taken = {name for claim in claims for name in claim.files}
    return tuple(one for one in files if one.day == day and one.name not in taken)


def _files_of(table: Json, path: Path) -> Iterator[LakeFile]:
    try:
        for one in _as_list(table.get("files"), "files"):
            line = json_text.as_table(one, "files")
            yield LakeFile(
                date.fromisoformat(_as_text(line.get("day"), "day")),
                _as_text(line.get("name"), "name"),
                json_text.as_int(line.get("rows"), "rows"),
                json_text.as_int(line.get("bytes"), "bytes"),
            )
    except (CorruptError, ValueError) as error:
        raise CorruptError(f"unreadable: {error}", where=path) from error


def _as_list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise CorruptError(f"{what}: wrong type", wanted="a list", got=type(value).__name__)
    return value


def _as_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise CorruptError(f"{what}: wrong type", wanted="text", got=type(value).__name__)
    return value


def _text(table: Json) -> bytes:
    return json.dumps(table, indent=1).encode() + b"\n"


def _read(text: bytes, path: Path) -> Json:
    try:
        table = json_text.loads(text)
        found = json_text.as_int(table.get("format"), "format")
    except CorruptError as error:
        raise CorruptError(f"unreadable: {error}", where=path) from error
    if found != FORMAT:
        raise FormatVersionError("unknown format", where=path, wanted=FORMAT, got=found)
    return table
