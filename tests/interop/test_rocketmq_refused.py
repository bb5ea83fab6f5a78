"""Check that a real broker refuses to start on an unfit directory of ours, and does no damage.

A directory is unfit if it is open, if its writer was killed, if its close was interrupted, or if it
is closed but holds messages that a broker would lose or repeat. Then the same process opens a fit
one.
"""

import dataclasses
import shutil
from pathlib import Path

import pytest

import timerstore
from tests.support.broker import our_store as shared_store
from tests.support.broker import process as rocketmq
from tests.support.broker.our_store import QUEUES, SMALL, Made, number_of
from tests.support.broker.process import BrokerError, RocketMQ
from tests.support.inside import failpoints
from timerstore import CancelResult, StoreConfig
from timerstore.testing import ManualClock, Stepper

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

CLOSING = [name for name in failpoints.NAMES if name.startswith("close_")]
LAST = "close_wheel_restored"  # after this point of closing, a broker can open the directory
UNFIT = ["open", "killed", "level gaps", "not indexed", *(one for one in CLOSING if one != LAST)]
FIT = ["open", LAST]  # the first was closed before
# A broker creates these files, empty, if they are missing; ours replaces them.
MADE_BY_BROKER = {"config/timercheck", "checkpoint", "lock"}
SOON_S = 3
GIVE_UP_MS = 60_000


def closed_by_halves(folder: Path, made: Made) -> dict[str, Made]:
    """Return the copies that a kill leaves at each point of closing a store with new cancels."""
    copies = {}

    def hook(point: str) -> None:
        if point in CLOSING:
            copies[point] = dataclasses.replace(
                made, root=Path(shutil.copytree(made.root, folder / point))
            )

    clock = ManualClock(made.end_ms)
    store = timerstore.open(made.root, made.config, clock=clock, threads=False)
    Stepper(store).settle()
    waiting = {pending.message_id for pending in store.pending() if pending.handle}
    for one in [one for one in made.puts if one.message_id in waiting][::4]:
        assert store.cancel(one.handle) is CancelResult.CANCELLED
        one.is_cancelled = True
    failpoints.hook = hook
    try:
        store.close()
    finally:
        failpoints.hook = None
    assert [*copies] == CLOSING
    return copies


def with_level_gaps(root: Path, end_ms: int) -> Made:
    """Return a closed store in which a level's second message was delivered before its first."""
    config = StoreConfig(**SMALL, level_delays="1s 2s")
    clock = ManualClock(end_ms)
    puts = []
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        for number, now_ms in enumerate((end_ms, end_ms - 60_000)):
            clock.set(now_ms)
            body = shared_store.body_of(number, 9)
            one = store.put("orders", body, level=1, queue_id=0)
            puts.append(
                shared_store.Put(number, "orders", 0, one.due_ms, "", one.message_id, "", level=1)
            )
            Stepper(store).settle()
        clock.set(end_ms)
        Stepper(store).settle()
        assert store.stats()["level_pending_messages"] == 1
    return Made(root, config, end_ms, puts, {})


def not_indexed(root: Path, end_ms: int) -> Made:
    """Return a store that was closed while an operator had stopped the indexing."""
    config = StoreConfig(**SMALL)
    clock = ManualClock(end_ms)
    held = dataclasses.replace(config, stop_enqueue=True)
    with timerstore.open(root, held, clock=clock, threads=False) as store:
        body = shared_store.body_of(0, 9)
        one = store.put("orders", body, deliver_ms=end_ms + 1000, queue_id=0)
    put = shared_store.Put(0, "orders", 0, one.due_ms, "", one.message_id, one.handle)
    return Made(root, config, end_ms, [put], {})


def deliver(process: RocketMQ, name: str, made: Made) -> dict[int, list[int]]:
    """Run until all due messages were delivered. Return the delivery times by number."""
    process.wait_until(made.soon_over_ms + 1000)
    while True:
        out: dict[int, list[int]] = {}
        for queue in QUEUES:
            for one in process.messages(name, *queue):
                out.setdefault(number_of(one.body), []).append(one.store_ms)
        if made.out_by(made.soon_over_ms) <= out.keys():
            return out
        assert rocketmq.now_ms() < made.end_ms + GIVE_UP_MS
        process.wait_until(rocketmq.now_ms() + 200)


def build(folder: Path, now_ms: int) -> dict[str, Made]:
    made = {
        "open": shared_store.make(folder / "live", SMALL, now_ms, soon_s=SOON_S),
        "killed": shared_store.make(folder / "killed", SMALL, now_ms, soon_s=SOON_S, dies=True),
        "level gaps": with_level_gaps(folder / "gaps", now_ms),
        "not indexed": not_indexed(folder / "held", now_ms),
    }
    halves = shared_store.make(folder / "halves", SMALL, now_ms, soon_s=SOON_S)
    return made | closed_by_halves(folder, halves)


def check_refused(process: RocketMQ, name: str, made: Made) -> None:
    before = shared_store.files_of(made.root)
    with pytest.raises(BrokerError, match="refused"):
        process.open(name, made.root, made.config)
    after = shared_store.files_of(made.root)
    new = after.keys() - before.keys()
    assert new <= MADE_BY_BROKER, name
    assert not any(after.pop(path) for path in new), name
    assert after == before, name


def check_delivered(made: Made, out: dict[int, list[int]]) -> None:
    assert made.out_by(made.soon_over_ms) - made.out_by(made.end_ms)
    assert {number: len(times) for number, times in out.items()} == dict.fromkeys(out, 1)
    assert all(times[0] >= made.due_ms[number] for number, times in out.items())
    assert not {one.number for one in made.puts if one.is_cancelled} & out.keys()


def check_going_on(name: str, made: Made) -> None:
    found = shared_store.finish(made, rocketmq.now_ms())
    if name == "level gaps":  # the clock was set back after the due time of the first one was fixed
        assert {number: len(messages) for number, messages in found.items()} == {0: 1, 1: 1}
    else:
        shared_store.check_all_out_once(made, found)


def test_broker_refuses_unfit_directories_and_delivers_from_fit_ones_once(tmp_path: Path) -> None:
    """This is one test, so that it needs one Java process however tests are distributed."""
    rocketmq.need_rocketmq()
    process = RocketMQ(tmp_path / "java")
    try:
        made = build(tmp_path, rocketmq.now_ms())
        live = made["open"]
        clock = ManualClock(live.end_ms)
        with timerstore.open(live.root, live.config, clock=clock, threads=False) as store:
            for name in UNFIT:
                check_refused(process, name, made[name])
            Stepper(store).settle()  # failed attempts do not affect it
            report = store.verify()
            assert report.clean, report
        for name in FIT:
            process.open(f"fit {name}", made[name].root, made[name].config)
        for name in FIT:
            check_delivered(made[name], deliver(process, f"fit {name}", made[name]))
    finally:
        process.kill()
    for name in (*UNFIT[:4], LAST):  # the rest is in test_our_files.py
        check_going_on(name, made[name])
