"""config/timerstoreRecurring.json: recurring messages, and how far each one is planned.

Invariants:
    1. `read` returns what `write` was given.
Raises: CorruptError if the contents are not valid. FormatVersionError on a later format.
On-disk format: JSON in ASCII, one line, with a checksum line (json_text.py). The file is written
    under another name, synced and renamed, so a crash leaves the old or the new one. It has no
    `.bak`.

        {"format":1,"recurring":[{"name":"nightly","token":"1f2e3d4c","topic":"jobs",
         "queue":-1,"body":"<base64>","properties":"<base64>","every_ms":0,
         "cron":"30 2 * * *","timezone":"Europe/Berlin","start_ms":-1,"missed":"one",
         "made_ms":1700000000000,"run_count":7,"planned_ms":1700604600000,"ended":false,
         "run_ms":1700604600000}]}

        token        random, drawn at definition, part of the message ids of the runs
        queue        -1: any queue
        properties   the encoded properties, with tags and keys
        every_ms     0: the schedule is `cron`
        start_ms     -1: no start was given
        run_count    runs that were put
        planned_ms   runs up to this time are decided: the time of the last run, put or skipped, or
                     the start of the schedule before the first one
        ended        the definition and its next run are to be removed
        run_ms       time of the last run that was put; absent or -1: planned_ms
See also: docs/decisions/0009-leases-replace-and-recurring.md.
"""

import base64
import binascii
from pathlib import Path
from typing import NamedTuple

from timerstore._engine.format.json_text import (
    Json,
    as_int,
    as_table,
    loads,
    one_line,
    with_checksum,
    without_checksum,
)
from timerstore.errors import CorruptError, FormatVersionError, newer_format

FORMAT = 1


class Definition(NamedTuple):
    """One recurring message."""

    name: str
    token: str
    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    every_ms: int
    cron: str
    timezone: str
    start_ms: int
    missed: str
    made_ms: int
    run_count: int
    planned_ms: int
    is_ended: bool = False
    run_ms: int = -1

    @property
    def request(self) -> tuple[object, ...]:
        """The caller's arguments: a repeated definition with equal ones changes nothing."""
        return self[2:11]

    @property
    def last_run_ms(self) -> int:
        """Time of the run that was put last."""
        return self.run_ms if self.run_ms >= 0 else self.planned_ms

    def message_id(self, number: int) -> str:
        """Return the message id of a run; the first run has number 1."""
        return f"every/{self.name}/{self.token}/{number}"


_KEYS = {
    "queue_id": "queue",
    "is_ended": "ended",
}
_DEFAULTS = {"run_ms": -1}
"""Fields that the first files of this format did not have."""


def write(definitions: list[Definition]) -> bytes:
    """Return the file's text."""
    return with_checksum(
        one_line({"format": FORMAT, "recurring": [_to_json(one) for one in definitions]})
    )


def file_bytes(sizes: list[int]) -> int:
    """Return the size of a file with definitions of these sizes (`bytes_max`)."""
    return len(write([])) + sum(sizes) + max(len(sizes) - 1, 0)


def bytes_max(one: Definition) -> int:
    """Return the most bytes that a definition takes in the file, whatever its progress."""
    most = 2**63 - 1
    grown = one._replace(run_count=most, planned_ms=most, run_ms=most, is_ended=False)
    return len(one_line(_to_json(grown)))


def _to_json(one: Definition) -> Json:
    fields = {_KEYS.get(name, name): value for name, value in one._asdict().items()}
    fields["body"] = base64.b64encode(one.body).decode("ascii")
    fields["properties"] = base64.b64encode(one.properties).decode("ascii")
    return fields


def read(text: bytes | None, where: Path | None = None) -> list[Definition]:
    """Parse the file; return an empty list if it is absent (None). `where` is for the errors."""
    if text is None:
        return []
    try:
        table = loads(without_checksum(text))
        version = as_int(table.get("format"), "format")
        if version != FORMAT:
            raise newer_format(
                "unknown format", table.get("release"), where=where, wanted=FORMAT, got=version
            )
        rows = table.get("recurring")
        if not isinstance(rows, list):
            raise CorruptError("recurring: wrong type", wanted="a list", got=type(rows).__name__)
        return [_from_json(as_table(one, "recurring")) for one in rows]
    except FormatVersionError:
        raise
    except CorruptError as error:
        raise CorruptError(
            f"the definitions of recurring messages cannot be read: {error}",
            where=where,
            wanted="the file, or no file (then no message recurs)",
        ) from error


def _from_json(table: Json) -> Definition:
    kinds = Definition.__annotations__
    values: dict[str, object] = {}
    for name, kind in kinds.items():
        key = _KEYS.get(name, name)
        value = table.get(key, _DEFAULTS.get(key))
        if kind is int:
            value = as_int(value, key)
        elif kind is bool and not isinstance(value, bool):
            raise CorruptError(f"{key}: wrong type", wanted="a bool", got=repr(value))
        elif kind in (str, bytes) and not isinstance(value, str):
            raise CorruptError(f"{key}: wrong type", wanted="text", got=repr(value))
        if kind is bytes:
            try:
                value = base64.b64decode(str(value), validate=True)
            except (binascii.Error, ValueError) as error:
                raise CorruptError(f"{key}: not base64 ({error})") from error
        values[name] = value
    return Definition(**values)  # type: ignore[arg-type]  # each type was checked
