"""The engine's private methods and functions that tests replace, one name each.

swap(*LINKER_PLACE, place)         in the simulator
monkeypatch.setattr(*LINKER_PLACE, place)
LINKER_PLACE.original              the engine's own
"""

from typing import Any, NamedTuple

from tests.support.inside import engine


class Method(NamedTuple):
    """A private method or function: its class or module, and its name there."""

    owner: Any
    name: str

    @property
    def original(self) -> Any:
        """What is there now."""
        return getattr(self.owner, self.name)


# --- the store ---

STORE_MAKE_GROUPS = Method(engine.TimerStore, "_make_groups")
OPENING_RECOVER = Method(engine.Opening, "_recover")
OPENING_LEADS_TO_ALL = Method(engine.Opening, "_leads_to_all")
OPENING_REWRITE_MARK = Method(engine.Opening, "_rewrite_mark")

# --- puts ---

MANY_APPEND_WHOLE = Method(engine.ManyPutting, "_append_whole")
IDS_ADD = Method(engine.Ids, "_add")
REPLACING_FIND = Method(engine.Replacing, "_find")
REPLACING_LOOK = Method(engine.Replacing, "_look")
REPLACING_REPLACE = Method(engine.Replacing, "_replace")
REPLACING_WAITING_OF = Method(engine.Replacing, "_waiting_of")
REPLACING_DUE_MS = Method(engine.Replacing, "_due_ms")
RECURRING_CANCEL_UNTIL = Method(engine.RecurringCalls, "_cancel_until")
INGESTER_GO_ON = Method(engine.Ingester, "_go_on")

# --- files, log and queues ---

SEGMENTS_REMOVE = Method(engine.Segments, "_remove")
DISPATCH_BATCH = Method(engine.Dispatch, "_dispatch")
RETENTION_IS_READ = Method(engine.Retention, "_is_read")
RETENTION_RETIRE = Method(engine.Retention, "_retire")

# --- the timer ---

LINKER_PLACE = Method(engine.Linker, "_place")
LINKER_APPEND = Method(engine.Linker, "_append")
DEQUEUE_GET_LAST_SLOT = Method(engine.DequeueGet, "_last_slot")
OPEN_SLOT_LOOK_FOR_CROWDS = Method(engine.OpenSlot, "_look_for_crowds")
OPEN_SLOT_SORT_IN = Method(engine.OpenSlot, "_sort_in")
LANES_WITHIN = Method(engine.Lanes, "_within")
PENDING_DUE_FAR = Method(engine.PendingReader, "_due_far")
MANY_CANCELLER_FIND = Method(engine.ManyCanceller, "_find")
MANY_CANCELLER_PLACE = Method(engine.ManyCanceller, "_place")
CHECKPOINT_TAKE = Method(engine.Checkpoint, "_take")
CHECKPOINT_WRITE = Method(engine.Checkpoint, "_write")
SCHEDULE_PLACE = Method(engine.ScheduleDeliver, "_place")

# --- reading and leases ---

OFFSETS_WRITE = Method(engine.Offsets, "_write")
LEASES_CANCEL = Method(engine.Leases, "_cancel")
LEASES_MOVE = Method(engine.Leases, "_move")
LEASES_SETTLE = Method(engine.Leases, "_settle")
LEASING_ROW = Method(engine.Leasing, "_row")
LEASING_APPEND = Method(engine.Leasing, "_append")
LEASE_PROGRESS_KNOWN_IN_RETRY = Method(engine.LeaseProgress, "_known_in_retry")

# --- backups ---

COPIER_CONFIG_TEXTS = Method(engine.Copier, "_config_texts")
COPIER_BEFORE = Method(engine.Copier, "_before")
RESTORING_WRITE_REST = Method(engine.restoring, "_write_rest")

# --- several shards ---

SHARDED_CHECKED_PLACE = Method(engine.ShardedStore, "_checked_place")
SHARDED_CLOSE_ALL = Method(engine.sharded, "_close_all")
SHARD_CONSUMER_BY_SHARD = Method(engine.ShardConsumer, "_by_shard")

# --- what a trace of lines passes over ---

UNDOES = {
    "_leave", "close", "_let_go", "release", "fail", "give_up", "let_go", "leave", "stop",
    "__exit__", "__del__", "_failed", "as_failure", "mark_dirty",
}  # fmt: skip
"""Names of functions that only undo what another one did."""
