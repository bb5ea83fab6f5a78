"""Kill -9 a child that ends half messages, between each append and its answer.

Each half message has one outcome: a committed one is in its topic once, one that was rolled back
never. The call that the kill interrupted is repeated and told what became of the message.
"""

import multiprocessing
import signal
from contextlib import suppress
from pathlib import Path

import timerstore
from tests.crash import half_child
from timerstore import AckResult, NotPendingError, TimerStore

_POINTS = [
    ("half_appended", 1),  # by a handle
    ("half_appended", 4),
    ("half_appended", 9),  # by the receipt of a check
    ("half_appended", 13),
    ("reschedule_encoded", 2),
    ("reschedule_appended", 2),
    ("reschedule_appended", 8),
    ("lease_appended", 2),
    ("deliver_placed", 1),
]
_ANSWER = {"commit": AckResult.COMMITTED, "rollback": AckResult.ROLLED_BACK}


def test_kill_between_append_and_answer_leaves_one_outcome(tmp_path: Path) -> None:
    root, context = tmp_path / "store", multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.half_child"])
    for number, (point, nth) in enumerate(_POINTS):
        args = (str(root), number * half_child.PUTS, point, nth)
        child = context.Process(target=half_child.run, args=args)
        child.start()
        child.join(120)
        assert child.exitcode == -signal.SIGKILL, f"{point} {nth}: exit {child.exitcode}"
    _check(root, (tmp_path / "notes").read_text().splitlines())


def _check(root: Path, lines: list[str]) -> None:
    puts: set[int] = set()
    asked: dict[int, tuple[str, str]] = {}  # the call and its target
    answers: dict[int, str] = {}
    for kind, text, target in map(str.split, lines):
        number = int(text)
        if kind == "put":
            puts.add(number)
        elif kind in _ANSWER:
            assert number not in answers, f"checked after {answers[number]}: {number}"
            asked[number] = kind, target
        else:
            assert kind == _ANSWER[asked[number][0]], f"{kind}: {number}"
            answers[number] = kind
    with timerstore.open(root, half_child.CONFIG) as store:
        committed = {number for number, kind in answers.items() if kind == "COMMITTED"}
        rolled_back = {number for number, kind in answers.items() if kind == "ROLLED_BACK"}
        unanswered = asked.keys() - answers.keys()
        assert len(committed) > 20
        assert len(rolled_back) > 10
        assert len(unanswered) >= 6
        for number in unanswered:
            call, target = asked[number]
            answer = getattr(store, call)(target)
            if call == "commit":
                assert answer is AckResult.COMMITTED
                committed.add(number)
            else:
                assert answer in (AckResult.ROLLED_BACK, AckResult.SETTLED)
                rolled_back.add(number)
        for number, (call, target) in asked.items():  # as often as a caller likes
            again = {"commit": AckResult.COMMITTED, "rollback": AckResult.SETTLED}
            assert getattr(store, call)(target) is again[call], number
        _end_the_others(store, puts - committed - rolled_back, committed)
        came = [int(one) for one in _received(store)]
        assert sorted(came) == sorted(committed), "not once each"
        assert not list(store.pending())
        assert store.verify().clean


def _end_the_others(store: TimerStore, others: set[int], committed: set[int]) -> None:
    """Commit the rest by their checks: now those that are due in an hour as well."""
    for one in list(store.pending(topic=half_child.CHECKS)):
        with suppress(NotPendingError):  # it has come due since
            store.reschedule(one.handle, delay=0)
    for one in list(store.pending(topic=f"%RETRY%{half_child.GROUP}|{half_child.CHECKS}")):
        store.reschedule(one.handle, delay=0)  # of a child that died with a lease of ten minutes
    while got := store.receive(half_child.CHECKS, half_child.GROUP, max_count=9, wait=1):
        for one in got:
            assert int(one.body) in others, f"checked, and it has an outcome: {one}"
            assert store.commit(one) is AckResult.COMMITTED
            committed.add(int(one.body))
    assert others <= committed, "lost"


def _received(store: TimerStore) -> list[bytes]:
    found = []
    while got := store.receive(half_child.TOPIC, "readers", max_count=100, wait=1, lease=600):
        found += [one.body for one in got]
        store.ack_many(got)
    return found
