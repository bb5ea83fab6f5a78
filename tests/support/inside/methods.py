"""The engine's private methods and functions that tests replace, one name each.

swap(*LINKER_PLACE, place)         in the simulator
monkeypatch.setattr(*LINKER_PLACE, place)
LINKER_PLACE.value                 the engine's own
"""

from tests.support.inside import engine
from tests.support.inside.attribute import Attribute

# --- the store ---

ENGINE_BUILD_READING = Attribute(engine.Engine, "_build_reading")
STORE_OWN = Attribute(engine.TimerStore, "_own")
OPENING_RECOVER = Attribute(engine.Recovery, "_recover")
OPENING_LEADS_TO_ALL = Attribute(engine.Recovery, "_has_all_pending")
OPENING_REWRITE_MARK = Attribute(engine.Recovery, "_rewrite_mark")

# --- puts ---

MANY_APPEND_WHOLE = Attribute(engine.PutBatchWriter, "_append_whole")
IDS_ADD = Attribute(engine.Ids, "_add")
REPLACING_FIND = Attribute(engine.ReplaceWriter, "_find")
REPLACING_LOOK = Attribute(engine.ReplaceWriter, "_look")
REPLACING_REPLACE = Attribute(engine.ReplaceWriter, "_replace")
REPLACING_WAITING_OF = Attribute(engine.ReplaceWriter, "_pending_of")
REPLACING_DUE_MS = Attribute(engine.ReplaceWriter, "_due_ms")
RECURRING_CANCEL_UNTIL = Attribute(engine.RecurringCalls, "_cancel_until")
INGESTER_GO_ON = Attribute(engine.Ingester, "_go_on")

# --- files, log and queues ---

SEGMENTS_REMOVE = Attribute(engine.Segments, "_remove")
DISPATCH_BATCH = Attribute(engine.Dispatch, "_dispatch")
RETENTION_IS_READ = Attribute(engine.Retention, "_is_read")
RETENTION_RETIRE = Attribute(engine.Retention, "_retire")

# --- the timer ---

LINKER_PLACE = Attribute(engine.Linker, "_place")
LINKER_APPEND = Attribute(engine.Linker, "_append")
DEQUEUE_GET_LAST_SLOT = Attribute(engine.DequeueGet, "_last_slot")
OPEN_SLOT_FIND_BURSTS = Attribute(engine.OpenSlot, "_find_bursts")
OPEN_SLOT_SORT_IN = Attribute(engine.OpenSlot, "_sort_in")
FAIR_QUEUE_TAKE_TOKENS = Attribute(engine.FairQueue, "_take_tokens")
PENDING_DUE_FAR = Attribute(engine.WheelPending, "_due_far")
MANY_CANCELLER_FIND = Attribute(engine.ManyCanceller, "_find")
MANY_CANCELLER_PLACE = Attribute(engine.ManyCanceller, "_place")
CHECKPOINT_TAKE = Attribute(engine.Checkpoint, "_take")
CHECKPOINT_WRITE = Attribute(engine.Checkpoint, "_write")
SCHEDULE_PLACE = Attribute(engine.ScheduleDeliver, "_place")

# --- reading and leases ---

OFFSETS_WRITE = Attribute(engine.Offsets, "_write")
LEASES_CANCEL = Attribute(engine.Leases, "cancel")
HALVES_COMMIT = Attribute(engine.HalfMessages, "_commit")
HALVES_IS_COMMITTED = Attribute(engine.HalfMessages, "_is_committed")
HALVES_ROLL_BACK = Attribute(engine.HalfMessages, "_roll_back")
LEASES_MOVE = Attribute(engine.Leases, "move")
LEASES_SETTLE = Attribute(engine.Leases, "_settle")
LEASES_SETTLE_RECEIVED = Attribute(engine.Leases, "_settle_received")
LEASING_ROW = Attribute(engine.LeaseAppender, "_row")
LEASING_APPEND = Attribute(engine.LeaseAppender, "_append")
LEASE_PROGRESS_KNOWN_IN_RETRY = Attribute(engine.LeaseProgress, "_known_in_retry")

# --- backups ---

COPIER_CONFIG_TEXTS = Attribute(engine.Copier, "_config_texts")
COPIER_BEFORE = Attribute(engine.Copier, "_before")
RESTORING_WRITE_REST = Attribute(engine.restore_backup, "_write_rest")

# --- several shards ---

SHARDED_CHECKED_PLACE = Attribute(engine.ShardedStore, "_checked_place")
SHARDED_CLOSE_ALL = Attribute(engine.sharded, "close_all")
SHARD_CONSUMER_BY_SHARD = Attribute(engine.ShardConsumer, "_by_shard")

# --- what a trace of lines passes over ---

UNDOES = {
    "close", "_unlock", "release", "fail", "give_up", "leave", "stop", "__exit__", "__del__",
    "_failed", "mark_dirty",
}  # fmt: skip
"""Names of functions that only undo another function."""
