"""The fold compared with a plain model, and over random histories of a store."""

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic_log import SyntheticLog, timer_states
from timerstore._engine.log.fold import Fold, fold

OURS = 7


Event = tuple[str, str, int, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["timer", "timer", "roll", "delivered", "delete"]),
        st.sampled_from("ab"),
        st.sampled_from([1000, 2000]),
        st.integers(1, 3),
    ),
    max_size=30,
)


def write(log: SyntheticLog, event: Event) -> None:
    what, key, out_ms, rolls = event
    if what == "timer":
        log.timer(key, out_ms)
    elif what == "roll":
        log.timer(key, out_ms, rolls=rolls)
    elif what == "delivered":
        log.delivered(key, out_ms)
    else:
        log.delete(f"T+{key}", out_ms)


def modelled(events: list[Event]) -> tuple[list[int], list[int], list[int], int, int]:
    """Apply the same rules record by record.

    Returns pending, delivered and cancelled ids, and the numbers of duplicates and orphans.
    """
    groups: dict[tuple[str, int], list[tuple[str, int, int]]] = defaultdict(list)
    deletes: set[tuple[str, int]] = set()
    queue_offset = 0
    for what, key, out_ms, rolls in events:
        at = queue_offset
        queue_offset += what != "delivered"
        if what == "delete":
            deletes.add((key, out_ms))
        else:
            groups[key, out_ms].append((what, at, rolls if what == "roll" else 0))
    pending: list[int] = []
    delivered: list[int] = []
    cancelled: list[int] = []
    duplicates = orphans = 0
    for name, records in groups.items():
        copies = [(rolls, at) for what, at, rolls in records if what != "delivered"]
        without = sum(rolls == 0 for rolls, _ in copies)
        messages = without or min(1, len(copies))
        current = sorted(copies, reverse=True)[:messages]
        current.sort(key=lambda copy: (-copy[0], copy[1]))
        open_count = out = seen = 0
        for what, _, rolls in records:
            if what == "delivered" and open_count:
                open_count, out = open_count - 1, out + 1
            elif what == "delivered":
                duplicates, orphans = duplicates + bool(seen), orphans + (not seen)
            else:
                open_count += rolls == 0 if without else not seen
                seen += 1
        delivered += [at for _, at in current[:out]]
        (cancelled if name in deletes else pending).extend(at for _, at in current[out:])
    return sorted(pending), sorted(delivered), sorted(cancelled), duplicates, orphans


@given(EVENTS)
def test_matching_agrees_with_the_model(events: list[Event]) -> None:
    log = SyntheticLog()
    for event in events:
        write(log, event)
    found = fold(log.scan)
    assert (*timer_states(log), len(found.duplicate_rows), len(found.orphan_rows)) == modelled(
        events
    )


# --- histories of a store ---


class Life:
    """A store that a broker and this engine use in turn, with the true state of each message."""

    def __init__(self) -> None:
        self.log = SyntheticLog()
        self.messages: list[dict[str, Any]] = []
        self.by_offset: dict[int, int] = {}

    def copy(self, number: int, *, own: bool) -> None:
        """Put or roll a message. `own`: by this engine, so that the copy carries its id."""
        message = self.messages[number]
        message["row"] = len(self.log.rows)
        ts_id = (OURS, message["id"]) if own or message["carried"] else None
        message["carried"] = ts_id is not None
        at = self.log.timer(message["key"], rolls=message["rolls"], own=ts_id)
        self.by_offset[at] = number
        if ts_id is None:
            message["id"] = at  # an imported message's id is that of its current copy

    def put(self, *, own: bool) -> None:
        number = len(self.messages)
        at = self.log.next_queue_offset
        message = {"key": f"k{number}", "id": at, "state": "pending", "rolls": 0, "carried": False}
        self.messages.append(message)
        self.copy(number, own=own)

    def roll(self, number: int, *, own: bool) -> None:
        self.messages[number]["rolls"] += 1
        self.copy(number, own=own)

    def deliver(self, number: int, *, own: bool) -> None:
        message = self.messages[number]
        message["state"] = "delivered"
        ts_id = (OURS, message["id"]) if own or message["carried"] else None
        self.log.delivered(message["key"], own=ts_id)

    def cancel(self, number: int, *, own: bool) -> None:
        message = self.messages[number]
        message["state"] = "cancelled"
        ts_id = (OURS, message["id"]) if own else None
        self.by_offset[self.log.delete(f"T+{message['key']}", own=ts_id)] = number

    def check(self) -> None:
        found: Fold = fold(self.log.scan, OURS)
        for state in ("pending", "delivered", "cancelled"):
            ids = [message["id"] for message in self.messages if message["state"] == state]
            assert getattr(found, f"ids_{state}").tolist() == sorted(ids)
        rows = {message["id"]: message["row"] for message in self.messages}
        for timer_id, row in zip(found.ids_pending, found.rows_pending, strict=True):
            assert rows[int(timer_id)] == row
        assert len(found.duplicate_rows) == len(found.orphan_rows) == 0
        assert found.next_id == self.log.next_queue_offset


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "roll", "deliver", "cancel", "check"]),
        st.integers(0, 50),
        st.booleans(),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(STEPS)
def test_fold_agrees_with_random_histories_of_broker_and_own_writes(
    steps: list[tuple[str, int, bool]],
) -> None:
    life = Life()
    for what, pick, own in steps:
        pending = [at for at, each in enumerate(life.messages) if each["state"] == "pending"]
        if what == "check":
            life.check()
        elif what == "put":
            life.put(own=own)
        elif pending:
            getattr(life, what)(pending[pick % len(pending)], own=own)
    life.check()
