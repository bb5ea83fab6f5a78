"""The options of a writer of rows, parsed from texts as Spark passes them.

Raises: ConfigError, which lists every problem, and for an unknown name the most similar known one.
See also: docs/spark.md.
"""

import difflib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields

from timerstore._engine.base import message_fields
from timerstore.errors import ConfigError, MessageError
from timerstore.shards.shard_paths import source_component

_CHOICES = {
    "on_invalid": ("fail", "quarantine"),
    "past": ("deliver", "fail"),
    "null_body": ("fail", "empty"),
    "ingest": ("auto", "inline", "none"),
    "sync": ("true", "false"),
    "rows": ("new", "messages"),
}
_UNNAMED = "batch-"
_DRAWN = re.compile(
    _UNNAMED + "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)
ROUTE_KEY = "key"
ROUTE_ID = "msg_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows become messages."""

    topic: str = ""
    """The topic of every row, if the rows have no column `topic`."""
    shard_by: str = ROUTE_KEY
    """The column that decides the shard: "key" (the first key; without one the message id, without
    either round robin), "msg_id", or the name of a column."""
    on_invalid: str = "fail"
    """For a row that no store would accept: "fail" the write, or put the row into "quarantine"."""
    past: str = "deliver"
    """For a due time that has passed: "deliver" now, or "fail": the row is invalid."""
    null_body: str = "fail"
    """For a NULL body: "fail": the row is invalid, or "empty"."""
    ingest: str = "auto"
    """When committed rows are ingested. "inline": at once, into each shard that no process has
    open; the owners of the others ingest theirs. "none": by the owners only. "auto": inline after a
    batch write, none after a batch of a stream."""
    sync: str = "true"
    """"false": staged files are not synced. A power cut before they are ingested may then lose
    committed rows; a crash of processes does not."""
    write_id: str = ""
    """The name of a batch write: repeated under the same name, it is one write. By default a batch
    write gets a new name. For a stream it replaces the id of the query; with a new checkpoint, its
    batches have the numbers of the old ones, which are then skipped whatever their rows are."""

    rows: str = "new"
    """"new", or "messages": rows of the table `messages`, which are written back. What the store
    sets is dropped: columns, and reserved properties (message_writeback.py)."""

    def __post_init__(self) -> None:
        problems = []
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                wanted = " or ".join(map(repr, choices))
                problems.append(f"{name}: wanted {wanted}, got {getattr(self, name)!r}")
        if not self.shard_by:
            problems.append("shard_by: wanted 'key', 'msg_id' or a column's name, got ''")
        try:
            if self.topic:
                message_fields.check_topic(self.topic)
            if self.write_id:
                source_component(self.write_id)
                if is_drawn(self.write_id):
                    problems.append(
                        f"write_id: wanted another form than {_UNNAMED}<UUID>, as writes without a "
                        f"name have, got {self.write_id!r}"
                    )
        except MessageError as error:
            problems.extend(one.replace("source:", "write_id:") for one in error.problems)
        if problems:
            raise ConfigError(problems)

    @property
    def are_messages(self) -> bool:
        """Whether the rows are those of the table `messages`."""
        return self.rows == "messages"

    @property
    def is_synced(self) -> bool:
        """Whether staged files are durable before they are committed."""
        return self.sync == "true"


def draw_name() -> str:
    """Return a new source name for a batch write without a write_id."""
    return f"{_UNNAMED}{uuid.uuid4()}"


def is_drawn(source: str) -> bool:
    """Return whether `draw_name` made this name. A name that only has the same prefix was given by
    a caller, and the write may be repeated.
    """
    return _DRAWN.fullmatch(source) is not None


OPTION_NAMES = tuple(one.name for one in fields(WriteOptions))
_NOT_OURS = ("path", "checkpointlocation", "queryname")


def parse_options(given: Mapping[str, object]) -> WriteOptions:
    """Parse options. Names are those of WriteOptions, in upper or lower case."""
    found = {}
    problems = []
    for name, value in given.items():
        low = str(name).lower()
        if low in OPTION_NAMES and value is None:
            problems.append(f"option {name}: wanted text, got None")
        elif low in OPTION_NAMES:
            found[low] = str(value).lower() if low in _CHOICES else str(value)
        elif low not in _NOT_OURS:
            near = difflib.get_close_matches(low, OPTION_NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(OPTION_NAMES)}"
            problems.append(f"option {name}: not known{hint}")
    try:
        options = WriteOptions(**found)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    if problems:
        raise ConfigError(problems)
    return options
