"""The cold lake: far timers as Parquet files by day of delivery, and the claims on these files.

A lake is in a directory that is mounted on every host, or in a bucket.

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
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from timerstore._engine.buckets import BucketUrl
from timerstore._engine.buckets.bucket import BucketFile
from timerstore._engine.format import json_text
from timerstore._engine.format.json_text import Json
from timerstore._engine.storage.disk import is_temporary_of
from timerstore.errors import ConfigError, CorruptError, newer_format
from timerstore.spark.jobs.shared_folder import shared_folder

FORMAT = 1
COLUMNS = ("topic", "message_id", "deliver_ms", "body", "key", "tags")
"""Types: text, text, int64, binary, text, text. A file may lack the last two columns."""

DAY_PREFIX = "deliver_day="
_HEAD, _RUNS, _PROMOTIONS, _TOMBSTONES = "_lake.json", "_runs", "_promotions", "_tombstones"
_STAGED_ORDER = itemgetter("day", "name")
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

    def __init__(self, root: Path | BucketUrl, lake_id: str) -> None:
        self.root = root
        self.id = lake_id
        self.folder = shared_folder(root)

    # --- appending ---

    def run(self, run_id: str) -> tuple[LakeFile, ...] | None:
        """Return the files of a committed append, or None if it is not committed."""
        return self._files_of(run_id, self.folder.read_created(_run_name(run_id)))

    def _files_of(self, run_id: str, text: bytes | None) -> tuple[LakeFile, ...] | None:
        where = self.folder.where(_run_name(run_id))
        return None if text is None else tuple(_files_of(_read(text, where), where))

    def move_in(self, run_id: str, staged: Iterable[Any]) -> list[LakeFile]:
        """Move the staged files of a run to the folders of their days, and return them.

        `staged`: rows of lake_worker.RESULT.
        """
        files, names = [], {}
        by_day = groupby(sorted(staged, key=_STAGED_ORDER), key=itemgetter("day"))
        for day, parts in by_day:
            for number, one in enumerate(parts):
                file = LakeFile(day, f"{run_id}-{number:05d}.parquet", one["rows"], one["bytes"])
                files.append(file)
                names[one["name"]] = f"{day_folder(day)}/{file.name}"
        self.folder.move(names)
        self.folder.remove_folder(staging_of(run_id))
        return files

    def commit_run(self, run_id: str, files: Iterable[LakeFile]) -> tuple[LakeFile, ...]:
        """Commit the files of a run. Return its files, which may be those of an earlier commit."""
        told = sorted(files)
        table: Json = {
            "format": FORMAT,
            "run": run_id,
            "files": [
                {"day": one.day.isoformat(), "name": one.name, "rows": one.rows, "bytes": one.bytes}
                for one in told
            ],
        }
        self.folder.create(_run_name(run_id), _text(table))
        found = self.run(run_id)
        assert found is not None, "written above"
        return found

    def files(self) -> Iterator[LakeFile]:
        """Yield every file of a committed run."""
        for name in self.folder.names(_RUNS):
            if name.endswith(".json") and not name.startswith("."):
                text = self.folder.read(f"{_RUNS}/{name}")
                yield from self._files_of(name.removesuffix(".json"), text) or ()

    # --- promoting ---

    def claims(self, day: date) -> tuple[Claim, ...]:
        """Return the claims of a day in order. They are durable, as rows are ingested by number."""
        names = self.folder.names(_claims_of(day))
        numbers = sorted(int(match[1]) for name in names if (match := _CLAIM.fullmatch(name)))
        if numbers != list(range(len(numbers))):
            where = self.folder.where(_claims_of(day))
            raise CorruptError("claim numbers with a gap", where=where, got=numbers)
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
                "by": uuid.uuid4().hex,
            }
            if self.folder.create(_claim_name(day, number), _text(table)):
                return self._claim(day, number)
        return None

    def is_done(self, claim: Claim) -> bool:
        """Return whether the shards have the rows of a claim. A positive result is durable."""
        return self.folder.read_created(_done_name(claim)) is not None

    def finish(self, claim: Claim, figures: Json) -> None:
        """Record that the shards have the rows of a claim. This may be repeated."""
        self.folder.create(_done_name(claim), _text({"format": FORMAT, **figures}))

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
        return [date.fromisoformat(name) for name in self.folder.names(_PROMOTIONS)]

    def tombstones(self) -> list[Path | BucketFile]:
        """Return the Parquet files with the ids of cancelled messages."""
        names = [one for one in self.folder.names(_TOMBSTONES) if one.endswith(".parquet")]
        return self.folder.files([f"{_TOMBSTONES}/{one}" for one in names])

    def data(self, claim: Claim) -> list[Path | BucketFile]:
        """Return the Parquet files of a claim."""
        return self.folder.files([f"{day_folder(claim.day)}/{name}" for name in claim.files])

    def purge(self, claim: Claim) -> int:
        """Remove the files of a finished claim. Return the number of removed files."""
        assert self.is_done(claim), claim
        return self.folder.remove([f"{day_folder(claim.day)}/{name}" for name in claim.files])

    def _claim(self, day: date, number: int) -> Claim:
        name = _claim_name(day, number)
        text, where = self.folder.read(name), self.folder.where(name)
        if text is None:
            raise CorruptError("claim file is missing", where=where)
        table = _read(text, where)
        try:
            names = _as_list(table.get("files"), "files")
            files = tuple(_as_text(name, "files") for name in names)
            rows = json_text.as_int(table.get("rows"), "rows")
        except CorruptError as error:
            raise CorruptError(f"unreadable: {error}", where=where) from error
        return Claim(day, number, files, rows)


def day_folder(day: date) -> str:
    """Return the name of the folder of a day of delivery."""
    return f"{DAY_PREFIX}{day.isoformat()}"


def staging_of(run_id: str) -> str:
    """Return the name of the folder of an unfinished append."""
    return f"_staging/{check_run_id(run_id)}"


def _run_name(run_id: str) -> str:
    return f"{_RUNS}/{check_run_id(run_id)}.json"


def _claims_of(day: date) -> str:
    return f"{_PROMOTIONS}/{day.isoformat()}"


def _claim_name(day: date, number: int) -> str:
    return f"{_claims_of(day)}/{number:010d}.json"


def _done_name(claim: Claim) -> str:
    return f"{_claims_of(claim.day)}/{claim.number:010d}.done"


def open_lake(root: Path | BucketUrl, *, create: bool = False) -> Lake:
    """Open the lake in a directory or below a URL, or create it if `create` is true.

    Raises:
        ConfigError: it is not a lake, or it is not empty and cannot become one.
    """
    root = root.absolute() if isinstance(root, Path) else root
    folder = shared_folder(root)
    text = folder.read_created(_HEAD)
    if text is None:
        if not create:
            raise ConfigError(f"{root}: not a cold lake (no {_HEAD}); cold-append creates one")
        # A killed process may have left a temporary file. Another may create the lake right now.
        names = (name for name in folder.names() if name != _HEAD)
        if any(not is_temporary_of(name, Path(_HEAD)) for name in names):
            raise ConfigError(f"{root}: not empty and not a cold lake; use a new directory")
        folder.create(_HEAD, _text({"format": FORMAT, "id": uuid.uuid4().hex}))
        text = folder.read_created(_HEAD)
        assert text is not None, "created above, here or by another process"
    table = _read(text, folder.where(_HEAD))
    return Lake(root, _as_text(table.get("id"), "id"))


def check_run_id(run_id: str) -> str:
    """Return the run id. Raise ConfigError if it cannot be part of a file name."""
    if not _RUN_ID.fullmatch(run_id):
        raise ConfigError(
            f"--run-id: wanted 1 to 100 of A-Z a-z 0-9 _ . -, not _ . - first, got {run_id!r}"
        )
    return run_id


def _unclaimed(
    day: date, files: Iterable[LakeFile], claims: Iterable[Claim]
) -> tuple[LakeFile, ...]:
    taken = {name for claim in claims for name in claim.files}
    return tuple(one for one in files if one.day == day and one.name not in taken)


def _files_of(table: Json, where: str) -> Iterator[LakeFile]:
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
        raise CorruptError(f"unreadable: {error}", where=where) from error


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


def _read(text: bytes, where: str) -> Json:
    try:
        table = json_text.loads(text)
        found = json_text.as_int(table.get("format"), "format")
    except CorruptError as error:
        raise CorruptError(f"unreadable: {error}", where=where) from error
    if found != FORMAT:
        release = table.get("release")
        raise newer_format("unknown format", release, where=where, wanted=FORMAT, got=found)
    return table
