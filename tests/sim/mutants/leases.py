"""Plant bugs in leases.

See also: docs/decisions/0009-leases-replace-and-recurring.md
"""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    DeadLetterReader,
    LeaseProgress,
    Leases,
    MessageOrder,
    lease_appender,
    leases,
)
from tests.support.inside.methods import (
    LEASE_PROGRESS_KNOWN_IN_RETRY,
    LEASES_CANCEL,
    LEASES_MOVE,
    LEASES_SETTLE,
    LEASES_SETTLE_RECEIVED,
    LEASING_APPEND,
    LEASING_ROW,
)
from timerstore import AckResult, CancelResult
from timerstore._engine.base.failpoints import reach


@mutant("LE-1", "an ack returns, but the lease continues", needs="receive")
def _ack_forgotten() -> Patches:
    yield swap(*LEASES_CANCEL, lambda *_args: (CancelResult.CANCELLED, 0))


@mutant("LE-2", "an opening ignores the group offsets that leases imply", needs="receive")
def _leases_not_read() -> Patches:
    yield swap(LeaseProgress, "recover", nothing)


@mutant("LE-3", "a checkpoint does not commit leased messages", needs="receive")
def _leases_not_committed() -> Patches:
    yield swap(LeaseProgress, "commit", nothing)


@mutant("LE-4", "receive and ack return before they are durable", needs="receive")
def _lease_not_durable() -> Patches:
    yield swap(*LEASES_SETTLE, nothing)
    yield swap(*LEASES_SETTLE_RECEIVED, lambda _leases: reach("receive_answered"))


@mutant("LE-5", "attempts do not count over an expired lease", needs="receive")
def _attempts_not_counted() -> Patches:
    yield swap(lease_appender, "read_lease", nothing)


@mutant("LE-6", "the lease of the last attempt is handed out again too", needs="receive")
def _no_dead_letters() -> Patches:
    original = LEASING_ROW.value

    def row(self: Any, reads: Any, message: Any, request: Any) -> Any:
        return original(self, reads, message, request._replace(attempts_max=0))

    yield swap(*LEASING_ROW, row)


@mutant("LE-7", "an extended lease ends at its old time", needs="receive")
def _not_extended() -> Patches:
    original = LEASES_MOVE.value

    def move(self: Any, receipt: Any, deliver_ms: int, *to: Any) -> Any:
        return original(self, receipt, min(deliver_ms, receipt.until_ms), *to)

    yield swap(*LEASES_MOVE, move)


@mutant("LE-8", "retention ignores readers of a retry topic", needs="receive")
def _retry_not_known() -> Patches:
    yield swap(*LEASE_PROGRESS_KNOWN_IN_RETRY, lambda _self, places: places)


@mutant("LE-9", "a group's offset is noted before its leases exist", needs="receive")
def _noted_early() -> Patches:
    original = LEASING_APPEND.value

    def append(self: Any, reads: Any, row: Any, *rest: Any) -> Any:
        progress = self._lease_progress
        place = {row.lease.source_queue: row.lease.source_offset + 1}
        progress.record(reads.read_topic, reads.group, place)
        progress.commit()
        return original(self, reads, row, *rest)

    yield swap(*LEASING_APPEND, append)


@mutant("LE-10", "an opening forgets which dead letters were requeued", needs="receive")
def _requeued_again() -> Patches:
    yield swap(DeadLetterReader, "scan", nothing)


@mutant("LE-11", "a buried message is acknowledged, and is no dead letter", needs="receive")
def _buried_nowhere() -> Patches:
    def bury(self: Any, target: Any, _error: Any) -> AckResult:
        answer: AckResult = self.ack_one(target)
        return AckResult.BURIED if answer is AckResult.ACKED else answer

    yield swap(Leases, "bury", bury)


@mutant("LE-12", "a message that is given back keeps its attempt", needs="receive")
def _given_back_counted() -> Patches:
    yield swap(leases, "uncounted_properties", lambda kept: (kept, 0, False))


@mutant("LE-13", "messages of a group are handed out while one is leased", needs="receive_in_order")
def _groups_at_once() -> Patches:
    yield swap(MessageOrder, "free_count", lambda _self, _queue, messages: len(messages))
