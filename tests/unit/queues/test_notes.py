"""What dispatch takes from notes is what it would read in the log; a note less changes nothing."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.support.bench import NOW, SECOND, Bench, small
from timerstore import CancelResult, FullError, failpoint
from timerstore.commitlog import commit_log
from timerstore.layout.tree import WHEEL_TIMER_TOPIC
from timerstore.native import ffi, lib
from timerstore.queues.dispatch import Dispatch
from timerstore.timer.request import REQUEST

HORIZON_MS = 20 * SECOND
CHANGES: list[dict[str, Any]] = [
    {},
    {"property_crc": False},
    {"index_enabled": False},
    {"index_tags": True},
]


class Checked:
    """Compares each batch that is taken from notes with what the log says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        take, read = Dispatch._take_notes, Dispatch._read

        def checked_take(dispatch: Dispatch, written: int) -> int:
            count = take(dispatch, written)
            if count:
                self.seen["noted"] += count
                self.compare(dispatch, count)
            return count

        def counted_read(dispatch: Dispatch, end: int) -> int:
            count = read(dispatch, end)
            self.seen["read"] += count
            return count

        self._read = read
        patch.setattr(Dispatch, "_take_notes", checked_take)
        patch.setattr(Dispatch, "_read", counted_read)

    def compare(self, dispatch: Dispatch, count: int) -> None:
        """Read the same records, and leave everything as it was taken."""
        end, requests = dispatch._next[0], dispatch._request_count[0]
        noted = found_by(dispatch, count)
        assert self._read(dispatch, end) == count
        assert dispatch._next[0] == end
        assert found_by(dispatch, count) == noted
        got = np.frombuffer(bytes(dispatch._requests), REQUEST)[:requests]
        assert got.tolist() == read_requests(dispatch, count).tolist()
        self.seen["requests"] += requests


def found_by(dispatch: Dispatch, count: int) -> tuple[Any, ...]:
    """Units, where they go, and keys."""
    keys: list[tuple[int, ...]] = []
    if dispatch.index is not None:
        all_keys = dispatch.index.keys
        keys = [(one.log_offset, one.store_ms, one.hash) for one in all_keys.at[0 : all_keys.count]]
    return (
        bytes(dispatch._units[: 20 * count]),
        dispatch._indexes[:count].tolist(),
        dispatch._offsets[:count].tolist(),
        keys,
    )


def read_requests(dispatch: Dispatch, count: int) -> Any:
    """The requests of the timers among the units."""
    timer = dispatch._routes.make(WHEEL_TIMER_TOPIC, 0, 0)
    found = []
    with dispatch._log.segments.view(dispatch._next[0]) as view:
        for k in range(count):
            if dispatch._indexes[k] != timer.native.index:
                continue
            one, unit = np.empty(1, REQUEST), bytes(dispatch._units[20 * k : 20 * k + 20])
            while (status := take_one(dispatch, view, unit, int(dispatch._offsets[k]), one)) < 0:
                dispatch._log.segments.serve(view, status, "test")
            found.append(one)
    return np.concatenate(found) if found else np.empty(0, REQUEST)


def take_one(dispatch: Dispatch, view: Any, unit: bytes, offset: int, one: Any) -> int:
    """Read the request of one unit."""
    return int(
        lib.ts_timer_requests(
            view,
            unit,
            1,
            offset,
            dispatch._log.native.store_id,
            dispatch._precision_ms,
            ffi.from_buffer("ts_request[]", one),
        )
    )


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Every store compares."""
    return Checked(monkeypatch)


def work(bench: Bench, seed: int) -> int:
    """Put this and that, and turn the clock; how many messages come out of it by and by."""
    draw, count = random.Random(seed), 0
    for _ in range(60):
        size = draw.choice([1, 3, 4, 17, 90])
        bodies = [draw.randbytes(draw.randrange(300)) for _ in range(size)]
        given: dict[str, Any] = {}
        if draw.random() < 0.7:
            given["deliver_ms"] = [
                bench.clock.now_ms + draw.randrange(-1000, HORIZON_MS) for _ in bodies
            ]
        elif draw.random() < 0.3:
            given = {"level": draw.choice([1, 2])}
        if draw.random() < 0.3:
            given["tags"] = draw.choice(["a", "é"])
        if draw.random() < 0.2:
            given["keys"] = [draw.choice(["k", "k l"]).split() for _ in bodies]
        topic = draw.choice(["t", "u", "a-longer-topic"])
        if draw.random() < 0.2:
            for body in bodies:
                properties = {"p": "TAGS" * draw.randrange(1, 3), "q": "é"}
                bench.store.put(topic, body, delay=draw.randrange(20), properties=properties)
        else:
            receipts = bench.store.put_many(topic, bodies, **given)
            if "deliver_ms" in given and draw.random() < 0.2:
                handle = next((one.handle for one in receipts if one.handle), None)
                if handle is not None:
                    count -= bench.store.cancel(handle) is CancelResult.CANCELLED
        count += size
        if draw.random() < 0.5:
            bench.turn(draw.choice([0, 1, 700, 3000]))
    return count


@pytest.mark.parametrize("seed", range(20))
def test_notes_say_what_the_log_says(
    checked: Checked, bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = CHANGES[seed % len(CHANGES)]
    if seed % 4 == 3:
        monkeypatch.setattr(commit_log, "_NOTES", 8)
    bench.close()
    bench.config = small(**changes, commit_log_segment_bytes=1 << 16)
    bench.open()
    count = work(bench, seed)
    for _ in range(4):
        bench.turn(HORIZON_MS)
    topics = {t: n for t, n in bench.store.topics().items() if not t.startswith(("rmq", "SCHED"))}
    out = sum(len(bench.out(topic, k)) for topic, queues in topics.items() for k in range(queues))
    assert out == count
    assert checked.seen["read"] > 0
    assert checked.seen["noted"] > (50 if seed % 4 == 3 else 500)
    assert checked.seen["requests"] > (10 if seed % 4 == 3 else 100)


def test_a_step_that_failed_reads_what_it_had_taken(
    checked: Checked, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.store.put_many("t", [b"%d" % k for k in range(20)], deliver_ms=[NOW + 500] * 20)

    def full(name: str) -> None:
        if name == "dispatch_queues_written":
            raise FullError("no space left", where="here")

    monkeypatch.setattr(failpoint, "hook", full)
    with pytest.raises(FullError):
        bench.store._opened.rooms.dispatch.step()
    monkeypatch.setattr(failpoint, "hook", None)
    bench.turn(SECOND)
    assert [one.body for one in bench.out()] == [b"%d" % k for k in range(20)]
    assert checked.seen["read"] >= 20
    assert [one.body for one in bench.store.query("t", bench.out()[7].message_id)] == [b"7"]
