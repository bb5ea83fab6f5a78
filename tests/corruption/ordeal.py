"""Open damaged stores in forked children under a watchdog, and classify the outcome of each.

| outcome   | meaning                                                                        |
|-----------|--------------------------------------------------------------------------------|
| same      | every answer is that of the store without damage                               |
| cut       | the same, except for a tail that was not durable by the watermark              |
| refused   | CorruptError, which names a file of the store; the commit log is unchanged     |
| known     | another answer, because of one of the gaps in known.py                         |
| unclear   | an error of another class, or without a place                                  |
| wrong     | another answer: a message that is wrong, lost, doubled or early                |
| harmed    | an error, but the commit log was changed                                       |
| crashed   | the process died                                                               |
| hung      | the process had to be killed                                                   |
"""

import gc
import json
import logging
import os
import re
import select
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.corruption.answers import ask
from tests.corruption.damages import Case, Damage
from tests.corruption.golden import Golden
from tests.corruption.known import is_known
from timerstore import ConfigError, CorruptError, TimerStoreError
from timerstore._engine.format import watermark

_HANG_S = 60.0
_TELL = 2000
_LOG = logging.getLogger("timerstore.tests.ordeal")
_PLACE = re.compile(r"offset \d+|bytes|digits|missing|first files|config/|shows")

Answers = list[tuple[str, Any]]


class Outcome(NamedTuple):
    """The outcome of one damaged store."""

    name: str
    kind: str
    detail: str


class _Child:
    """A process that runs some cases."""

    def __init__(self, number: int, pid: int, cases: Sequence[Case], pipe: Any) -> None:
        self.number = number
        self.pid = pid
        self._cases = cases
        self._done = 0
        self.pipe = pipe
        self.heard = time.monotonic()
        self.why = ""  # the process ended
        self._rest = b""

    def told(self) -> list[Outcome]:
        """Read the reports of the process. `why` is set when it ended."""
        part = self.pipe.read(1 << 16)
        if not part:
            self.why = "crashed"
        self.heard = time.monotonic()
        *lines, self._rest = (self._rest + part).split(b"\n")
        self._done += len(lines)
        return [Outcome(*json.loads(line)) for line in lines]

    @property
    def left(self) -> Sequence[Case]:
        """Return the cases without a report."""
        return self._cases[self._done :]

    def ended(self) -> list[Outcome]:
        """Reap the process, and record its death for the case that it was running."""
        self.pipe.close()
        status = os.waitpid(self.pid, 0)[1]
        if not status:
            return []
        name = self._cases[self._done][0]
        self._done += 1
        return [Outcome(name, self.why, f"status {status:#x}")]


class Ordeal:
    """One golden store, and its answers."""

    def __init__(self, golden: Golden, scratch: Path) -> None:
        self.golden = golden
        self._scratch = scratch
        golden.write(scratch / "whole")
        mark = watermark.read(golden.files["timerstore/watermark"])
        assert mark is not None
        self._durable = mark.log_end
        self._wanted: list[Answers] = [list(ask(scratch / "whole", golden.asked))]

    def allow(self, damage: Damage) -> None:
        """Accept also the answers of a store that has lost a tail which was not durable."""
        root = self._scratch / "allowed"
        shutil.rmtree(root, ignore_errors=True)
        self.golden.write(root)
        damage(root)
        self._wanted.append(list(ask(root, self.golden.asked)))

    def run(
        self, cases: Sequence[Case], *, until_s: float = 1e12, processes: int = 1
    ) -> list[Outcome]:
        """Damage, open and compare the store for each case, in several processes."""
        found: list[Outcome] = []
        end = time.monotonic() + until_s
        children = [self._child(n, cases[n::processes], end) for n in range(processes)]
        told = 0
        while children:
            soonest = min(child.heard for child in children) + _HANG_S - time.monotonic()
            ready = select.select([child.pipe for child in children], [], [], max(0.0, soonest))[0]
            for child in tuple(children):
                if child.pipe in ready:
                    found += [self._noted(one) for one in child.told()]
                elif time.monotonic() - child.heard >= _HANG_S:
                    os.kill(child.pid, signal.SIGKILL)
                    child.why = "hung"
                if child.why:
                    children.remove(child)
                    found += [self._noted(one) for one in child.ended()]
                    if child.left and time.monotonic() < end:
                        children.append(self._child(child.number, child.left, end))
            if len(found) // _TELL > told:
                told = len(found) // _TELL
                kinds = dict(Counter(one.kind for one in found))
                _LOG.info("done=%d of=%d kinds=%s", len(found), len(cases), kinds)
        return found

    def _noted(self, one: Outcome) -> Outcome:
        if one.kind not in {"same", "refused", "known", "cut"}:
            _LOG.warning("%s: %s: %s", one.kind, one.name, one.detail[-2000:])
        return one

    def _child(self, number: int, cases: Sequence[Case], end: float) -> "_Child":
        """Start a child for the cases. Another child continues after a case that kills it."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reading)
                self._go_through(self._scratch / f"damaged-{number}", cases, writing, end)
            finally:  # the child must not return into the code of the test
                os._exit(1)
        os.close(writing)
        return _Child(number, pid, cases, os.fdopen(reading, "rb", buffering=0))

    def _go_through(self, root: Path, cases: Sequence[Case], writing: int, end: float) -> None:
        gc.freeze()
        for name, damage in cases:
            if time.monotonic() >= end:
                break
            try:
                kind, detail = self._one(root, name, damage)
            except BaseException:  # noqa: BLE001 - reported to the parent
                kind, detail = "unclear", traceback.format_exc()
            os.write(writing, json.dumps([name, kind, detail]).encode() + b"\n")
        os._exit(0)

    def _one(self, root: Path, name: str, damage: Damage) -> tuple[str, str]:
        shutil.rmtree(root, ignore_errors=True)
        self.golden.write(root)
        damage(root)
        before = log_of(root, self._durable)
        got: Answers = []
        try:
            for one in ask(root, self.golden.asked):
                got.append(one)
        except TimerStoreError as error:
            kind, detail = self._refused(root, error, got, before)
            return _wrong(name, detail) if kind == "wrong" else (kind, detail)
        for number, wanted in enumerate(self._wanted):
            if got == wanted:
                return "cut" if number else "same", ""
        return _wrong(name, self._differing(got))

    def _refused(
        self, root: Path, error: TimerStoreError, got: Answers, before: dict[str, bytes]
    ) -> tuple[str, str]:
        text = f"{type(error).__name__}: {error}"
        if not any(got == wanted[: len(got)] for wanted in self._wanted):
            return "wrong", f"{self._differing(got)}, then {text}"
        if not got and log_of(root, self._durable) != before:
            return "harmed", text
        # ConfigError: the sizes of files are compared with the configured ones.
        is_clear = isinstance(error, (CorruptError, ConfigError)) and str(root) in str(error)
        if not is_clear or not _PLACE.search(str(error)):
            return "unclear", text
        return "refused", text

    def _differing(self, got: Answers) -> str:
        for (question, answer), (_, wanted) in zip(got, self._wanted[0], strict=False):
            if answer != wanted:
                return f"{question}: wanted {_short(wanted, answer)}"
        return f"{len(got)} answers, wanted {len(self._wanted[0])}"


def _wrong(name: str, detail: str) -> tuple[str, str]:
    return "known" if is_known(name) else "wrong", detail


def _short(wanted: Any, got: Any) -> str:
    if isinstance(wanted, list) and isinstance(got, list):
        if len(wanted) == len(got):
            pairs = [(a, b) for a, b in zip(wanted, got, strict=True) if a != b]
            return _short(*pairs[0])
        missing = [one for one in wanted if one not in got]
        more = [one for one in got if one not in wanted]
        return f"{len(wanted)} got {len(got)}: missing {missing[:1]}, more {more[:1]}"
    if isinstance(wanted, tuple) and isinstance(got, tuple) and len(wanted) == len(got):
        return str([(a, b) for a, b in zip(wanted, got, strict=True) if a != b])
    return f"{wanted} got {got}"


def log_of(root: Path, durable: int) -> dict[str, bytes]:
    """Return the durable part of the commit log's files: a torn tail after it is cut."""
    files = (path for path in sorted((root / "commitlog").glob("*")) if path.is_file())
    return {
        path.name: path.read_bytes()[: max(0, durable - int(path.name))]
        for path in files
        if path.name.isdecimal()
    }
