"""Plant bugs in atomic groups of puts, and in sources that are ingested once."""

from typing import Any

import numpy as np

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    Appender,
    BatchPart,
    ColumnBatch,
    CommitLog,
    Ledger,
    LedgerSideFile,
    log_checks,
)
from tests.support.inside.methods import INGESTER_GO_ON, MANY_APPEND_WHOLE


@mutant("P-5", "an atomic group torn by a power cut counts partly")
def _half_group() -> Patches:
    original = log_checks.scan_batches

    def scan_batches(*args: Any, **_given: Any) -> Any:
        return original(*args)

    yield swap(log_checks, "scan_batches", scan_batches)


@mutant("P-20", "an atomic batch is stored message by message")
def _no_group() -> Patches:
    def append_whole(
        self: Any, way: Any, rows: Any, due: Any, now_ms: int, places: Any, once: Any
    ) -> None:
        self._appender.append_many(way, rows, due, now_ms, places, once)

    yield swap(*MANY_APPEND_WHOLE, append_whole)


@mutant("P-21", "a version is complete before it is durable", needs="ingest")
def _version_not_synced() -> Patches:
    original = INGESTER_GO_ON.value

    def go_on(self: Any, *given: Any) -> Any:
        with swap(CommitLog, "sync_through", nothing):
            return original(self, *given)

    yield swap(*INGESTER_GO_ON, go_on)


@mutant("P-22", "the rows already stored of a version are not looked up", needs="ingest")
def _ledger_not_asked() -> Patches:
    yield swap(Ledger, "find", nothing)


@mutant("P-23", "a chunk's header is stored apart from its rows", needs="ingest")
def _header_apart() -> Patches:
    original = Appender.append_group

    def append_group(
        self: Any, way: Any, rows: Any, part: Any, due_ms: Any, head_route: Any = None,
        head: bytes = b"", **given: Any,
    ) -> int:  # fmt: skip
        if head_route is None or not part.row_count:
            return original(self, way, rows, part, due_ms, head_route, head, **given)
        original(self, way, rows, part, due_ms, **given)
        zero = np.zeros(1, np.int64)
        nobody = BatchPart(0, 0, 0, 0, part.now_ms)
        empty = ColumnBatch(b"", zero, zero[:0], b"")
        return original(self, head_route, empty, nobody, zero[:0], head_route, head)

    yield swap(Appender, "append_group", append_group)


@mutant("P-24", "the ledger is not read at opening", needs="ingest")
def _ledger_not_read() -> Patches:
    yield swap(LedgerSideFile, "load", lambda _self, _ledger: 0)
