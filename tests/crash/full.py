"""Fill up a small file system under a store, and give the space back.

    python -m tests.crash.full <mount point>     cases as JSON lines on stdin, results on stdout

Each case runs in a fork of this process, so that a signal ends the case and not the test.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import timerstore
from tests.crash.check import check
from tests.crash.child import run_guarded
from tests.crash.history import History
from tests.crash.report import ANSWERS, QUEUES, Kind, Line, Reporter, make_body, read_body
from tests.crash.worker import watch
from timerstore import FullError, StoreConfig, TimerStore

CONFIG: dict[str, Any] = {
    "commit_log_segment_bytes": 16 * 1024,
    "queue_segment_bytes": 400,
    "timer_log_segment_bytes": 4096,
    "index_slot_count": 50,
    "index_entry_count": 300,
    "wheel_slot_count": 1024,
    "precision_ms": 20,
    "staging_bytes": 4096,
    "checkpoint_interval_ms": 20,
    "flush_interval_ms": 20,
}
_QUEUE = 1  # index of the queue in QUEUES that receives the puts
_FULL_S = 0.25  # seconds during which the disk stays full
_RESUME_S = 10.0  # seconds in which every due message must then be delivered


class Filling:
    """Fill the disk through a store, and check which calls work while it is full."""

    def __init__(self, case: dict[str, Any], mount: Path, pipe: int) -> None:
        self._case = case
        self._mount = mount
        self._random = Random(case["seed"])
        self._report = Reporter(pipe, 0)
        self._config = StoreConfig(**case["config"])
        self._number = 0
        self._waiting: dict[int, str] = {}  # id -> handle
        self._wanted: set[int] = set()  # acknowledged, neither cancelled nor pulled yet
        self._seen = 0

    def work(self) -> None:
        """Run the case."""
        store = timerstore.open(self._mount / "store", self._config)
        self._report.say(Kind.OPENED)
        stored = 0
        while self._put(store):
            stored += 1
            if not stored % 7:
                self._cancel_one(store)
        self._report.say(Kind.NOTE, a=1, b=stored)
        self._while_full(store)
        how = self._case["end"]
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "resume":
            (self._mount / "ballast").unlink()
            self._resume(store)
        try:
            store.close()
        except FullError:
            assert how == "close", "the disk has space again"
        self._report.say(Kind.FINISHED)

    def _while_full(self, store: TimerStore) -> None:
        until = time.monotonic() + _FULL_S
        refused = 0
        while time.monotonic() < until:
            refused += not self._put(store)
            self._put_many(store)
            self._cancel_one(store)
            self._flush(store)
            self._pull(store)
            self._look(store)
            time.sleep(0.002)
        self._report.say(Kind.NOTE, a=2, b=refused)

    def _resume(self, store: TimerStore) -> None:
        began = time.monotonic()
        while not self._put(store) and time.monotonic() < began + _RESUME_S:
            time.sleep(0.001)
        self._report.say(Kind.NOTE, a=3, b=int(1000 * (time.monotonic() - began)))
        while self._wanted and time.monotonic() < began + _RESUME_S:
            self._pull(store)
            time.sleep(0.002)
        assert not self._wanted, (
            f"{len(self._wanted)} did not come within {_RESUME_S} s: {store.stats()}"
        )

    # --- calls, each returning whether it succeeded ---

    def _put(self, store: TimerStore) -> bool:
        self._number += 1
        number = self._number
        delay_ms = self._random.choice((0, 5, 60, 300))
        due_ms = time.time_ns() // 1_000_000 + delay_ms if delay_ms else 0
        body = make_body(number, due_ms, self._random.randint(16, 900))
        topic, queue_id = QUEUES[_QUEUE]
        self._report.say(Kind.PUT_BEGUN, queue=_QUEUE, id=number, due=due_ms)
        try:
            receipt = store.put(topic, body, deliver_ms=due_ms, queue_id=queue_id)
        except FullError:
            self._report.say(Kind.REFUSED, queue=_QUEUE, id=number, a=Kind.PUT_BEGUN)
            return False
        self._acked(number, receipt)
        return True

    def _acked(self, number: int, receipt: timerstore.PutReceipt) -> None:
        waits = receipt.queue_offset is None
        self._wanted.add(number)
        if waits:
            self._waiting[number] = receipt.handle
        self._report.say(
            Kind.PUT,
            queue=_QUEUE,
            id=number,
            due=receipt.due_ms,
            a=receipt.timer_id if waits else -1,
            b=-1 if receipt.queue_offset is None else receipt.queue_offset,
            message_id=receipt.message_id.encode(),
        )

    def _put_many(self, store: TimerStore) -> None:
        count = self._random.randint(1, 20)
        first = self._number + 1
        self._number += count
        due_ms = time.time_ns() // 1_000_000 + 100
        bodies = [make_body(first + k, due_ms, 200) for k in range(count)]
        topic, queue_id = QUEUES[_QUEUE]
        self._report.say(Kind.PUT_MANY_BEGUN, queue=_QUEUE, id=first, a=count)
        try:
            batch = store.put_many(topic, bodies, deliver_ms=due_ms, queue_id=queue_id)
        except FullError:
            return  # a prefix may be stored
        for k, receipt in enumerate(batch):
            self._acked(first + k, receipt)

    def _cancel_one(self, store: TimerStore) -> None:
        if not self._waiting:
            return
        number, handle = self._waiting.popitem()
        self._report.say(Kind.CANCEL_BEGUN, queue=_QUEUE, id=number)
        try:
            answer = store.cancel(handle)
        except FullError:
            self._report.say(Kind.REFUSED, queue=_QUEUE, id=number, a=Kind.CANCEL_BEGUN)
            return
        self._report.say(Kind.CANCELLED, queue=_QUEUE, id=number, answer=ANSWERS.index(answer))
        if answer is timerstore.CancelResult.CANCELLED:
            self._wanted.discard(number)

    def _flush(self, store: TimerStore) -> None:
        try:
            store.flush()
        except FullError:
            self._report.say(Kind.NOTE, a=4)

    def _look(self, store: TimerStore) -> None:
        store.stats()
        try:
            list(store.pending())
        except FullError:  # a query first writes the queues up to the end of the log
            self._report.say(Kind.NOTE, a=5)

    def _pull(self, store: TimerStore) -> None:
        topic, queue_id = QUEUES[_QUEUE]
        if topic not in store.topics():
            return
        lines = []
        for message in store.pull(topic, queue_id, self._seen).messages:
            number, _ = read_body(message.body)
            self._wanted.discard(number)
            lines.append(
                Line(
                    Kind.PULLED,
                    queue=_QUEUE,
                    id=number,
                    due=message.due_ms,
                    a=message.queue_offset,
                    b=message.delivered_ms,
                )
            )
        self._report.say_all(lines)
        self._seen += len(lines)


def _open_only(case: dict[str, Any], mount: Path) -> None:
    """Open on a full disk. It succeeds or raises FullError, and the lock is free afterwards."""
    for _ in range(2):
        with suppress(FullError):
            timerstore.open(mount / "store", StoreConfig(**case["config"])).close()


def _live(case: dict[str, Any], mount: Path) -> dict[str, Any]:
    trouble = mount.parent / "trouble"
    trouble.unlink(missing_ok=True)
    history = History()
    problems: list[str] = []
    ballast = mount / "ballast"
    _fill(ballast, mount, case["left_bytes"])

    def step(name: str, run: Any, deaths: tuple[int, ...] = (0,)) -> bytes:
        raw, status = watch(lambda pipe: run_guarded(trouble, lambda: run(pipe)))
        if status not in deaths:
            paths = (trouble, trouble.with_suffix(".stacks"))
            said = "\n".join(path.read_text() for path in paths if path.exists())
            problems.append(f"{name}: died with status {status:#x} {said}")
        return raw

    if case["end"] == "open":
        step("opening", lambda _pipe: _open_only(case, mount))
        raw = b""
    else:
        deaths = (signal.SIGKILL,) if case["end"] == "kill" else (0,)
        raw = step("filling", lambda pipe: Filling(case, mount, pipe).work(), deaths)
        if case["end"] in ("kill", "close"):
            _fill(mount / "ballast-2", mount, 0)
            step("opening", lambda _pipe: _open_only(case, mount))
    history.read(raw)
    ballast.unlink(missing_ok=True)
    (mount / "ballast-2").unlink(missing_ok=True)

    def checked(pipe: int) -> None:
        found = check(mount / "store", case["config"], history, case["seed"])
        os.write(pipe, json.dumps(found).encode())

    answer = step("checking", checked)
    problems += json.loads(answer) if answer else ["no answer from the check"]
    notes = dict.fromkeys(range(1, 6), 0)
    for line in history.notes:
        notes[line.a] += max(1, line.b)
    return {
        "case": case,
        "stored": notes[1],
        "refused": notes[2],
        "resumed_ms": notes[3],
        "messages": len(history.acked),
        "problems": problems,
    }


def _fill(path: Path, mount: Path, left_bytes: int) -> None:
    """Fill the disk except for some bytes."""
    free = os.statvfs(mount)
    size = free.f_bavail * free.f_frsize - left_bytes
    with path.open("wb") as file:
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)


def main() -> None:
    """Read cases from stdin, and write the results."""
    mount = Path(sys.argv[1])
    for text in sys.stdin:
        result = _live(json.loads(text), mount)
        for path in mount.iterdir():
            _remove(path)
        print(json.dumps(result), flush=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        for one in path.iterdir():
            _remove(one)
        path.rmdir()
    else:
        path.unlink()


if __name__ == "__main__":
    main()
