"""What a store may leave unsynced when it answers, and which acts must wait for a sync.

This is data for the recorder (recorder.py). Each line has a reason: a file that is missing here
must be durable when a call answers.
"""

from tests.support.durable.recorder import Allowed, Barrier

STAGING = Allowed(
    "contents",
    "*/timerstore/staging",
    "a shared map that serves kills only: after a power cut its boot id is another one",
)
INDEX = Allowed(
    "contents", "*/index/*", "it has a durable position of its own, and is built again behind that"
)
QUEUES = Allowed(
    "contents", "*/consumequeue/*", "recovery dispatches the log behind the watermark again"
)
TIMER_LOG = Allowed(
    "contents", "*/timerlog/*", "recovery links what is behind the watermark again, from the log"
)
FAR_LOG = Allowed(
    "contents", "*timerstore/far/*", "recovery writes the units behind the watermark again"
)
IDS = Allowed(
    "removed", "*/timerstore/ids-*", "the watermark speaks of another: it is removed once more"
)
HALF_WRITTEN = Allowed("*", "*.tmp", "a kill left it under this name: the next write replaces it")
OLD_NAME = Allowed(
    "removed", "*/.*.tmp", "the name that a new file had before its own: the janitor removes it"
)
OLD_QUEUE = Allowed(
    "removed", "*consumequeue/*", "the log begins behind its messages: retention drops it again"
)
LOCK = Allowed("name", "*lock", "it is a lock: a later owner makes it again")
DROPPED = Allowed(
    "removed", "*_ingest/staging/*", "what a replay staged: the janitor removes it once more"
)

ANSWER = (STAGING, INDEX, QUEUES, TIMER_LOG, FAR_LOG, IDS)
"""After a call that appends to the log, or reads it."""

CHECKPOINT = (STAGING, INDEX, IDS)
"""After a checkpoint, and so after every opening."""

RECOVERED = (*CHECKPOINT, FAR_LOG, HALF_WRITTEN, OLD_QUEUE)
"""After an opening that recovers: units that the far wheel's table does not name stay."""

CLOSED = (STAGING, IDS)
"""After closing."""

_SIDE = Allowed("contents", "timerstore/staging", STAGING.reason)
_INDEX = Allowed("contents", "index/*", INDEX.reason)
_OWN = Allowed("*", "timerstore/watermark", "the act itself")
_BACKUP_OWN = Allowed("*", "backup.json*", "the act itself")

_UNITS = "the wheel leads to durable units only"

BARRIERS = (
    Barrier(
        "write", "*/timerstore/watermark", 2, ("*",),
        "the watermark speaks of durable files only", (_SIDE, _INDEX, _OWN),
    ),
    Barrier(
        "unlink", "*/abort", 1, ("*",), "a store that is closed is durable",
        (_SIDE, IDS._replace(pattern="timerstore/ids-*")),
    ),
    Barrier(
        "resize", "*/timerwheel", 1, ("abort", "timerstore"),
        "the store is marked open before its wheel changes",
    ),
    Barrier(
        "write", "*/commitlog/*", 1, ("abort", "timerstore"),
        "the store is marked open before its log changes",
    ),
    Barrier(
        "write", "*/timerwheel", 1, ("timerstore/wheel",),
        "a sector's checksum is durable before the sector changes",
    ),
    Barrier(
        "write", "*/timerwheel", 1, ("timerlog/*",), _UNITS,
    ),
    Barrier(
        "zero", "*/timerlog/*", 1, ("timerwheel",),
        "the wheel leads to nothing that is cut from the timer log",
    ),
    Barrier(
        "unlink", "*/timerstore/watermark", 2, ("commitlog/*",),
        "without a watermark the log must be whole",
    ),
    Barrier(
        "unlink", "*/commitlog/*", 1, ("timerstore/watermark", "commitlog/*"),
        "where the log begins is durable before its first file goes",
    ),
    Barrier(
        "punch", "*/timerstore/state", 2, ("timerstore/watermark",),
        "nothing counts any more of what is given back",
    ),
    Barrier(
        "unlink", "*/timerstore/ids-*", 2, ("timerstore/watermark",),
        "the last watermark speaks of another file",
    ),
    Barrier(
        "rename", "*/timerstore/index", 2, ("index/*",),
        "the index's position speaks of durable entries only",
    ),
    Barrier(
        "rename", "*backup.json", 1, ("*",),
        "a backup's manifest speaks of durable files only", (_BACKUP_OWN, LOCK),
    ),
    Barrier(
        "rename_folder", "*.restoring", 0, ("*",), "a restored store is durable before it is named"
    ),
    Barrier(
        "rename_folder", "*.repairing", 0, ("*",), "a repaired store is durable before it is named"
    ),
    Barrier(
        "link", "*/cluster.json", 1, ("*",), "cluster.json speaks of folders that are durable",
        (Allowed("*", ".cluster.json.*", "the act itself"),),
    ),
    Barrier(
        "link", "*/_ingest/manifests/*", 4, ("_ingest/*",),
        "a manifest speaks of durable files only",
        (
            Allowed("*", "_ingest/manifests/*/.*.tmp", "the act itself"),
            LOCK,
        ),
    ),
    Barrier(
        "unlink", "*/_ingest/staging/*/00000.arrow", 6, ("shard-00000/commitlog/*",),
        "staged rows go when they are in their shard's log",
    ),
)  # fmt: skip

RECOVERY_BARRIERS = (
    *(
        one._replace(allowed=(*one.allowed, FAR_LOG, HALF_WRITTEN, OLD_QUEUE))
        for one in BARRIERS[:2]
    ),
    *(one for one in BARRIERS[2:] if one.reason != _UNITS),
)
"""While a store is opened after a kill: it writes the wheel before it cuts the timer log."""
