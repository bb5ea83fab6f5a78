"""Kill a child that leases, at each step. No message is lost, and no acked message comes again.

Of messages put with a key, only the newest is delivered, once. No unique message comes before the
earlier one was acknowledged, and of the puts that were answered none is lost. The same holds for
the messages of each message group. Each recurring run is delivered once.
"""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

import timerstore
from tests.crash import lease_child
from tests.support.inside import failpoints
from timerstore import AckResult

_POINTS = [
    *((name, 1) for name in failpoints.LEASE_NAMES if name.startswith(("lease", "receive", "ack"))),
    *((name, 1) for name in failpoints.LEASE_NAMES if name.startswith(("replace", "recurring"))),
    *((name, 2) for name in failpoints.LEASE_NAMES if name.startswith("unique")),
    ("replace_appended", 9),
    ("lease_appended", 5),
    ("ack_appended", 6),
    ("reschedule_appended", 2),
    ("deliver_placed", 3),
    ("requeue_appended", 1),
]
_OF_SINGLES = {"singling", "singled", "doing", "finishing"}
_OF_GROUPS = {"grouped", "ordering", "ordered"}


@pytest.fixture(scope="module")
def context() -> multiprocessing.context.BaseContext:
    """Return a context whose children are forks of a server that has imported everything."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.crash.lease_child"])
    return found


class Life:
    """One directory, with children that work on it one after the other."""

    def __init__(self, tmp_path: Path, context: multiprocessing.context.BaseContext) -> None:
        self.root = tmp_path / "store"
        self.context = context
        self.rounds = 0
        self.keyed: dict[str, list[int]] = {"keying": [], "keyed": []}

    def child(self, point: str | None = None, nth: int = 1, *, kill_after_s: float = 0) -> int:
        first = self.rounds * lease_child.PUTS
        self.rounds += 1
        args = (str(self.root), first, self.rounds, point, nth)
        return self._run(lease_child.run, args, kill_after_s)

    def opening(self, point: str) -> int:
        return self._run(lease_child.run_opening, (str(self.root), point, 1), 0)

    def _run(self, target: object, args: tuple[object, ...], kill_after_s: float) -> int:
        process = self.context.Process(target=target, args=args)  # type: ignore[attr-defined]
        process.start()
        if kill_after_s:
            time.sleep(kill_after_s)
            process.kill()
        process.join(120)
        code: int = process.exitcode
        return code

    def check(self) -> None:
        """Check that every message is finally acked, and not delivered afterwards."""
        done: set[int] = set()
        letters: dict[int, str] = {}  # burying, buried or requeueing, whichever came last
        puts: set[int] = set()
        asked: set[int] = set()  # acks whose answer was lost: the message may be acked or not
        attempts: dict[int, int] = {}
        for line in self._notes():
            kind, number, *rest = line.split()
            body = int(number)
            if kind in ("keying", "keyed"):
                self.keyed[kind].append(body)
            elif kind == "put":
                puts.add(body)
            elif kind == "acking":
                asked.add(body)
            elif kind == "buried":
                if letters[body] == "burying":  # else another thread has requeued it already
                    letters[body] = kind
            elif kind in ("burying", "requeueing"):
                letters[body] = kind
                attempts[body] = 0 if kind == "requeueing" else attempts[body]
            elif kind == "acked":
                assert body not in done, f"acked twice: {body}"
                done.add(body)
            else:
                assert body not in done, f"came again after it was acked: {line}"
                assert letters.get(body) != "buried", f"came again after it was buried: {line}"
                assert int(rest[0]) > attempts.get(body, 0), f"attempts went back: {line}"
                attempts[body] = int(rest[0])
        with timerstore.open(self.root, lease_child.CONFIG) as store:
            for job in store.recurring():
                assert store.cancel_every(job.name)
            dead = [int(one.body) for one in store.dead_letters(lease_child.GROUP)]
            assert len(set(dead)) == len(dead), f"a message is two dead letters: {dead}"
            buried = {body for body, kind in letters.items() if kind == "buried"}
            assert buried <= set(dead), f"buried, and no dead letter: {buried - set(dead)}"
            assert not done & set(dead), f"acked, and a dead letter: {done & set(dead)}"
            assert store.requeue(lease_child.GROUP) == len(dead)
            attempts |= dict.fromkeys(dead, 0)
            self._check_single(store)
            self._check_groups(store)
            while got := store.receive(
                lease_child.TOPIC, lease_child.GROUP, max_count=100, wait=1, max_attempts=None
            ):
                for one in got:
                    assert int(one.body) not in done, f"came again after it was acked: {one}"
                    assert one.attempt > attempts.get(int(one.body), 0)
                    done.add(int(one.body))
                assert set(store.ack_many(got)) == {AckResult.ACKED}
            assert puts - done - asked == set(), "lost"
            assert store.stats()["pending_messages"] == 0
            assert store.verify().clean
            self._check_keyed([int(one.body) for one in _all_of(store, lease_child.KEYED)])
            _check_runs([one.message_id for one in _all_of(store, lease_child.TICKS)])

    def _notes(self, kinds: set[str] | None = None) -> list[str]:
        """Return the lines of these kinds; without any, those of plain messages."""
        lines = (self.root.parent / "notes").read_text().splitlines()
        if kinds is not None:
            return [one for one in lines if one.split()[0] in kinds]
        return [one for one in lines if one.split()[0] not in _OF_SINGLES | _OF_GROUPS]

    def _check_single(self, store: timerstore.TimerStore) -> None:
        """Check that one unique message at a time was worked on, and that each stored one came."""
        stored: set[str] = set()
        finishing: set[str] = set()
        came: list[str] = []
        for kind, number, *rest in map(str.split, self._notes(_OF_SINGLES)):
            if kind == "singled" and rest == ["0"]:
                stored.add(number)
            elif kind == "finishing":
                finishing.add(number)
            elif kind == "doing" and number not in finishing:
                # Else its consumer was too slow, and another one got it and ended it before.
                assert set(came) - {number} <= finishing, f"{number} began before the earlier ended"
                came.append(number)
        while got := store.receive(
            lease_child.SINGLE, lease_child.GROUP, lease=60, wait=1, max_attempts=None
        ):
            came.append(str(int(got[0].body)))
            assert store.receive(lease_child.SINGLE, lease_child.GROUP) == []
            assert store.ack(got[0]) is AckResult.ACKED
        assert stored <= set(came)
        assert not store.put(lease_child.SINGLE, b"0", key="k", unique=True).duplicate
        (last,) = store.receive(lease_child.SINGLE, lease_child.GROUP, wait=1)
        assert store.ack(last) is AckResult.ACKED

    def _check_groups(self, store: timerstore.TimerStore) -> None:
        """Check that each message group was worked on in order, and that each stored one came."""
        stored: set[int] = set()
        came: set[int] = set()
        done: set[int] = set()

        def check(number: int) -> None:
            count = len(lease_child.MESSAGE_GROUPS)
            left = {one for one in stored | came if one % count == number % count} - done
            assert number <= min(left, default=number), f"{number} came before {min(left)}"
            came.add(number)

        for kind, text in map(str.split, self._notes(_OF_GROUPS)):
            number = int(text)
            if kind == "grouped":
                stored.add(number)
            elif kind == "ordered":
                done.add(number)
            elif number not in done:  # else a consumer whose lease was over was too slow
                check(number)
        while got := store.receive(
            lease_child.GROUPED, lease_child.GROUP, max_count=100, wait=1, ordered=True,
            max_attempts=None,
        ):  # fmt: skip
            for one in got:
                done.discard(int(one.body))  # its ack was not made, or failed
            for one in got:
                check(int(one.body))
                done.add(int(one.body))
                assert store.ack(one) is AckResult.ACKED
        assert stored <= done

    def _check_keyed(self, came: list[int]) -> None:
        assert came == sorted(set(came)), "one twice, or an older one later"
        assert set(came) <= set(self.keyed["keying"])
        assert came[-1] >= max(self.keyed["keyed"]), "the newest did not come"


def _all_of(store: timerstore.TimerStore, topic: str) -> list[timerstore.Message]:
    return [
        message
        for queue_id in range(store.topics().get(topic, 0))
        for message in store.pull(topic, queue_id, 0, max_count=10_000).messages
    ]


def _check_runs(ids: list[str]) -> None:
    """Check that the first runs of each job were delivered, once each."""
    runs: dict[str, list[int]] = {}
    for _, name, _, number in (one.split("/") for one in ids):
        runs.setdefault(name, []).append(int(number))
    for name, numbers in runs.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), f"{name}: {numbers}"


def test_kill_at_every_step_loses_no_lease(
    tmp_path: Path, context: multiprocessing.context.BaseContext
) -> None:
    life = Life(tmp_path, context)
    for point, nth in _POINTS:
        code = life.child(point, nth)
        assert code == -signal.SIGKILL, f"{point} {nth}: exit {code}"
        if point == "lease_appended":
            code = life.opening("recover_leases_committed")
            assert code in (-signal.SIGKILL, 0)
    life.check()


@pytest.mark.deep
def test_kill_at_random_loses_no_lease(
    tmp_path: Path, context: multiprocessing.context.BaseContext
) -> None:
    random = Random(int(os.environ.get("TIMERSTORE_CRASH_SEED", "7")))
    life = Life(tmp_path, context)
    for _ in range(int(os.environ.get("TIMERSTORE_LEASE_KILLS", "60"))):
        life.child(kill_after_s=0.05 + random.random() * 0.6)
    life.check()
