"""Fork children, kill them, and let another fork check their store.

    python -m tests.crash.worker <directory> <directory in memory>

Lives come as JSON lines on stdin, and results go to stdout. The process is warm and has no threads.

A life is one directory with rounds of work that end in a kill, and then a check. The worker itself
never opens a store: each round and each check runs in a fork of it.
"""

import faulthandler
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.crash import child
from tests.crash.check import check
from tests.crash.check_saved import check_saved
from tests.crash.history import History
from tests.crash.plan import SAVED, Known, Plan, handle_of
from tests.crash.report import LINE_BYTES, Kind, unpack
from tests.support.inside import failpoints
from timerstore import StoreConfig
from timerstore._engine.format.store_paths import Tree

_HANG_S = 30.0
_CHECK_HANG_S = 120.0


def main() -> None:
    """Read lives from stdin, and write the results."""
    on_disk, in_memory = Path(sys.argv[1]), Path(sys.argv[2])
    for text in sys.stdin:
        life = json.loads(text)
        directory = (in_memory if life["in_memory"] else on_disk) / f"life-{life['number']}"
        result = Life(directory, life).live()
        if not result["problems"]:
            shutil.rmtree(directory, ignore_errors=True)
        print(json.dumps(result), flush=True)


class Life:
    """One directory from its first round to its check."""

    waits_at_points = False
    """Whether the parent kills a child that has reached its fail point."""

    def __init__(self, directory: Path, life: dict[str, Any], trouble: Path | None = None) -> None:
        self._directory = directory / "store"
        self._trouble = trouble if trouble is not None else directory / "trouble"
        self._life = life
        self._config: dict[str, Any] = life["config"]
        self._random = Random(life["seed"])
        self._history = History()
        self._known = Known()
        self._points: Counter[str] = Counter()
        self._seconds: list[float] = []
        self._problems: list[str] = []
        directory.mkdir(parents=True)

    def live(self) -> dict[str, Any]:
        """Run every round, then the check."""
        for number, given in enumerate(self._life["rounds"]):
            started = time.monotonic()
            self._round(number, given)
            self._seconds.append(round(time.monotonic() - started, 3))
            if self._problems:
                break
        if not self._problems:
            started = time.monotonic()
            self._check()
            self._seconds.append(round(time.monotonic() - started, 3))
        return {
            "number": self._life["number"],
            "points": dict(self._points),
            "messages": len(self._history.acked),
            "seconds": self._seconds,
            "seen": sum(map(len, self._history.pulled.values())),
            "problems": self._problems,
            "directory": str(self._directory),
        }

    def _round(self, number: int, given: dict[str, Any]) -> None:
        if given.get("lose"):
            self._lose()
        plan = Plan(
            seed=self._random.randrange(1 << 30),
            round=number,
            config=self._config,
            point=given.get("point"),
            nth=given.get("nth", 1),
            calls=given.get("calls", 60),
            sessions=given.get("sessions", 3),
            step_ms=given.get("step_ms", 1.0),
            is_stopped=self.waits_at_points,
            only_durable=self._life.get("only_durable", False),
            backup_share=given.get("backup_share", 0.01),
        )
        after_ms = given.get("after_ms")
        raw, status = watch(
            lambda pipe: child.run(self._directory, self._trouble, plan, self._known, pipe),
            after_s=None if after_ms is None else after_ms / 1000,
            from_opened=given.get("from_opened", False),
            at_reached=self.waits_at_points,
            kill=self._kill,
        )
        self._died()
        self._take(raw, status, given)

    def _kill(self, pid: int) -> None:
        """Kill the child."""
        _kill(pid)

    def _died(self) -> None:
        """Do nothing: the child has died."""

    def _lose(self) -> None:
        """Remove the derived files that say where recovery continues."""
        tree = Tree(self._directory)
        tree.watermark.unlink(missing_ok=True)
        tree.state.unlink(missing_ok=True)
        # A log without timers does not identify its store: it gets a new id, and a new backup.
        shutil.rmtree(self._directory.with_name(SAVED), ignore_errors=True)

    def _take(self, raw: bytes, status: int, given: dict[str, Any]) -> None:
        whole = raw[: len(raw) // LINE_BYTES * LINE_BYTES]
        lines = list(unpack(whole))
        self._history.read(whole)
        self._problems += self._history.problems
        reached = [failpoints.NAMES[line.a] for line in lines if line.kind == Kind.REACHED]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            if not reached and given.get("after_ms") is None:
                self._problems.append(f"hung: {given}\n{self._said()}")
            self._points[reached[0] if reached else "at random"] += 1
        elif status == 0:
            self._points["not killed"] += 1
        else:
            self._problems.append(f"the child failed, status {status:#x}: {given}\n{self._said()}")
        self._remember(lines)

    def _said(self) -> str:
        paths = (self._trouble, self._trouble.with_suffix(".stacks"))
        return "\n".join(path.read_text() for path in paths if path.exists())

    def _remember(self, lines: list[Any]) -> None:
        config = StoreConfig(**self._config)
        gone = self._history.cancel_begun | self._history.moving.keys()
        acked = self._history.acked
        waiting = [
            (line.id, line.queue, handle_of(line.queue, config, line))
            for line in (acked[one.id] for one in lines if one.kind == Kind.PUT)
            if line.a >= 0 and line.id not in gone
        ]
        kept = [
            (number, queue, handle_of(queue, config, acked[number]))
            for number, queue, _ in self._known.cancellable
            if number not in gone and acked[number].a >= 0
        ]
        kept += self._random.sample(waiting, min(40, len(waiting)))
        seen = {queue: len(pulled) for queue, pulled in self._history.pulled.items()}
        versions = sorted(self._history.ingesting)[-20:]
        retries = [one for one in self._history.asked.values() if one[0] not in acked]
        moved = set(self._history.moved)
        self._known = Known(seen, kept[-80:], moved, retries, versions)

    def _check(self) -> None:
        def run(pipe: int) -> None:
            stacks = self._trouble.with_suffix(".stacks").open("w")
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
            try:
                problems = check(
                    self._directory, self._config, self._history, self._random.randrange(1 << 30)
                )
                problems += check_saved(self._directory, self._directory.with_name(SAVED))
            except BaseException:  # noqa: BLE001 - reported to the parent
                problems = [traceback.format_exc()]
            with open(pipe, "wb") as out:
                out.write(json.dumps(problems).encode())
            os._exit(0)

        raw, status = watch(run, hang_s=_CHECK_HANG_S)
        if status or not raw:
            self._problems.append(f"the check died, status {status:#x}\n{self._said()}")
        else:
            self._problems += json.loads(raw)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def watch(
    run: Callable[[int], None],
    *,
    after_s: float | None = None,
    from_opened: bool = False,
    at_reached: bool = False,
    hang_s: float = _HANG_S,
    kill: Callable[[int], None] = _kill,
) -> tuple[bytes, int]:
    """Fork, read the reports, and kill the child at the chosen time. Return its status.

    The time is `after_s` after the fork or after the opening, or when the child has reached its
    fail point, or when it has reported nothing for `hang_s`.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        run(writing)
        os._exit(99)
    os.close(writing)
    raw = bytearray()
    hang_at = time.monotonic() + hang_s
    kill_at = None if after_s is None or from_opened else time.monotonic() + after_s
    while True:
        now = time.monotonic()
        at = hang_at if kill_at is None else min(kill_at, hang_at)
        if now >= at:
            if at == hang_at:
                os.kill(pid, signal.SIGUSR1)  # prints where it hangs
                time.sleep(0.5)
            kill(pid)
            kill_at, hang_at = None, now + hang_s
        ready, _, _ = select.select([reading], [], [], max(0.0, at - now))
        if not ready:
            continue
        part = os.read(reading, 1 << 16)
        if not part:
            break
        raw += part
        hang_at = max(hang_at, time.monotonic() + hang_s)  # slow, but it makes progress
        if kill_at is None and after_s is not None and from_opened and raw[0] == Kind.OPENED:
            kill_at = time.monotonic() + after_s
            from_opened = False
        if at_reached and Kind.REACHED in raw[::LINE_BYTES]:
            kill_at, at_reached = time.monotonic(), False
    os.close(reading)
    return bytes(raw), os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    main()
