"""Plant bugs in retention (W-L3 and W-L5) and in backups."""

from typing import Any

from tests.sim.mutants.planting import Patches, mutant, nothing, swap
from tests.support.inside.engine import (
    NO_IDS,
    NOTHING,
    Checkpoint,
    CommitLog,
    ConsumerLag,
    Disk,
    ExpiredSegments,
    Ids,
    Ingester,
    Relocator,
    TimerRetention,
    Transfer,
    backup,
    write_manifest,
)
from tests.support.inside.methods import (
    COPIER_BEFORE,
    COPIER_CONFIG_TEXTS,
    RESTORING_WRITE_REST,
    RETENTION_IS_READ,
    RETENTION_RETIRE,
)


@mutant("W-L3", "retention drops a file with pending messages", needs="retention_")
def _waiting_dropped() -> Patches:
    yield swap(Relocator, "step", lambda *_args: False)


@mutant("W-L5", "retention drops records that are not linked yet", needs="retention_")
def _outruns_the_wheel() -> Patches:
    yield swap(TimerRetention, "is_past", lambda *_args: True)
    yield swap(TimerRetention, "move", lambda *_args: False)


@mutant("P-26", "retention drops records that the last checkpoint needs", needs="retention_")
def _checkpoint_outrun() -> Patches:
    yield swap(TimerRetention, "is_past", lambda *_args: True)


@mutant("P-27", "retention drops pending messages of delay levels", needs="retention_")
def _levels_dropped() -> Patches:
    yield swap(TimerRetention, "lowest_needed", lambda _self: NOTHING)


@mutant("P-28", "messages that a group has not read are removed by age", needs="retention_")
def _unread_dropped() -> Patches:
    yield swap(*RETENTION_IS_READ, lambda _self, _end: True)


@mutant("P-29", "unread removed messages are not counted", needs="retention_")
def _not_counted() -> Patches:
    yield swap(ConsumerLag, "dropped", nothing)


@mutant(
    "P-30",
    "a file is removed before the watermark has the new beginning",
    needs="retention_",
)
def _begin_not_raised() -> Patches:
    yield swap(Checkpoint, "raise_begins", nothing)


@mutant("P-31", "a file is removed before deliveries from it are durable", needs="retention_")
def _evidence_not_durable() -> Patches:
    """Neither a checkpoint has them, nor are they synced, as on a full disk."""
    original, is_past = RETENTION_RETIRE.value, TimerRetention.is_past

    def retire(self: Any) -> bool:
        with swap(CommitLog, "sync_through", nothing):
            return original(self)

    yield swap(*RETENTION_RETIRE, retire)
    yield swap(TimerRetention, "is_past", lambda self, end, _moved_end: is_past(self, end, end))


@mutant("P-32", "a timer log file with unread slots is removed", needs="retention_")
def _units_dropped() -> Patches:
    original = ExpiredSegments.retire

    def retire(self: Any) -> bool:
        segments = self._timer_log.segments
        if len(segments.numbers) < 2:
            return original(self)
        return segments.retire((segments.numbers[0] + 1) * segments.segment_bytes)

    yield swap(ExpiredSegments, "retire", retire)


@mutant("P-33", "the ledger of sources is lost with the file that holds it", needs="retention_")
def _ledger_not_carried() -> Patches:
    yield swap(Ingester, "carry", lambda *_args: True)


@mutant("P-34", "queues keep units of removed log",
        "a pull skips removed log, and an opening drops the units; that costs space only",
        needs="retention_")  # fmt: skip
def _queues_keep() -> Patches:
    yield swap(TimerRetention, "drop_derived", lambda *_args: False)


# --- backups ---


@mutant("P-35", "a backup does not copy the growth of a segment", needs="restore")
def _backup_stale() -> Patches:
    original = Transfer.bring

    def bring(self: Any, one: Any) -> Any:
        return self._saved.get(one.offset) or original(self, one)

    yield swap(Transfer, "bring", bring)


@mutant("P-36", "a backup returns before it is durable", needs="restore")
def _backup_not_synced() -> Patches:
    original = Transfer.bring

    def bring(self: Any, one: Any) -> Any:
        with swap(type(one.file), "sync", nothing):
            return original(self, one)

    yield swap(Transfer, "bring", bring)


@mutant("P-37", "a backup omits the offsets of groups", needs="restore")
def _offsets_left_out() -> Patches:
    yield swap(*COPIER_CONFIG_TEXTS, lambda _self: {})


@mutant("P-38", "an interrupted backup replaces the previous one", needs="restore")
def _manifest_first() -> Patches:
    original = COPIER_BEFORE.value

    def before(self: Any, target: Any, new: Any) -> Any:
        found = original(self, target, new)
        write_manifest(self._disk, target.root, new._replace(segments=found.segments))
        return found

    yield swap(*COPIER_BEFORE, before)


@mutant("P-39", "a restored store restarts its queue offsets", needs="restore")
def _ends_left_out() -> Patches:
    original = RESTORING_WRITE_REST.value

    def write_rest(disk: Disk, tree: Any, manifest: Any, ids: Any) -> None:
        original(disk, tree, manifest._replace(queue_ends={}), ids)

    yield swap(*RESTORING_WRITE_REST, write_rest)


@mutant("P-40", "a backup omits the ids of messages that retention removed", needs="restore")
def _ids_left_out() -> Patches:
    yield swap(backup, "write_ids", lambda *_: NO_IDS)


@mutant("P-41", "a rebuild knows only the message ids in the log", needs="lose")
def _ids_of_the_log() -> Patches:
    original = Ids.build

    def build(self: Ids, marks: Any, *rest: Any) -> None:
        original(self, [mark._replace(bytes=0, crc=0) for mark in marks], *rest)

    yield swap(Ids, "build", build)
