"""Define the plan of one round, and the results of earlier rounds that a child needs."""

from dataclasses import dataclass, field
from typing import Any

from tests.crash.report import QUEUES, Line
from timerstore import StoreConfig
from timerstore._engine.format.handle import Handle, encode
from timerstore.types.receipts import out_ms

SAVED = "backup"
"""Folder of the backup, next to the store."""


@dataclass(slots=True)
class Known:
    """The results of earlier rounds that the child needs."""

    seen: dict[int, int] = field(default_factory=dict)  # queue -> messages pulled
    cancellable: list[tuple[int, int, str]] = field(default_factory=list)  # id, queue, handle
    moved: set[int] = field(default_factory=set)  # ids whose body may name an earlier due time
    # id, queue, due of puts without an answer
    retries: list[tuple[int, int, int]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # versions whose ingestion was begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The work of one round, and the time of its kill."""

    seed: int
    round: int
    config: dict[str, Any]
    point: str | None = None  # None: the parent kills at a time of its own
    nth: int = 1
    calls: int = 60  # of each thread that puts, between opening and closing
    sessions: int = 3
    step_ms: float = 1.0  # longest pause between two calls
    # at its fail point the child waits for the kill, otherwise it kills itself
    is_stopped: bool = False
    only_durable: bool = False  # no call is acknowledged that a power cut may revert
    backup_share: float = 0.01  # share of the calls that cancel, flush and back up


def handle_of(queue: int, config: StoreConfig, line: Line) -> str:
    """Return the handle of a message from the report of its put."""
    stamp = out_ms(line.due, config.precision_ms) + 1
    return encode(
        Handle(QUEUES[queue][0], config.broker_name, stamp, line.message_id.decode(), line.a)
    )
