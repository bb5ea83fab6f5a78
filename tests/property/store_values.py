"""What the state machine of a store draws from: queues, due times, sizes, and fail points."""

from hypothesis import strategies as st

from tests.support.driver import DAY_MS, YEAR_MS
from tests.support.inside import failpoints

QUEUES = st.sampled_from([("orders", 0), ("orders", 1), ("mail", 0), ("ranked", 0), ("ranked", 9)])
TOPICS = st.sampled_from(["orders", "mail"])
LEASED = st.sampled_from(["orders", "mail", "ranked", ["orders", "mail"], ["ranked", "mail"]])
SERVICES = st.sampled_from(
    [
        "dispatch",
        "enqueue_get",
        "enqueue_put",
        "dequeue_get",
        "dequeue_get_message",
        "dequeue_put",
        "schedule_deliver",
        "retention",
        "flush",
    ]
)
LEASE_MS = st.sampled_from([1, 700, 5000, 40_000, DAY_MS])
SETTLES = st.sampled_from(
    ["ack", "ack", "nack", "extend", "renew", "ack_many", "bury", "give_back"]
)
LEASE_POINTS = [
    "lease_appended", "put_many_part_appended", "receive_answered", "log_synced", "log_rolled",
    "log_half_swapped", "log_written_out", "segment_created",
]  # fmt: skip
BATCH_POINTS = [
    "log_rolled", "log_half_swapped", "log_written_out", "segment_created", "log_synced",
]  # fmt: skip
SOURCES = st.sampled_from(["a", "b/ü"])
ALL_NAMES = (*failpoints.NAMES, *failpoints.LEASE_NAMES)
NTH = st.integers(1, 3)
EDGE_MS = st.sampled_from([-1, 0, 1])
FAR_MS = st.sampled_from([DAY_MS, 3 * DAY_MS + 1, 400 * DAY_MS, 30 * YEAR_MS])
# In slots from the present one: its neighbours, the roll window (48) and its third, and laps.
SLOTS = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 24, 47, 48, 49, 63, 64, 65, 127, 128, 129, 300])
DUE = st.one_of(
    st.none(),
    st.tuples(st.just("slot"), SLOTS, EDGE_MS),
    st.tuples(st.just("ms"), st.integers(-50, 5000), st.just(0)),
    st.tuples(st.just("far"), FAR_MS, EDGE_MS),
)
LEVELS = st.sampled_from([1, 1, 2, 3, 5, 18, 99])
SIZES = st.one_of(st.integers(6, 60), st.sampled_from([1000, 3000, 7000]))
RECOVER_POINTS = [name for name in ALL_NAMES if name.startswith("recover_")]
SETTLE_POINTS = [
    name
    for name in ALL_NAMES
    if name.startswith(
        (
            "dispatch",
            "enqueue",
            "dequeue",
            "deliver",
            "schedule",
            "checkpoint",
            "segment",
            "lease_progress",
            "log_",
            "retention",
            "far",
        )
    )
]
RETENTION_POINTS = [name for name in failpoints.NAMES if name.startswith("retention")]
CLOSE_POINTS = [name for name in failpoints.NAMES if name.startswith(("checkpoint", "close"))]
DERIVED = [
    "timerstore/watermark",
    "timerstore/state",
    "timerstore/counts",
    "timerstore/index",
    "timerstore/ingest",
    "timerstore/ids-0",
    "index",
    "timerwheel",
    "timerlog",
    "consumequeue",
    "config/timercheck",
    "config/timermetrics",
    "checkpoint",
    "timerstore/far",
    "timerstore/far-0",
    "timerstore/far-1",
]
